"""Held-out words filled by the demo's model, words near each other, and the report of the demo."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from bert_jax.api.meanings import Meanings, Neighbor, nearest_words, two_meanings
from bert_jax.api.model import load as load_model
from bert_jax.config.schema import Config
from bert_jax.config.serialization import from_dict
from bert_jax.data_pipeline.analysis.hidden_words import HiddenWord, hide_words
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import count
from bert_jax.metrics import goodput
from bert_jax.metrics import run_records as metrics
from bert_jax.metrics.fill_records import Filled, last_guesses, read_fills, steps_of
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
_GUESSES = 3  # for each
_SIMILAR = slice(100, 1000, 90)  # words by frequency whose nearest words are shown
_WORDS = 2000  # most frequent ones, among which these are
_READ = 1500  # sentences in which two meanings of a word are looked for


class Fills(NamedTuple):
    """Predictions for words hidden in held-out sentences."""

    shown: list[ShownFill]  # those of the run's evaluations, after its last step
    rate: str  # how many of all it finds
    peers: list[tuple[str, float]]  # share found by the model, and by counting words
    over_time: list[Filled]  # the same, at each evaluation
    nearest: Mapping[str, list[Neighbor]]  # words -> the most similar ones
    meanings: Meanings | None  # of one word


def fill_masks(workdir: Path, store: TokenStore, config: Config) -> Fills:
    """Hides a word in each of many held-out sentences; fills the masks with the exported model."""
    model = load_model(workdir / "export")
    longest = model.config.max_position_embeddings - 2  # [CLS] and [SEP]
    hidden = hide_words(store, seed=config.seed, count=_SENTENCES, longest=longest)
    guesses = [model.fill_mask(each.sentence, top_k=_GUESSES)[0] for each in hidden]
    over_time = read_fills(metrics.records(Workdir.open(workdir / "run").metrics))
    last, guessed = last_guesses(over_time)
    fills = [ShownFill(one.before, one.word, one.after, one.by_step[last]) for one in guessed]
    for fill in fills:
        text = "   ".join(f"{token} {probability:.0%}" for token, probability in fill.guesses)
        console.print(f"  {fill.before}[MASK]{fill.after}")
        console.print(f"    hidden word: {fill.word}   predictions: {text}")
    peers = _peers(store, hidden, [[guess.token for guess in best] for best in guesses])
    rate = _rate(store, len(hidden), peers)
    console.print(rate)
    words = most_frequent_words(store, _WORDS)
    nearest = nearest_words(model, words[_SIMILAR], words)
    meanings = two_meanings(model, sample_sentences(store, _READ))
    return Fills(fills, rate, peers, over_time, nearest, meanings)


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
    run_page.add_training(page, run_page.Logged.read(run.metrics))
    run_page.add_goodput(page, spent)
    page.save(workdir / "report.html")


def _add_fills(page: html.Page, fills: Fills) -> None:
    """Adds what the model makes of words: fills, nearest words, two meanings of a word."""
    page.heading("Hidden words, filled by the model")
    page.text(f"{fills.rate} The sentences are a fixed draw from documents held out from training.")
    page.fills(fills.shown)
    if steps_of(fills.over_time):
        page.heading("The first guess while the model learned")
        run_page.add_fills(page, fills.over_time)
    if fills.nearest:
        page.heading("Nearest words")
        page.text("By the cosine of their embeddings.")
        rows = fills.nearest.items()
        page.table(
            ("word", "nearest"),
            [(word, ", ".join(one.word for one in near)) for word, near in rows],
        )
    if fills.meanings:
        page.heading(f"Two uses of “{fills.meanings.word}”")
        page.text(
            "The word whose hidden states in different sentences of the training text fall most "
            "clearly into two groups; the most typical sentences of each."
        )
        for group, sentences in zip(("One", "The other"), fills.meanings.sentences, strict=True):
            page.text(f"{group}:")
            page.sentences(sentences)
