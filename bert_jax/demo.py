"""The entire pipeline on one machine; an interrupted demo resumes where it stopped."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from bert_jax import api
from bert_jax.config.files import load
from bert_jax.config.schema import Config
from bert_jax.convert.export import run_export
from bert_jax.data_pipeline.build.build import build_store, train_tokenizer
from bert_jax.data_pipeline.sources import SourceSpec, guess_kind, parse_source
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.distributed import cluster, job
from bert_jax.reporting import html, run_page
from bert_jax.runtime import compile_cache, cpu
from bert_jax.runtime.console import console
from bert_jax.training.loop import pretrain
from bert_jax.workdir.layout import Workdir

T = TypeVar("T")

_SENTENCES = 3  # number of sentences to fill masks in
_SHORTEST, _LONGEST = 8, 24  # tokens per sentence


def demo(workdir: Path, *, data: str | None = None, steps: int | None = None) -> None:
    """Text → vocabulary → token store → pretraining → export → filled masks → report.html.

    A stage whose result exists in the workdir is not repeated.

    Args:
        data: a file or folder of text; by default Python's built-in documentation.
        steps: number of training steps, if not the config's.

    Raises:
        UserError: the text cannot be used, or the workdir was created from other text.
        StoppedError: interrupted while training; the state is saved.
    """
    cpu.use_cpu_devices(2)
    compile_cache.use()
    workdir.mkdir(parents=True, exist_ok=True)
    config = load("demo")
    source = _source(data)
    tokenizer = _stage("vocabulary", lambda: _tokenizer(workdir, source, config))
    store = _stage(
        "token store",
        lambda: build_store([source], tokenizer, workdir / "store", held_out_share=0.03),
    )
    config = _adapt(config, store, steps)
    _stage("pretraining", lambda: _pretrain(config, workdir / "run"))
    _stage("export", lambda: run_export(workdir / "run", workdir / "export"))
    fills = _stage("filled masks", lambda: _fill(workdir / "export", store, config.seed))
    _report(workdir, store, fills)
    console.print(f"\nreport: {workdir / 'report.html'}   model: {workdir / 'export'}")


def _source(data: str | None) -> SourceSpec:
    """The user's text, its kind guessed from its files, or Python's own documentation."""
    if data is None:
        return parse_source("python")
    return parse_source(f"{guess_kind(Path(data))}:{data},name=text")


def _stage(name: str, run: Callable[[], T]) -> T:
    console.rule(name, align="left")
    start = time.perf_counter()
    result = run()
    console.print(f"{name}: {time.perf_counter() - start:.0f} s")
    return result


def _tokenizer(workdir: Path, source: SourceSpec, config: Config) -> Tokenizer:
    path = workdir / "tokenizer.json"
    if not path.exists():
        train_tokenizer([source], config.model.vocab_size, lowercase=True).save(path)
    return Tokenizer.load(path)


def _adapt(config: Config, store: TokenStore, steps: int | None) -> Config:
    """The demo's config, adapted to this store."""
    (phase,) = config.phases
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, vocab_size=store.vocab_size),
        data=dataclasses.replace(config.data, store=str(store.path)),
        phases=(dataclasses.replace(phase, steps=steps or phase.steps),),
    )


def _pretrain(config: Config, run: Path) -> None:
    with job.distributed_job(config, cluster.single_process(), {}) as started:
        pretrain(config, run, job=started)


class FilledSentence(NamedTuple):
    """A held-out sentence with one word masked, the word, and the model's predictions."""

    masked: str
    truth: str
    predictions: str


def _fill(model_path: Path, store: TokenStore, seed: int) -> list[FilledSentence]:
    """Fills one mask in each of a few held-out sentences with the exported model."""
    model = api.load(model_path)
    fills = []
    for masked, truth in _masked_sentences(store, seed):
        (predictions,) = model.fill_mask(masked)
        text = ", ".join(f"{g.token} {g.probability:.0%}" for g in predictions)
        fills.append(FilledSentence(masked, truth, text))
        console.print(f"  {masked}\n    masked word: {truth}   predictions: {text}")
    return fills


def _masked_sentences(store: TokenStore, seed: int) -> list[tuple[str, str]]:
    """(sentence with one word masked, that word): random held-out sentences of moderate length."""
    tokenizer = Tokenizer.load(store.tokenizer_path)
    split = store.held_out
    ends = np.cumsum(split.sentence_lengths, dtype=np.int64)
    result = []
    for sentence in np.random.default_rng(seed).permutation(len(ends)):
        length = int(split.sentence_lengths[sentence])
        if not _SHORTEST <= length <= _LONGEST:
            continue
        ids = split.tokens[ends[sentence] - length : ends[sentence]].tolist()
        words = [tokenizer.token(i) for i in ids]
        places = [
            i
            for i, word in enumerate(words[:-1])
            if word.isalpha() and len(word) > 3 and not words[i + 1].startswith("##")
        ]
        if places:
            place = places[len(places) // 2]
            truth, words[place] = words[place], tokenizer.token(store.special.mask)
            result.append((" ".join(words).replace(" ##", ""), truth))
        if len(result) == _SENTENCES:
            break
    return result


def _report(workdir: Path, store: TokenStore, fills: Sequence[FilledSentence]) -> None:
    page = html.Page("bert-jax demo")
    (source,) = store.manifest["sources"]
    page.text(
        f"{source['documents']:,} documents, {len(store.train.tokens):,} training tokens and "
        f"{len(store.held_out.tokens):,} held-out tokens of a vocabulary of {store.vocab_size:,}."
    )
    run_page.add_training(page, Workdir.open(workdir / "run").metrics)
    page.heading("Masks filled by the exported model")
    page.text("Held-out sentences with one word masked.")
    page.table(("sentence", "masked word", "predictions"), fills)
    page.save(workdir / "report.html")
