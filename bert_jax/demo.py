"""The entire pipeline on one machine; an interrupted demo resumes where it stopped."""

import copy
import dataclasses
import json
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bert_jax.api.meanings import Meanings, nearest_words, two_meanings
from bert_jax.api.model import Model
from bert_jax.api.model import load as load_model
from bert_jax.checkpoint.manager import find_steps, load_params
from bert_jax.config.config_files import load
from bert_jax.config.schema import Config
from bert_jax.config.serialization import from_dict
from bert_jax.data_pipeline.sources import KINDS, SourceSpec, find, guess_kind, parse_source
from bert_jax.data_pipeline.sources.finding import named
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.store_build.build import build_store
from bert_jax.data_pipeline.store_build.vocabulary import train_tokenizer
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.distributed import cluster, job
from bert_jax.errors import UserError, count
from bert_jax.metrics import goodput
from bert_jax.metrics import run_records as metrics
from bert_jax.parallel.local_devices import replicate
from bert_jax.publish.export import run_export
from bert_jax.reporting import html, run_page
from bert_jax.reporting.fills import (
    HiddenWord,
    as_text,
    followers,
    found_rate,
    hide_words,
    most_frequent_words,
    sample_sentences,
    to_type,
)
from bert_jax.reporting.html import ShownFill
from bert_jax.reporting.run_facts import hosts, model_facts, run_facts
from bert_jax.runtime import compile_cache, cpu
from bert_jax.runtime.console import clock, console
from bert_jax.runtime.program import program
from bert_jax.storage import json_record
from bert_jax.storage.digest import json_digest
from bert_jax.storage.outputs import OutputKind, check_output
from bert_jax.storage.remote import put, storage_errors
from bert_jax.training.loop import pretrain
from bert_jax.workdir import description
from bert_jax.workdir.layout import Workdir

T = TypeVar("T")

_VOCABULARY = 8192  # entries; little text has fewer
_PACKAGES = "numpy+scipy"  # whose documentation is read besides that of Python
_HELD_OUT_SHARE = 0.03  # of the documentation
_SENTENCES = 500  # in which a word is hidden
_SHOWN = 10
_GUESSES = 3  # for each
_SIMILAR = slice(100, 1000, 90)  # words by frequency whose nearest words are shown
_WORDS = 2000  # most frequent ones, among which these are
_READ = 1500  # sentences in which two meanings of a word are looked for
_CLAIM = "demo.json"  # the text and the settings of the demo in a workdir
DEMO = OutputKind(
    "demo", lambda folder: (folder / _CLAIM).exists(), is_folder=True, in_buckets=False
)


def demo(workdir: Path | None = None, *, data: str | None = None, steps: int | None = None) -> None:
    """Text → vocabulary → token store → pretraining → export → filled masks → report.html.

    A stage whose result exists in the workdir is not repeated. JAX trains on a GPU or TPU if it
    finds one, else on two simulated CPU devices.

    Args:
        workdir: by default that of the text, `default_workdir`.
        data: a file or folder of text, or KIND:PATH as for `data build`; by default the
            documentation in Python, NumPy and SciPy.
        steps: number of training steps, if not the config's.

    Raises:
        UserError: the text cannot be used, or the workdir was created from other text.
        StoppedError: interrupted while training; the state is saved.
    """
    cpu.use_cpu_devices(2)
    compile_cache.use()
    config, source = load("demo"), source_of(data)
    workdir = workdir or default_workdir(source)
    _claim(workdir, source, config)
    share = _HELD_OUT_SHARE if data is None else None  # the default holds out more of little text
    tokenizer = _stage("vocabulary", lambda: _tokenizer(workdir, source))
    store = _stage(
        "token store",
        lambda: build_store([source], tokenizer, workdir / "store", held_out_share=share),
    )
    config = _adapt(config, store, steps)
    _stage("pretraining", lambda: _pretrain(config, workdir / "run"))
    _stage("export", lambda: run_export(workdir / "run", workdir / "export"))
    fills = _stage("filled masks", lambda: _fill(workdir, store, config))
    steps_to_try = _next_steps(workdir, store, fills)
    _report(workdir, store, fills, steps_to_try)
    console.print(f"\nreport: {workdir / 'report.html'}   model: {workdir / 'export'}\n\nNext:")
    for purpose, command in steps_to_try:
        console.print(f"\n  {purpose}\n  {command}")


def default_workdir(source: SourceSpec) -> Path:
    """Returns the folder of a text's demo: demo_run, or demo_run_NAME for a user's file or folder
    of that name."""
    if source.kind == "python":
        return Path("demo_run")
    text = source.path.resolve()
    return Path(f"demo_run_{text.name if text.is_dir() else text.stem}")


def source_of(data: str | None) -> SourceSpec:
    """The user's text, its kind given or guessed from its files, or Python's own documentation."""
    if data is None:
        return parse_source(f"python,packages={_PACKAGES}")
    kind, colon, _ = data.partition(":")
    given = kind in KINDS or (colon and kind.isidentifier() and not Path(data).exists())
    return parse_source(f"{data if given else f'{guess_kind(Path(data))}:{data}'},name=text")


