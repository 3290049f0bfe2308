"""Inspects a store and its batches: counts, lengths, decoded examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from bert_jax.data_pipeline.analysis.baselines import tokens_per_document
from bert_jax.data_pipeline.batch import Batches
from bert_jax.data_pipeline.store.split import Split
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import SpecialIds, Tokenizer
from bert_jax.data_pipeline.tokenizer.word_starts import space_mark

_CHUNK = 1 << 22  # tokens searched at once
_INSIDE = "##"  # of WordPiece

Kind = Literal["special", "plain", "masked", "random", "kept"]


@dataclass(frozen=True)
class Group:
    """The documents of one source in one language."""

    source: str
    language: str
    documents: int
    sentences: int
    tokens: int
    unknown: int  # tokens that are [UNK]


def count_groups(store: TokenStore, split: Split) -> list[Group]:
    """Returns the counts of a split per source and language, in the store's order."""
    languages = len(store.languages)
    group = split.document_source.astype(np.int64) * languages + split.document_language
    tokens = tokens_per_document(split)
    unknown = np.bincount(
        np.searchsorted(np.cumsum(tokens), _positions(split.tokens, store.special.unk), "right"),
        minlength=len(tokens),
    )

    def count(number: int) -> Group:
        own = group == number
        sums = (int(counts[own].sum()) for counts in (split.document_lengths, tokens, unknown))
        source, language = divmod(number, languages)
        return Group(store.sources[source], store.languages[language], int(own.sum()), *sums)

    return [count(number) for number in np.unique(group).tolist()]


def _positions(tokens: np.ndarray, wanted: int) -> np.ndarray:
    """Returns the positions of an id: int64."""
    parts = [
        start + np.flatnonzero(tokens[start : start + _CHUNK] == wanted)
        for start in range(0, len(tokens), _CHUNK)
    ]
    return np.concatenate([*parts, np.empty(0, np.int64)])


