"""Held-out words filled by the demo's model, words near each other, and the report of the demo."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from bert_jax.api.meanings import Meanings, nearest_words, two_meanings
from bert_jax.api.model import Model
from bert_jax.api.model import load as load_model
from bert_jax.checkpoint.manager import find_steps, load_params
from bert_jax.config.schema import Config
from bert_jax.config.serialization import from_dict
from bert_jax.data_pipeline.analysis.hidden_words import HiddenWord, as_text, hide_words
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import count
from bert_jax.metrics import goodput
from bert_jax.metrics import run_records as metrics
from bert_jax.parallel.local_devices import replicate
from bert_jax.reporting import html, run_page
from bert_jax.reporting.fills import (
    followers,
    found_rate,
    most_frequent_words,
    sample_sentences,
)
from bert_jax.reporting.html import ShownFill
from bert_jax.reporting.run_facts import hosts, model_facts, run_facts
from bert_jax.runtime.console import clock, console
from bert_jax.workdir import description
from bert_jax.workdir.layout import Workdir

_SENTENCES = 500  # in which a word is hidden
_SHOWN = 10
_GUESSES = 3  # for each
_SIMILAR = slice(100, 1000, 90)  # words by frequency whose nearest words are shown
_WORDS = 2000  # most frequent ones, among which these are
_READ = 1500  # sentences in which two meanings of a word are looked for


class Fills(NamedTuple):
    """Predictions for words hidden in held-out sentences."""

    shown: list[ShownFill]  # the first few
    rate: str  # how many of all it finds
    peers: list[tuple[str, float]]  # share found by the model, and by counting words
    by_step: list[tuple[int, list[str]]]  # the first guess for those shown, of each kept checkpoint
    nearest: Mapping[str, list[str]]  # words -> the most similar ones
    meanings: Meanings | None  # of one word


def fill_masks(workdir: Path, store: TokenStore, config: Config) -> Fills:
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


def write_report(
    workdir: Path, text: str, store: TokenStore, fills: Fills, steps: list[tuple[str, str]]
) -> None:
    """Writes report.html into a demo's folder.

    Args:
        text: the name of the text.
        steps: commands to type next, each after its purpose.
    """
    run = Workdir.open(workdir / "run")
    about, records = description.read_description(run), [*metrics.records(run.metrics)]
    config, spent = from_dict(about["config"], Config), goodput.account(records)
    (source,) = store.manifest["sources"]
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