def _claim(workdir: Path, source: SourceSpec, config: Config) -> None:
    """Marks a new folder as the demo of this text; UserError if it holds another one."""
    files = [[str(path), path.stat().st_size] for path in find(source).files]
    claim = {
        "text": f"{source.kind}:{source.path.resolve()}",
        "files": json_digest(files),
        "settings": description.digest(config),
    }
    is_new = not workdir.exists() or not any(workdir.iterdir())
    previous = _read_claim(workdir / _CLAIM)
    reasons = {
        "settings": "holds a demo with other settings, of another version of bert-jax",
        "text": f"holds the demo of other text, {previous.get('text')}",
        "files": f"holds the demo of {claim['text']}, which has changed since",
    }
    changed = [reason for key, reason in reasons.items() if previous.get(key) != claim[key]]
    if changed and not is_new:
        reason = changed[0] if previous else "holds files, but no demo of this version of bert-jax"
        data = "" if source.kind == "python" else f" --data={shlex.quote(claim['text'])}"
        another = shlex.quote(f"{workdir}_2")
        raise UserError(
            f"{workdir}: {reason}; move it away, or give another folder: "
            f"{program()} demo{data} --workdir={another}"
        )
    check_output(workdir, DEMO, inputs=named(source.path))
    if is_new:
        workdir.mkdir(parents=True, exist_ok=True)
        put(workdir / _CLAIM, json.dumps(claim, indent=2).encode())


def _read_claim(path: Path) -> Mapping[str, Any]:
    """Returns the stored claim; an empty one if it is missing or damaged."""
    try:
        with storage_errors(path):
            return json_record.read_if_there(path, dict) or {}
    except ValueError:
        return {}


def _stage(name: str, run: Callable[[], T]) -> T:
    console.rule(name, align="left")
    start = time.perf_counter()
    result = run()
    console.print(f"{name}: {time.perf_counter() - start:.0f} s")
    return result


def _tokenizer(workdir: Path, source: SourceSpec) -> Tokenizer:
    path = workdir / "tokenizer.json"
    if not path.exists():
        train_tokenizer([source], _VOCABULARY, lowercase=True).save(path)
    return Tokenizer.load(path)


def _adapt(config: Config, store: TokenStore, steps: int | None) -> Config:
    """The demo's config, adapted to this store."""
    (phase,) = config.phases
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, vocab_size=store.vocab_size),
        data=dataclasses.replace(config.data, store=str(store.path)),
        phases=(dataclasses.replace(phase, steps=steps or phase.steps),),
        # The report shows what the model makes of sentences at each of these.
        checkpoint=dataclasses.replace(
            config.checkpoint, keep_start=True, keep_every_steps=config.evaluation.every_steps
        ),
    )


def _pretrain(config: Config, run: Path) -> None:
    with job.distributed_job(config, cluster.single_process(), {}) as started:
        pretrain(config, run, job=started)


class Fills(NamedTuple):
    """Predictions for words hidden in held-out sentences."""

    shown: list[ShownFill]  # the first few
    rate: str  # how many of all it finds
    peers: list[tuple[str, float]]  # share found by the model, and by counting words
    by_step: list[tuple[int, list[str]]]  # the first guess for those shown, of each kept checkpoint
    nearest: Mapping[str, list[str]]  # words -> the most similar ones
    meanings: Meanings | None  # of one word


def _fill(workdir: Path, store: TokenStore, config: Config) -> Fills:
    """Hides a word in each of many held-out sentences; fills the masks with the exported model."""
    model = load_model(workdir / "export")
    longest = model.config.max_position_embeddings - 2  # [CLS] and [SEP]
    hidden = hide_words(store, seed=config.seed, count=_SENTENCES, longest=longest)
    guesses = [model.fill_mask(each.sentence, top_k=_GUESSES)[0] for each in hidden]
    fills = []
    for each, best in zip(hidden[:_SHOWN], guesses, strict=False):
        sentence = as_text(each.sentence)
        text = "   ".join(f"{guess.token} {guess.probability:.0%}" for guess in best)
        console.print(f"  {sentence}\n    hidden word: {each.word}   predictions: {text}")
        before, _, after = sentence.partition("[MASK]")
        pairs = [(guess.token, guess.probability) for guess in best]
        fills.append(ShownFill(before, each.word, after, pairs))
    peers = _peers(store, hidden, [[guess.token for guess in best] for best in guesses])
    rate = _rate(store, len(hidden), peers)
    console.print(rate)
    words = most_frequent_words(store, _WORDS)
    nearest = nearest_words(model, words[_SIMILAR], words)
    meanings = two_meanings(model, sample_sentences(store, _READ))
    every = config.evaluation.every_steps
    by_step = _by_step(workdir / "run", model, hidden[:_SHOWN], every)
    return Fills(fills, rate, peers, by_step, nearest, meanings)


def _peers(
    store: TokenStore, hidden: list[HiddenWord], guesses: list[list[str]]
) -> list[tuple[str, float]]:
    """Returns the share of hidden words among the first guesses, of the model and of counting."""
    frequent = [most_frequent_words(store, _GUESSES)] * len(hidden)
    return [
        ("the model", found_rate(hidden, guesses)),
        ("the words that follow the word on the left most often",
         found_rate(hidden, followers(store, hidden, _GUESSES))),
        ("the most frequent words", found_rate(hidden, frequent)),
    ]  # fmt: skip


