"""The plan of an epoch: the tokens of each example, and the examples of each row.

A plan is a pure function of (split, PlanSpec, epoch); `plan.cache` stores it.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bert_jax.data_pipeline.pairing.blocks import make_blocks
from bert_jax.data_pipeline.pairing.lengths import (
    Examples,
    Pools,
    Texts,
    document_tokens,
    read_only,
)
from bert_jax.data_pipeline.pairing.modes import PAIRS, SWAPPED
from bert_jax.data_pipeline.pairing.pairs import make_pairs
from bert_jax.data_pipeline.plan import mixing
from bert_jax.data_pipeline.plan.column_files import Put
from bert_jax.data_pipeline.plan.packing import Limits, pack
from bert_jax.data_pipeline.plan.plan_settings import PlanSettings, parse_weights
from bert_jax.data_pipeline.random.counter_rng import MIXING, PACKING, PAIRING, Purpose, stream_key
from bert_jax.data_pipeline.random.numba_jit import compiled
from bert_jax.errors import UserError

if TYPE_CHECKING:
    from bert_jax.data_pipeline.store.split import Split

VERSION: Final = 2  # incremented whenever the same spec gives another plan
_PAIR: Final = (5, "a pair: at least 5 tokens ([CLS] A [SEP] B [SEP])")
_BLOCK: Final = (4, "a block of sentences: at least 4 tokens ([CLS], two tokens, [SEP])")
# The largest value of a uint32 column.
_MOST: Final = 2**32 - 1

# The columns of a plan and their types; see `Plan`.
COLUMNS: Final[dict[str, np.dtype[Any]]] = {
    "piece_start": np.dtype(np.int64),
    "piece_length": np.dtype(np.int32),
    "piece_segment": np.dtype(np.int8),
    "example_pieces": np.dtype(np.uint32),
    "example_label": np.dtype(np.int8),
    "example_source": np.dtype(np.uint16),
    "row_examples": np.dtype(np.uint32),
    "row_example": np.dtype(np.uint32),
}


@dataclass(frozen=True)
class PlanSpec(PlanSettings):
    """Everything that determines a plan besides the split and the epoch.

    Rows have one example each, or with examples_per_row > 1 as many as fit.

    Attributes:
        seq_length: maximum tokens of an example, specials included.
        row_tokens: tokens of a row; None is seq_length.
        row_predictions: prediction slots of a row; None is unlimited.
        predictions: slots of an example of n tokens, 0 <= n <= seq_length.
    """

    seq_length: int
    seed: int = 0
    phase: int = 0
    row_tokens: int | None = None
    row_predictions: int | None = None
    examples_per_row: int = 1
    predictions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        shortest, wanted = _PAIR if self.pairing in PAIRS else _BLOCK
        if self.seq_length < shortest:
            raise UserError(f"seq_length {self.seq_length} cannot hold {wanted}; raise it")
        if self.predictions and len(self.predictions) != self.seq_length + 1:
            raise ValueError(f"predictions has {len(self.predictions)} entries, not seq_length + 1")

    def planned(self, epoch: int) -> int:
        """Returns the epoch whose plan, and whose masks, `epoch` uses."""
        return epoch % self.dupe_factor if self.dupe_factor else epoch

    @property
    def limits(self) -> Limits:
        """Capacity of a row; without `row_predictions` its slots are unlimited."""
        slots = _MOST if self.row_predictions is None else self.row_predictions
        return Limits(self.row_tokens or self.seq_length, slots, self.examples_per_row)

    @property
    def slots(self) -> np.ndarray:
        """Prediction slots of an example of each length: int64 [seq_length + 1]."""
        return np.array(self.predictions or (0,) * (self.seq_length + 1), np.int64)

    def key(self, epoch: int, purpose: Purpose) -> np.uint64:
        return stream_key(self.seed, self.phase, self.planned(epoch), purpose)


@dataclass(frozen=True)
class Plan:
    """One epoch: E examples of one or more of P pieces each, R rows of one or more examples each.

    Arrays are read-only, and memory-mapped if they come from the cache.

    Attributes:
        piece_start: int64 [P], token address.
        piece_length: int32 [P], tokens, 0 for a [SEP] only.
        piece_segment: int8 [P]; bit 0 is the token type; a [SEP] is inserted where the value
            changes between two pieces of an example, and after its last piece.
        example_pieces: uint32 [E + 1], first piece of each example.
        example_label: int8 [E], 0 if B follows A, or without pairs.
        example_source: uint16 [E], source of the first token.
        row_examples: uint32 [R + 1], offsets of the rows in row_example.
        row_example: uint32 [E], the examples of each row.
    """

    piece_start: np.ndarray
    piece_length: np.ndarray
    piece_segment: np.ndarray
    example_pieces: np.ndarray
    example_label: np.ndarray
    example_source: np.ndarray
    row_examples: np.ndarray
    row_example: np.ndarray

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, read_only(getattr(self, field.name)))

    @property
    def rows(self) -> int:
        return len(self.row_examples) - 1

    @property
    def examples(self) -> int:
        return len(self.example_label)

    def lengths(self) -> np.ndarray:
        """Returns the tokens of each example, specials included: uint32 [E]."""
        pieces = np.diff(self.example_pieces)
        return _lengths(pieces, self.piece_length, self.piece_segment)

    def fill_rate(self, row_tokens: int) -> float:
        """Returns the fraction of real tokens, specials included, in rows of `row_tokens` tokens.
        Its upper bound is `packing_bound(np.bincount(plan.lengths()), spec.slots, spec.limits)`."""
        return float(self.lengths().sum(dtype=np.int64) / (self.rows * row_tokens))


@compiled
def _lengths(pieces, piece_length, piece_segment):
    lengths = np.empty(len(pieces), np.uint32)
    piece = 0
    for example in range(len(pieces)):
        length = np.int64(1)  # [CLS]
        for k in range(piece, piece + pieces[example]):
            length += piece_length[k]
            if k + 1 == piece + pieces[example] or piece_segment[k + 1] != piece_segment[k]:
                length += 1  # [SEP]
        lengths[example] = length
        piece += pieces[example]
    return lengths


def plan_epoch(
    split: "Split",
    spec: PlanSpec,
    epoch: int,
    put: Put,
    *,
    sources: Sequence[str] = (),
    languages: Sequence[str] = (),
) -> None:
    """Appends to the columns of a plan incrementally; holds the split's lengths and a few bytes per
    example in memory, not the plan.

    Args:
        sources, languages: names of the split's indices, for error messages and source weights.

    Raises:
        UserError: the split is empty, no example results, or a document has no other document to
            draw a random second segment from.
    """
    if len(split.document_lengths) == 0:
        raise UserError(f'the "{split.name}" split is empty; build the store from more documents')
    texts = Texts.of(split.document_lengths, split.sentence_lengths)
    visits = np.ones(texts.documents, np.int32)
    visited = None  # bool [D], documents that any epoch visits; None = all
    weights = parse_weights(spec.source_weights)
    mixing.check_sources(split, weights, sources)
    if any(weight != 1 for weight in weights.values()) or spec.language_smoothing != 1:
        expected = mixing.expected_visits(
            split, document_tokens(texts), weights, spec.language_smoothing, sources
        )
        visits = mixing.draw_visits(expected, spec.key(epoch, MIXING))
        visited = expected > 0
    pools = None
    if spec.pairing in PAIRS:
        pools = _pools(split, visited, spec, sources, languages)
    lengths = []
    pieces = np.int64(0)
    put("example_pieces", np.zeros(1, np.uint32))
    for part in _examples(texts, visits, pools, spec, spec.key(epoch, PAIRING)):
        put("piece_start", part.piece_start)
        put("piece_length", part.piece_length)
        put("piece_segment", part.piece_segment)
        put("example_pieces", _counted(pieces + np.cumsum(part.pieces)))
        put("example_label", part.label)
        put("example_source", split.document_source[part.document])
        pieces += len(part.piece_start)
        lengths.append(_part_lengths(part, spec.seq_length))
    _put_rows(np.concatenate(lengths) if lengths else np.zeros(0), split, spec, epoch, put)


def _examples(
    texts: Texts, visits: np.ndarray, pools: Pools | None, spec: PlanSpec, key: np.uint64
) -> Iterator[Examples]:
    """Yields the examples of an epoch: pairs if `pools` is given, else blocks."""
    if pools is not None:
        return make_pairs(
            texts, visits, pools, seq_length=spec.seq_length,
            short_seq_prob=spec.short_seq_prob, key=key, swap=spec.pairing in SWAPPED,
        )  # fmt: skip
    return make_blocks(
        texts, visits, seq_length=spec.seq_length, short_seq_prob=spec.short_seq_prob, key=key,
        cross=spec.pairing == "full_sentences", drop=spec.pairing == "single",
        sentences=spec.separators == "sentences",
    )  # fmt: skip


def _counted(numbers: np.ndarray) -> np.ndarray:
    if len(numbers) and numbers[-1] > _MOST:
        raise UserError(f"an epoch of over {_MOST:,} pieces is too long; split the store")
    return numbers.astype(np.uint32)


def _part_lengths(part: Examples, seq_length: int) -> np.ndarray:
    narrow = np.uint16 if seq_length < 1 << 16 else np.uint32
    return _lengths(part.pieces, part.piece_length, part.piece_segment).astype(narrow)


def _put_rows(lengths: np.ndarray, split: "Split", spec: PlanSpec, epoch: int, put: Put) -> None:
    if len(lengths) == 0:
        raise UserError(
            f'the "{split.name}" split gives no example with pairing "{spec.pairing}" and '
            f"seq_length {spec.seq_length}: all its sentences are longer, or no document was "
            "drawn; raise seq_length, or add documents"
        )
    if spec.examples_per_row == 1:
        put("row_examples", np.arange(len(lengths) + 1, dtype=np.uint32))
        put("row_example", np.arange(len(lengths), dtype=np.uint32))
        return
    sizes, examples = pack(lengths, spec.slots, spec.limits, spec.key(epoch, PACKING))
    put("row_examples", np.zeros(1, np.uint32))
    put("row_examples", np.cumsum(sizes, dtype=np.uint32))
    put("row_example", examples)


def _pools(
    split: "Split",
    visited: np.ndarray | None,
    spec: PlanSpec,
    sources: Sequence[str],
    languages: Sequence[str],
) -> Pools:
    labels = np.zeros(len(split.document_lengths), np.int64)
    if spec.negative_pool == "source":
        language_count = int(split.document_language.max()) + 1
        labels = split.document_source.astype(np.int64) * language_count + split.document_language
    pools = Pools.group(labels, visited)
    lonely = np.flatnonzero(pools.sizes < 2)
    if len(lonely):
        document = int(pools.documents[pools.offsets[lonely[0]]])
        source, language = split.document_source[document], split.document_language[document]
        source_name = sources[source] if sources else f"number {source}"
        language_name = languages[language] if languages else f"number {language}"
        raise UserError(
            f'source "{source_name}" has a single document in language "{language_name}" in the '
            f'"{split.name}" split, but pairing "{spec.pairing}" draws random sentences from '
            "another one; add documents (more files, or chapters that begin with `# `), or set "
            "config.data.negative_pool=corpus if other sources or languages have some"
        )
    return pools
