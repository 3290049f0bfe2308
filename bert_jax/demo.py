"""The entire pipeline on one machine; an interrupted demo resumes where it stopped."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

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
from bert_jax.reporting.fills import HiddenWord, found_rate, hide_words, most_frequent_words
from bert_jax.runtime import compile_cache, cpu
from bert_jax.runtime.console import console
from bert_jax.training.loop import pretrain
from bert_jax.workdir.layout import Workdir

T = TypeVar("T")

_SENTENCES = 500  # in which a word is hidden
_SHOWN = 10


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


class Fills(NamedTuple):
    """Words hidden in held-out sentences, and the model's three most probable words for each."""

    hidden: list[HiddenWord]
    guesses: list[list[api.Fill]]


def _fill(model_path: Path, store: TokenStore, seed: int) -> Fills:
    """Hides a word in each of many held-out sentences; fills the masks with the exported model."""
    model = api.load(model_path)
    longest = model.config.max_position_embeddings - 2  # [CLS] and [SEP]
    hidden = hide_words(store, seed=seed, count=_SENTENCES, longest=longest)
    fills = Fills(hidden, [model.fill_mask(each.sentence, top_k=3)[0] for each in hidden])
    for sentence, word, guesses in _rows(fills):
        console.print(f"  {sentence}\n    hidden word: {word}   predictions: {guesses}")
    console.print(_rate(store, fills))
    return fills


def _rows(fills: Fills) -> list[tuple[str, str, str]]:
    """The first few: sentence, hidden word, predictions."""
    rows = []
    for hidden, guesses in zip(fills.hidden[:_SHOWN], fills.guesses, strict=False):
        text = ", ".join(f"{guess.token} {guess.probability:.0%}" for guess in guesses)
        rows.append((hidden.sentence, hidden.word, text))
    return rows


def _rate(store: TokenStore, fills: Fills) -> str:
    frequent = most_frequent_words(store, 3)
    found = found_rate(fills.hidden, [[g.token for g in guesses] for guesses in fills.guesses])
    trivial = found_rate(fills.hidden, [frequent] * len(fills.hidden))
    return (
        f"Of {len(fills.hidden)} hidden words, {found:.1%} are among the model's first three; "
        f"{trivial:.1%} are one of the three most frequent words ({', '.join(frequent)})."
    )


def _report(workdir: Path, store: TokenStore, fills: Fills) -> None:
    page = html.Page("bert-jax demo")
    (source,) = store.manifest["sources"]
    page.text(
        f"{source['documents']:,} documents, {len(store.train.tokens):,} training tokens and "
        f"{len(store.held_out.tokens):,} held-out tokens of a vocabulary of {store.vocab_size:,}."
    )
    page.heading("Hidden words, filled by the exported model")
    page.text(f"One word hidden in each sentence of a fixed draw. {_rate(store, fills)}")
    page.table(("sentence", "hidden word", "predictions"), _rows(fills))
    run_page.add_training(page, Workdir.open(workdir / "run").metrics)
    page.save(workdir / "report.html")
