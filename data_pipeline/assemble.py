"""Assembles rows of a plan into masked rows of a batch, in loops compiled by numba."""

# Over 300 lines: numba compiles these loops into one program, which shares the arrays of a row.

import collections
import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from bert_jax.data_pipeline.masking.mode import Mode
from bert_jax.data_pipeline.masking.scratch import empty_scratch, fill_draw_keys, fill_slots
from bert_jax.data_pipeline.masking.spec import MaskingSpec, Rule
from bert_jax.data_pipeline.pairing.lengths import read_only
from bert_jax.data_pipeline.plan.plan import Plan
from bert_jax.data_pipeline.random.counter_rng import fold_key
from bert_jax.data_pipeline.random.numba_jit import compiled
from bert_jax.data_pipeline.tokenizer.word_starts import BEGINS, NEXT_BEGINS

if TYPE_CHECKING:
    from bert_jax.data_pipeline.tokenizer.tokenizer import SpecialIds

Batch = dict[str, np.ndarray]

_PREFETCH_ROWS: Final = 64  # rows whose inputs are read ahead together
_LINE: Final = 32  # tokens per cache line, at two bytes each


class BatchArrays(NamedTuple):
    """A batch of B rows of S tokens, P prediction slots and N examples, filled by compiled code.

    input_ids, token_type_ids, position_ids (from 0 in every example) and example_ids (0 = padding,
    from 1 in every row): int32 [B, S].
    masked_positions, masked_labels: int32 [B, P]; masked_weights: float32 [B, P], 0 in empty slots.
    With a pair objective (otherwise N = 0): cls_positions, pair_labels (0 = in order, 1 = random or
    swapped), pair_sources: int32 [B, N]; pair_weights: float32 [B, N].
    With span boundaries (otherwise of width 0), aligned with the masked slots: span_left,
    span_right (positions in the row just outside the span) and span_offsets (index within the span,
    0..14): int32 [B, P]; span_weights: float32 [B, P], 1 where both neighbours of the span are in
    its segment and the offset is below 15.
    For replaced-token detection (otherwise of width 0), aligned with the masked slots: draw_keys,
    uint32 [B, P], 0 in empty slots: a key of each token's draw, that depends only on its place in
    its example, the example, the epoch, the phase and the seed.
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    example_ids: np.ndarray
    position_ids: np.ndarray
    masked_positions: np.ndarray
    masked_labels: np.ndarray
    masked_weights: np.ndarray
    cls_positions: np.ndarray
    pair_labels: np.ndarray
    pair_weights: np.ndarray
    pair_sources: np.ndarray
    span_left: np.ndarray
    span_right: np.ndarray
    span_offsets: np.ndarray
    span_weights: np.ndarray
    draw_keys: np.ndarray

    @classmethod
    def empty(
        cls, rows: int, tokens: int, predictions: int, pairs: int, spans: int, draws: int
    ) -> "BatchArrays":
        def array(width: int, dtype: type = np.int32) -> np.ndarray:
            return np.empty((rows, width), dtype)

        s, p, n, b, d = tokens, predictions, pairs, spans, draws
        return cls(
            array(s), array(s), array(s), array(s),
            array(p), array(p), array(p, np.float32),
            array(n), array(n), array(n, np.float32), array(n),
            array(b), array(b), array(b), array(b, np.float32),
            array(d, np.uint32),
        )  # fmt: skip

    def by_name(self) -> Batch:
        """Returns the arrays by name, without the arrays of absent objectives."""
        return {name: array for name, array in self._asdict().items() if array.shape[1]}


class _Frame(NamedTuple):
    """The row layout, equal for all rows."""

    pad_id: int
    cls_id: int
    sep_id: int
    examples_per_row: int


# `Plan` for compiled code: numba supports named tuples, not dataclasses.
_FIELDS = [field.name for field in dataclasses.fields(Plan)]
_PlanArrays = collections.namedtuple("_PlanArrays", _FIELDS)  # type: ignore[misc]


# Loops over one array that start at 0: the compiler vectorizes only these.
@compiled
def _set(array, value):
    for k in range(len(array)):
        array[k] = value


@compiled
def _copy(source, target):
    for k in range(len(target)):
        target[k] = source[k]


@compiled
def _count_up(array, first):
    for k in range(len(array)):
        array[k] = first + k


@compiled
def _range(offsets, k):
    """The start and end of range k, as signed integers: loops over unsigned ones are slow."""
    return np.int64(offsets[k]), np.int64(offsets[k + 1])


@compiled
def _prefetch(tokens, plan, rows):
    """Reads the inputs of rows once, so that they are in the CPU caches when `fill` needs them.

    Rows are scattered in memory. These reads are independent, in `fill` each depends on the one
    before: at 128 tokens this cuts its time by a quarter. The sum keeps the compiler from
    eliminating the reads.
    """
    seen = np.int64(0)
    for row in rows:
        seen += plan.row_examples[row]
    for row in rows:
        begin, end = _range(plan.row_examples, row)
        if begin < end:
            seen += plan.row_example[begin]
    for row in rows:
        begin, end = _range(plan.row_examples, row)
        for k in range(begin, end):
            example = plan.row_example[k]
            seen += plan.example_pieces[example]
            seen += plan.example_label[example]
            seen += plan.example_source[example]
    for row in rows:
        begin, end = _range(plan.row_examples, row)
        for k in range(begin, end):
            piece = plan.example_pieces[plan.row_example[k]]
            seen += plan.piece_start[piece]
            seen += plan.piece_length[piece]
            seen += plan.piece_segment[piece]
    for row in rows:
        begin, end = _range(plan.row_examples, row)
        for k in range(begin, end):
            first, stop = _range(plan.example_pieces, plan.row_example[k])
            for piece in range(first, stop):
                source = plan.piece_start[piece]
                for address in range(source, source + plan.piece_length[piece], _LINE):
                    seen += tokens[address]
    return seen


@compiled
def _length(plan, first, stop):
    """Number of tokens of the example with pieces [first, stop), special tokens included."""
    total = 1
    for piece in range(first, stop):
        total += plan.piece_length[piece]
        if piece + 1 == stop or plan.piece_segment[piece + 1] != plan.piece_segment[piece]:
            total += 1
    return total


@compiled
def _write_example(tokens, plan, first, stop, at, frame, ids, types, places):
    """Writes the example with pieces [first, stop), starting at column `at`.

    [CLS], then the pieces, with [SEP] after the last piece of every segment. Fills `places` with
    the columns of all other tokens and returns their number.
    """
    ids[at], types[at] = frame.cls_id, plan.piece_segment[first] & 1
    at += 1
    count = 0
    for piece in range(first, stop):
        source, size = plan.piece_start[piece], int(plan.piece_length[piece])
        segment = plan.piece_segment[piece]
        _copy(tokens[source : source + size], ids[at : at + size])
        _count_up(places[count : count + size], at)
        ends = piece + 1 == stop or plan.piece_segment[piece + 1] != segment
        _set(types[at : at + size + ends], segment & 1)
        at += size
        count += size
        if ends:
            ids[at] = frame.sep_id
            at += 1
    return count


@compiled
def _find_starts(scratch, count, ids, rule):
    """Fills the starts of words and segments in `scratch` for an example that was just written."""
    before = np.int64(-1)
    for k in range(count):
        position = scratch.places[k]
        starts = rule.word_starts[ids[position]] & BEGINS
        if k:  # or there is no token before it
            starts |= rule.word_starts[ids[position - 1]] & NEXT_BEGINS
        scratch.word_starts[k] = starts != 0
        scratch.segment_starts[k] = position != before + 1
        before = position
    if count:
        scratch.word_starts[0] = scratch.segment_starts[0] = 1


@compiled
def _find_weights(scratch, count, ids, rule):
    """Fills the weights of the tokens in `scratch` for an example that was just written."""
    for k in range(count):
        scratch.weights[k] = rule.id_weights[ids[scratch.places[k]]]


@functools.cache
def _filling_function(mode: Mode) -> Any:
    """Returns the function that fills rows, compiled for a kind of masking."""
    select, replace = mode.select, mode.replace

    @compiled
    def fill(tokens, plan, rows, lines, key, frame, rule, out):
        """Writes rows of a plan into lines of the batch; returns the number of lines written.

        A smaller number than requested means that the next row does not fit the shape of the batch.
        """
        row_tokens, predictions = out.input_ids.shape[1], out.masked_positions.shape[1]
        scratch = empty_scratch(row_tokens)
        for done in range(len(rows)):
            if done % _PREFETCH_ROWS == 0:
                _prefetch(tokens, plan, rows[done : done + _PREFETCH_ROWS])
            line = lines[done]
            ids, types = out.input_ids[line], out.token_type_ids[line]
            at = slot = number = np.int64(0)
            begin, end = _range(plan.row_examples, rows[done])
            for k in range(begin, end):
                example = plan.row_example[k]
                first, stop = _range(plan.example_pieces, example)
                length = _length(plan, first, stop)
                if at + length > row_tokens or number == frame.examples_per_row:
                    return done
                count = _write_example(
                    tokens, plan, first, stop, at, frame, ids, types, scratch.places
                )
                if rule.masks_specials:
                    count = length
                    _count_up(scratch.places[:count], at)
                if len(rule.word_starts):
                    _find_starts(scratch, count, ids, rule)
                if len(rule.id_weights):
                    _find_weights(scratch, count, ids, rule)
                wanted = np.int64(rule.budgets[length if rule.counts_specials else count])
                if slot + min(wanted, count) > predictions:
                    return done
                example_key = fold_key(key, example)
                taken = select(example_key, rule, scratch, count, wanted)
                fill_slots(scratch, taken, out, line, slot)
                replace(fold_key(example_key, 1), rule, scratch, count, taken, out, line, slot)
                if out.draw_keys.shape[1]:
                    fill_draw_keys(fold_key(example_key, 4), taken, out, line, slot, at)
                slot += taken
                _count_up(out.position_ids[line, at : at + length], 0)
                if out.cls_positions.shape[1]:
                    out.cls_positions[line, number] = at
                    out.pair_labels[line, number] = plan.example_label[example]
                    out.pair_weights[line, number] = 1.0
                    out.pair_sources[line, number] = plan.example_source[example]
                number += 1
                _set(out.example_ids[line, at : at + length], number)
                at += length
            _pad(out, line, at, slot, number, frame.pad_id)
        return len(rows)

    return fill


@compiled
def _pad(out, line, at, slot, number, pad_id):
    """Pads a row after its last token, its last masked slot and its last example."""
    _set(out.input_ids[line, at:], pad_id)
    _set(out.token_type_ids[line, at:], 0)
    _set(out.example_ids[line, at:], 0)
    _set(out.position_ids[line, at:], 0)
    _set(out.masked_positions[line, slot:], 0)
    _set(out.masked_labels[line, slot:], 0)
    _set(out.masked_weights[line, slot:], 0.0)
    _set(out.cls_positions[line, number:], 0)
    _set(out.pair_labels[line, number:], 0)
    _set(out.pair_weights[line, number:], 0.0)
    _set(out.pair_sources[line, number:], 0)
    _set(out.span_left[line, slot:], 0)
    _set(out.span_right[line, slot:], 0)
    _set(out.span_offsets[line, slot:], 0)
    _set(out.span_weights[line, slot:], 0.0)
    _set(out.draw_keys[line, slot:], 0)


class Assembler:
    """Turns rows of a plan into masked rows of a batch.

    A row may hold several examples: positions restart at 0 in each, `example_ids` distinguishes
    them, and slots are filled in the order of the examples. The masks of an example depend only on
    its number and the key, not on its row.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        special: "SpecialIds",
        vocab_size: int,
        masking: MaskingSpec,
        row_tokens: int,
        row_predictions: int,
        examples_per_row: int = 1,
        *,
        pairs: bool = True,
        word_starts: np.ndarray | None = None,
        token_counts: np.ndarray | None = None,
    ) -> None:
        """
        Args:
            pairs: whether the batch has the arrays of a pair objective.
            word_starts, token_counts: see `MaskingSpec.rule`, which may raise ValueError.
        """
        self._tokens = read_only(tokens)
        self._limits = (row_tokens, row_predictions, examples_per_row)
        self._widths = (
            row_tokens,
            row_predictions,
            examples_per_row if pairs else 0,
            row_predictions if masking.span_boundary else 0,
            row_predictions if masking.replaced_tokens else 0,
        )
        self._frame = _Frame(special.pad, special.cls, special.sep, examples_per_row)
        self._fill = _filling_function(masking.mode)
        self._masking = masking
        self._rule = masking.rule(
            special.mask,
            vocab_size,
            row_tokens,
            word_starts=word_starts,
            token_counts=token_counts,
            not_drawn=(special.pad, special.unk, special.cls, special.sep),
        )

    def empty(self, rows: int) -> BatchArrays:
        """Returns uninitialized arrays for `rows` rows."""
        return BatchArrays.empty(rows, *self._widths)

    def _rule_at(self, step: int) -> Rule:
        """Returns the rule of a step of the phase."""
        masking = self._masking.at(step)
        if masking is self._masking:
            return self._rule
        budgets = masking.budgets(self._limits[0])
        limits = masking.mode.limits(masking, budgets)
        return self._rule._replace(budgets=budgets, limits=limits)

    def fill(
        self,
        out: BatchArrays,
        lines: np.ndarray,
        plan: Plan,
        rows: np.ndarray,
        key: np.uint64,
        step: int = 0,
    ) -> None:
        """Writes rows (int64 [n]) of a plan into lines (int64 [n]) of the batch.

        step: of the phase, which decides the mask rate.

        Raises:
            ValueError: a row does not fit the shape of the batch.
        """
        arrays = _PlanArrays(*(getattr(plan, name) for name in _FIELDS))
        rule = self._rule_at(step)
        done = self._fill(self._tokens, arrays, rows, lines, key, self._frame, rule, out)
        if done < len(rows):
            raise ValueError(
                f"row {rows[done]} of the plan does not fit {self._limits} "
                "(tokens, prediction slots, examples)"
            )

    def pad(self, out: BatchArrays, lines: np.ndarray) -> None:
        """Fills lines of the batch with padding, with all weights zero."""
        for line in lines:
            _pad(out, line, 0, 0, 0, self._frame.pad_id)