@dataclass(frozen=True)
class Lengths:
    """Histogram of lengths; `counts`: int64 [longest + 1]."""

    counts: np.ndarray

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        return float(self.counts @ np.arange(len(self.counts)) / max(self.total, 1))

    def quantile(self, share: float) -> int:
        """Returns the smallest length that at least this share do not exceed; 0 if empty."""
        if not self.total:
            return 0
        return int(np.searchsorted(np.cumsum(self.counts), max(share * self.total, 1)))

    def bins(self, most: int = 12) -> list[tuple[int, int, int]]:
        """Returns at most `most` bins (shortest, longest, count). Widths double if the longest is
        far above the median, and are equal otherwise."""
        present = np.flatnonzero(self.counts)
        if not len(present):
            return []
        low, high = int(present[0]), int(present[-1])
        if high > 8 * max(self.quantile(0.5), 1):
            first = max(high >> (most - 1), 1)
            edges = [low, *(e for e in (first << k for k in range(most)) if low < e <= high)]
        else:
            edges = list(range(low, high + 1, -(-(high - low + 1) // most)))
        ends = [*(e - 1 for e in edges[1:]), high]
        return [(a, b, int(self.counts[a : b + 1].sum())) for a, b in zip(edges, ends, strict=True)]


@dataclass
class ExampleCounts:
    """Counts over the rows of an epoch, accumulated batch by batch."""

    sources: int
    mask_id: int
    rows: int = 0
    slots: int = 0  # token positions in these rows, padding included
    tokens: int = 0  # positions with a token, specials included
    masked: int = 0  # predictions whose token became [MASK]
    random: int = 0  # … became another token
    kept: int = 0  # … stayed, or was replaced by itself
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    predictions: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    labels: np.ndarray | None = None  # int64 [sources, 2], pairs; None without pairs

    def add(self, batch: Mapping[str, np.ndarray]) -> None:
        """Adds a batch; rows with only padding do not count."""
        ids = batch["example_ids"]
        filled = ids[:, 0] > 0
        self.rows += int(filled.sum())
        self.slots += int(filled.sum()) * ids.shape[1]
        most = int(ids.max(initial=0)) + 1
        name = np.arange(len(ids))[:, None] * most + ids  # unique per example; padding has number 0
        length = np.bincount(name[ids > 0], minlength=len(ids) * most)
        self.tokens += int(length.sum())
        self.lengths = _sum(self.lengths, np.bincount(length[length > 0]))
        row, slot = np.nonzero(batch["masked_weights"])
        position, label = (batch[key][row, slot] for key in ("masked_positions", "masked_labels"))
        predicted = np.bincount(name[row, position], minlength=len(length))
        self.predictions = _sum(self.predictions, np.bincount(predicted[length > 0]))
        now = batch["input_ids"][row, position]
        masked, kept = now == self.mask_id, now == label
        self.masked += int(masked.sum())
        self.kept += int((kept & ~masked).sum())
        self.random += int((~kept & ~masked).sum())
        if "pair_labels" in batch:
            present = batch["pair_weights"] > 0
            both = batch["pair_sources"][present] * 2 + batch["pair_labels"][present]
            counted = np.bincount(both, minlength=2 * self.sources).reshape(-1, 2)
            self.labels = counted if self.labels is None else self.labels + counted

    @property
    def examples(self) -> int:
        return int(self.lengths.sum())

    @property
    def predicted(self) -> int:
        return self.masked + self.random + self.kept


def _sum(counts: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Returns the sum of two histograms of different lengths: int64."""
    total = np.zeros(max(len(counts), len(more)), np.int64)
    total[: len(counts)] += counts
    total[: len(more)] += more
    return total


def count_examples(
    store: TokenStore, batches: Batches, most_slots: int, most_batches: int | None = None
) -> ExampleCounts:
    """Counts epoch 0, or its first batches in shuffled order up to `most_slots` token positions, or
    `most_batches`."""
    counts = ExampleCounts(len(store.sources), store.special.mask)
    for index in range(min(batches.batches_once, most_batches or batches.batches_once)):
        counts.add(batches.evaluation_batch(index))
        if counts.slots >= most_slots:
            break
    return counts


@dataclass(frozen=True)
class ShownToken:
    """One position of an example, for display."""

    text: str
    space: bool  # whether a space precedes it
    kind: Kind
    original: str = ""  # the original token of a masked position
    edge: bool = False  # next to a span of the span boundary objective

    @property
    def label(self) -> str:
        return f"{self.text}→{self.original}" if self.original else self.text


@dataclass(frozen=True)
class ShownExample:
    """One example of a row, for display."""

    row: int
    number: int  # in the row, from 1
    label: int | None  # of the pair, if any
    source: int | None
    tokens: tuple[ShownToken, ...]

    @property
    def predictions(self) -> int:
        return sum(token.kind not in ("special", "plain") for token in self.tokens)


class Vocabulary:
    """Ids as readable text; control characters are replaced, to protect the terminal.

    Running text joins the pieces of a word; a piece after a special or predicted token keeps its
    marker ("##", "▁" or "Ġ"), which shows how the pieces were joined.
    """

    def __init__(self, tokenizer: Tokenizer, special: SpecialIds) -> None:
        entries = [tokenizer.readable(i) for i in range(tokenizer.vocab_size)]
        # With their markers.
        self.entries = ["".join(c if c.isprintable() else "\ufffd" for c in e) for e in entries]
        self._word_start = space_mark(entries)
        self.special = special

    def plain(self, index: int) -> tuple[str, bool]:
        """Returns (text, whether a space precedes it) in running text."""
        entry = self.entries[index]
        if index in self.special:
            return entry, True
        if start := self._word_start:
            return entry.removeprefix(start) or entry, entry.startswith(start)
        return entry.removeprefix(_INSIDE) or entry, not entry.startswith(_INSIDE)


def decode(
    batch: Mapping[str, np.ndarray], vocabulary: Vocabulary, rows: Sequence[int]
) -> list[ShownExample]:
    """Returns the examples of the first lines of a batch; `rows`: their numbers."""
    return [
        example
        for line, row in enumerate(rows)
        for example in _decode_row({k: v[line] for k, v in batch.items()}, vocabulary, row)
    ]


def _decode_row(
    line: Mapping[str, np.ndarray], vocabulary: Vocabulary, row: int
) -> list[ShownExample]:
    slots = np.flatnonzero(line["masked_weights"])
    positions, originals = line["masked_positions"][slots], line["masked_labels"][slots]
    labels = dict(zip(positions.tolist(), originals.tolist(), strict=True))
    edges: set[int] = set()
    if "span_weights" in line:
        spans = np.flatnonzero(line["span_weights"])
        edges = {int(p) for side in ("span_left", "span_right") for p in line[side][spans]}

    def show(position: int, after: Kind) -> ShownToken:
        index, edge = int(line["input_ids"][position]), position in edges
        entry, special = vocabulary.entries[index], vocabulary.special
        if position in labels:
            label = labels[position]
            kind: Kind = "kept" if index == label else "random"
            if index == special.mask:
                kind = "masked"
            return ShownToken(entry, True, kind, vocabulary.entries[label], edge)
        if index in (special.cls, special.sep):
            return ShownToken(entry, True, "special", edge=edge)
        text, space = vocabulary.plain(index) if after == "plain" else (entry, True)
        return ShownToken(text, space, "plain", edge=edge)

    shown = []
    for number in range(1, int(line["example_ids"].max(initial=0)) + 1):
        label = source = None
        if "pair_labels" in line:
            label = int(line["pair_labels"][number - 1])
            source = int(line["pair_sources"][number - 1])
        tokens: list[ShownToken] = []
        for position in np.flatnonzero(line["example_ids"] == number).tolist():
            tokens.append(show(position, tokens[-1].kind if tokens else "special"))
        shown.append(ShownExample(row, number, label, source, tuple(tokens)))
    return shown