def _rate(store: TokenStore, number: int, peers: list[tuple[str, float]]) -> str:
    (_, found), (_, following), (_, trivial) = peers
    margin = f" ± {1.96 * (found * (1 - found) / number) ** 0.5:.1%}" if number else ""
    frequent = ", ".join(most_frequent_words(store, _GUESSES))
    return (
        f"Of {number} hidden words, {found:.1%}{margin} are among the model's first three; "
        f"{following:.1%} are one of the three words that follow the word on the left most often, "
        f"and {trivial:.1%} one of the three most frequent words ({frequent})."
    )


def _by_step(
    run: Path, model: Model, hidden: list[HiddenWord], every: int
) -> list[tuple[int, list[str]]]:
    """Returns the first guess for each hidden word after every `every`-th step, and the last."""
    earlier, workdir = copy.copy(model), Workdir.open(run)
    found, steps = [], find_steps(workdir, "all")
    for step in steps:
        if step % every and step != steps[-1]:
            continue
        earlier.params = replicate(load_params(workdir, step)[0])
        fills = (earlier.fill_mask(each.sentence, top_k=1)[0] for each in hidden)
        found.append((step, [best.token for (best,) in fills]))
    return found


def _report(workdir: Path, store: TokenStore, fills: Fills, steps: list[tuple[str, str]]) -> None:
    run = Workdir.open(workdir / "run")
    about, records = description.read_description(run), [*metrics.records(run.metrics)]
    config, spent = from_dict(about["config"], Config), goodput.account(records)
    (source,) = store.manifest["sources"]
    text = _read_claim(workdir / _CLAIM)["text"]
    page = html.Page("A small BERT, pretrained by the demo of bert-jax")
    (_, found), *_ = fills.peers
    page.headline(f"{found:.0%}", "of hidden words are among the model's first three guesses")
    page.table(
        ("hidden words found by", "share"), [(name, f"{share:.1%}") for name, share in fills.peers]
    )
    page.facts(
        {
            "text": f"{text}{' (docstrings)' if source['kind'] == 'python' else ''}: "
            f"{count(source['documents'], 'document')}, {len(store.train.tokens):,} tokens for "
            f"training and {len(store.held_out.tokens):,} held out",
            "model": model_facts(config),
            **run_facts(about, config.total_steps, records),
            **hosts(records),
            "training time": clock(spent.wall),
            "config": f"demo, in full in {run.config_json}",
        }
    )
    _add_fills(page, fills)
    page.commands(steps)
    page.heading("The text")
    page.sentences(sample_sentences(store))
    run_page.add_training(page, run.metrics)
    run_page.add_goodput(page, spent)
    page.save(workdir / "report.html")


def _add_fills(page: html.Page, fills: Fills) -> None:
    """Adds what the model makes of words: fills, nearest words, two meanings of a word."""
    page.heading("Hidden words, filled by the model")
    page.text(f"{fills.rate} The sentences are a fixed draw from documents held out from training.")
    page.fills(fills.shown)
    page.heading("The first guess while the model learned")
    steps, guesses = zip(*fills.by_step, strict=True)
    page.table(
        ("sentence", "hidden word", *(f"step {step:,}" for step in steps)),
        [
            (f"{fill.before}[MASK]{fill.after}", fill.word, *first)
            for fill, *first in zip(fills.shown, *guesses, strict=True)
        ],
    )
    page.heading("Nearest words")
    page.text("By the cosine of their embeddings.")
    page.table(("word", "nearest"), [(word, ", ".join(w)) for word, w in fills.nearest.items()])
    if fills.meanings:
        page.heading(f"Two uses of “{fills.meanings.word}”")
        page.text(
            "The word whose hidden states in different sentences of the training text fall most "
            "clearly into two groups; the most typical sentences of each."
        )
        for group, sentences in zip(("One", "The other"), fills.meanings.sentences, strict=True):
            page.text(f"{group}:")
            page.sentences(sentences)


def _next_steps(workdir: Path, store: TokenStore, fills: Fills) -> list[tuple[str, str]]:
    """Three commands to type after the demo, each with its purpose."""
    export, tokens, page, run = (
        shlex.quote(str(workdir / name)) for name in ("export", "store", "store.html", "larger")
    )
    sentences = (f"{fill.before}[MASK]{fill.after}" for fill in fills.shown)
    sentence = shlex.quote(to_type(sentences))
    steps = [
        ("Fill the masks of your own sentences:", f"fill --model={export} {sentence}"),
        (
            "See the examples that the model was trained on:",
            f"data inspect --store={tokens} --config=demo --html={page}",
        ),
        (
            "Pretrain a larger model on the same text (an hour or more without an accelerator):",
            f"pretrain --config=wiki_books_small --config.data.store={tokens} --workdir={run}",
        ),
    ]
    return [(purpose, f"{program()} {command}") for purpose, command in steps]
