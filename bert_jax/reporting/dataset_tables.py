"""Tables of a store's contents and of the examples a config makes from it.

Each is a header and rows; numbers are ints, everything else is text as displayed.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.config.schema import DataConfig, PhaseConfig
from bert_jax.data_pipeline.analysis.baselines import (
    MOST_TOKENS,
    bigram_loss,
    tokens_per_document,
    unigram_loss,
)
from bert_jax.data_pipeline.analysis.inspect import ExampleCounts, Group, Lengths, ShownExample
from bert_jax.data_pipeline.pairing.modes import LABELS
from bert_jax.data_pipeline.store.quality import SHORT, concerns, unknown_shares
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import count

Rows = tuple[Sequence[str], Sequence[Sequence[object]]]

_SHARES = {"shortest": 0.0, "10%": 0.1, "median": 0.5, "90%": 0.9, "99%": 0.99, "longest": 1.0}


def of_groups(groups: Sequence[Group]) -> Rows:
    """Documents, sentences, tokens and unknown tokens per source and language."""
    return ("source", "language", "documents", "sentences", "tokens", "[UNK]", "share"), [
        (*dataclasses.astuple(group), _percent(group.unknown, group.tokens, 4)) for group in groups
    ]


def of_lengths(lengths: Mapping[str, Lengths]) -> Rows:
    """Quantiles and means of each distribution of lengths."""
    return ("", *_SHARES, "mean"), [
        (name, *map(distribution.quantile, _SHARES.values()), f"{distribution.mean:,.1f}")
        for name, distribution in lengths.items()
    ]


def of_rows(
    counts: ExampleCounts,
    rows: int,
    bound: float,
    dropped: tuple[int, int],
    data: DataConfig,
    shape: PhaseConfig,
) -> Rows:
    """Fill rate and masking of the counted rows. rows: number of rows in the epoch. bound: upper
    bound of the fill rate. dropped: sentences too long for an example, and their tokens."""
    unchanged = max(0.0, 1 - data.mask_share - data.random_share)
    too_long = ("sentences dropped", dropped[0], f"{dropped[1]:,} tokens, too long for a block")
    fill_rate = _percent(counts.tokens, counts.slots, 2)
    end = "" if shape.mask_rate_end is None else f", by steps towards {shape.mask_rate_end:.2%}"
    most = ", at most max_predictions" * (shape.mask_rate is None)
    rate = f"{data.mask_rate:.2%}{end}, rounded in each example{most}"
    return ("", "found", "expected"), [
        ("rows", counts.rows, f"of {rows:,}" if counts.rows < rows else "the entire epoch"),
        ("examples", counts.examples, ""),
        *([too_long] if data.pairing == "single" else []),
        ("fill: tokens / positions", fill_rate, f"at most {bound:.2%}"),
        ("predictions", counts.predicted, ""),
        ("predictions / tokens", _percent(counts.predicted, counts.tokens, 2), rate),
        ("[MASK]", _percent(counts.masked, counts.predicted, 2), f"{data.mask_share:.2%}"),
        ("random token", _percent(counts.random, counts.predicted, 2), f"{data.random_share:.2%}"),
        ("unchanged", _percent(counts.kept, counts.predicted, 2), f"{unchanged:.2%}"),
    ]


_MOST_RANDOM = 0.75  # share of random second sentences of text with few long documents


def of_labels(labels: np.ndarray, data: DataConfig, store: TokenStore) -> Rows:
    """Counts of the pair labels per source; `labels`: int64 [sources, 2]."""
    expected = "above 50%: chunks of one sentence get a random second"
    short = "most documents are too short for pairs: consider --config.data.pairing=single"
    return ("source", *LABELS[data.pairing], "share", "expected"), [
        (
            name,
            int(a),
            int(b),
            _percent(int(b), int(a + b), 2),
            short if b > _MOST_RANDOM * (a + b) else expected,
        )
        for name, (a, b) in zip(store.sources, labels, strict=True)
    ]


def of_held_out(store: TokenStore) -> Rows:
    """Cross-entropy of the held-out tokens under unigram and bigram frequencies, in nats."""
    tokens = len(store.train.tokens)
    return ("", "nats per token", "counted in"), [
        ("token frequencies (unigram)", f"{unigram_loss(store):.3f}", f"{tokens:,} tokens"),
        (
            "left neighbour (bigram)",
            f"{bigram_loss(store):.3f}",
            f"{min(tokens, MOST_TOKENS):,} tokens",
        ),
    ]


def of_quality(store: TokenStore) -> Rows:
    """Held-out size, short documents, [UNK], and what to do about those that matter."""
    lengths = [tokens_per_document(split) for split in (store.train, store.held_out)]
    short, documents = sum(int((own < SHORT).sum()) for own in lengths), sum(map(len, lengths))
    held_out = count(len(store.held_out.document_lengths), "document")
    rows = [
        ("held-out text", f"{held_out}, {count(len(store.held_out.tokens), 'token')}"),
        (f"documents under {SHORT} tokens", _percent(short, documents, 1)),
    ]
    for source, share in unknown_shares(store).items():
        rows.append((f"[UNK] in {source}" if source else "[UNK]", f"{share:.2%}"))
    return ("", "found"), [*rows, *(("warning", str(concern)) for concern in concerns(store))]


def head(example: ShownExample, data: DataConfig, store: TokenStore) -> str:
    """The heading of a decoded example."""
    words = [f"row {example.row}", f"example {example.number}", f"{len(example.tokens)} tokens"]
    words.append(f"{example.predictions} predictions")
    if example.label is not None and example.source is not None:
        words += [store.sources[example.source], LABELS[data.pairing][example.label]]
    return ", ".join(words)


def _percent(part: int, total: int, digits: int) -> str:
    return f"{part / total:.{digits}%}" if total else "-"
