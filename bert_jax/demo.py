"""The entire pipeline on one machine; an interrupted demo resumes where it stopped."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from bert_jax.api.model import load as load_model
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
_GUESSES = 3  # for each


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
    """What the model makes of words hidden in held-out sentences."""

    rows: list[tuple[str, str, str]]  # the first few: sentence, hidden word, predictions
    rate: str  # how many of all it finds


def _fill(model_path: Path, store: TokenStore, seed: int) -> Fills:
    """Hides a word in each of many held-out sentences; fills the masks with the exported model."""
    model = load_model(model_path)
    longest = model.config.max_position_embeddings - 2  # [CLS] and [SEP]
    hidden = hide_words(store, seed=seed, count=_SENTENCES, longest=longest)
    guesses = [model.fill_mask(each.sentence, top_k=_GUESSES)[0] for each in hidden]
    rows = []
    for each, best in zip(hidden[:_SHOWN], guesses, strict=False):
        text = ", ".join(f"{guess.token} {guess.probability:.0%}" for guess in best)
        console.print(f"  {each.sentence}\n    hidden word: {each.word}   predictions: {text}")
        rows.append((each.sentence, each.word, text))
    rate = _rate(store, hidden, [[guess.token for guess in best] for best in guesses])
    console.print(rate)
    return Fills(rows, rate)


def _rate(store: TokenStore, hidden: list[HiddenWord], guesses: list[list[str]]) -> str:
    frequent = most_frequent_words(store, _GUESSES)
    found, trivial = found_rate(hidden, guesses), found_rate(hidden, [frequent] * len(hidden))
    return (
        f"Of {len(hidden)} hidden words, {found:.1%} are among the model's first three; "
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
    page.text(f"One word hidden in each sentence of a fixed draw. {fills.rate}")
    page.table(("sentence", "hidden word", "predictions"), fills.rows)
    run_page.add_training(page, Workdir.open(workdir / "run").metrics)
    page.save(workdir / "report.html")
