"""A batch is a pure function of the step: `Batches.batch(step, rows)`. Nothing here has a state."""

import collections
import contextlib
import dataclasses
import os
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from data_pipeline.draws import MASKING, ORDER, Purpose, compiled, fold, permute, stream_key
from data_pipeline.errors import UserError
from data_pipeline.masking import MaskingSpec, mask_tokens
from data_pipeline.plan import Plan, Plans, PlanSpec, read_only

if TYPE_CHECKING:
    from data_pipeline.store import Split
    from data_pipeline.tokenizer import SpecialIds

T = TypeVar("T")
Batch = dict[str, np.ndarray]


@compiled
def _lay_out(
    tokens, plan, first, stop, number, cls_id, sep_id, at, ids, types, examples, positions,
    candidates,
):  # fmt: skip
    """Write the example made of pieces [first, stop) from column `at` on: (its end, candidates).

    [CLS], then the pieces, with [SEP] after the last piece of every segment. Candidates for masking
    are all other tokens.
    """
    begin = at
    ids[at], types[at] = cls_id, plan.piece_segment[first]
    at += 1
    count = 0
    for piece in range(first, stop):
        source, size = plan.piece_start[piece], plan.piece_length[piece]
        segment = plan.piece_segment[piece]
        for k in range(size):
            ids[at + k] = tokens[source + k]
            types[at + k] = segment
            candidates[count + k] = at + k
        at += size
        count += size
        if piece + 1 == stop or plan.piece_segment[piece + 1] != segment:
            ids[at], types[at] = sep_id, segment
            at += 1
    for k in range(begin, at):
        examples[k] = number
        positions[k] = k - begin
    return at, count


@compiled
def _length(plan, first, stop):
    """Tokens of the example made of pieces [first, stop), specials included."""
    total = 1
    for piece in range(first, stop):
        total += plan.piece_length[piece]
        if piece + 1 == stop or plan.piece_segment[piece + 1] != plan.piece_segment[piece]:
            total += 1
    return total


@compiled
def _fill(tokens, plan, rows, lines, key, rule, out):
    """Write the rows of a plan into lines of the batch; the number of lines written.

    Fewer than asked for means that the next row does not fit the shape of the batch.
    """
    seq_length, slots = out.input_ids.shape[1], out.masked_positions.shape[1]
    candidates = np.empty(seq_length, np.int32)
    for done in range(len(rows)):
        row, line = rows[done], lines[done]
        at = slot = number = 0
        for k in range(plan.row_examples[row], plan.row_examples[row + 1]):
            example = plan.row_example[k]
            first, stop = plan.example_pieces[example], plan.example_pieces[example + 1]
            length = _length(plan, first, stop)
            if at + length > seq_length or number == out.cls_positions.shape[1]:
                return done
            out.cls_positions[line, number] = at
            out.pair_labels[line, number] = plan.example_label[example]
            out.pair_weights[line, number] = 1.0
            out.pair_sources[line, number] = plan.example_source[example]
            number += 1
            at, count = _lay_out(
                tokens, plan, first, stop, number, rule.cls_id, rule.sep_id, at,
                out.input_ids[line], out.token_type_ids[line], out.example_ids[line],
                out.position_ids[line], candidates,
            )  # fmt: skip
            wanted = min(rule.predictions[length], count)
            if slot + wanted > slots:
                return done
            mask_tokens(
                fold(key, example), out.input_ids[line], candidates[:count], wanted,
                rule.mask_id, rule.vocab_size, rule.mask_limit, rule.keep_limit,
                out.masked_positions[line, slot:], out.masked_labels[line, slot:],
            )  # fmt: skip
            out.masked_weights[line, slot : slot + wanted] = 1.0
            slot += wanted
        _pad(out, line, at, slot, number, rule.pad_id)
    return len(rows)


@compiled
def _pad(out, line, at, slot, number, pad_id):
    """Everything behind the last token, the last masked slot and the last example of a row."""
    out.input_ids[line, at:] = pad_id
    out.token_type_ids[line, at:] = 0
    out.example_ids[line, at:] = 0
    out.position_ids[line, at:] = 0
    out.masked_positions[line, slot:] = 0
    out.masked_labels[line, slot:] = 0
    out.masked_weights[line, slot:] = 0.0
    out.cls_positions[line, number:] = 0
    out.pair_labels[line, number:] = 0
    out.pair_weights[line, number:] = 0.0
    out.pair_sources[line, number:] = 0


class BatchArrays(NamedTuple):
    """A batch of B rows of S tokens, P prediction slots and N examples, as compiled code fills it.

    input_ids, token_type_ids, position_ids (from 0 in every example) and example_ids (0 = padding,
    from 1 in every row): int32 [B, S]. masked_positions, masked_labels: int32 [B, P];
    masked_weights: float32 [B, P], 0 where a slot is empty. cls_positions, pair_labels (0 = B
    follows A, 1 = B is random), pair_sources: int32 [B, N]; pair_weights: float32 [B, N].
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

    @classmethod
    def empty(cls, rows: int, seq_length: int, predictions: int, examples: int) -> "BatchArrays":
        def of(width: int, dtype: type = np.int32) -> np.ndarray:
            return np.empty((rows, width), dtype)

        s, p, n = seq_length, predictions, examples
        return cls(
            of(s), of(s), of(s), of(s),
            of(p), of(p), of(p, np.float32),
            of(n), of(n), of(n, np.float32), of(n),
        )  # fmt: skip


# `Plan` as compiled code reads it: numba knows named tuples, not dataclasses.
_FIELDS = [field.name for field in dataclasses.fields(Plan)]
_PlanArrays = collections.namedtuple("_PlanArrays", _FIELDS)  # type: ignore[misc]


class _Rule(NamedTuple):
    """What rows are made with, the same for every row."""

    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    vocab_size: int
    predictions: np.ndarray  # int32 [seq_length + 1], by length of the example
    mask_limit: np.uint64
    keep_limit: np.uint64


class Assembler:
    """Turns rows of a plan into masked rows of a batch.

    A row may hold several examples: positions start again in each, `example_ids` tells them apart,
    and slots are filled in the order of the examples. The masks of an example depend on its number
    and the key alone, not on its row. ValueError where a row does not fit the shape of the batch.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        special: "SpecialIds",
        vocab_size: int,
        masking: MaskingSpec,
        seq_length: int,
        examples_per_row: int = 1,
    ) -> None:
        self._tokens = read_only(tokens)
        self._shape = (seq_length, masking.max_predictions, examples_per_row)
        self._rule = _Rule(
            special.pad, special.cls, special.sep, special.mask, vocab_size,
            masking.predictions(seq_length), masking.mask_limit, masking.keep_limit,
        )  # fmt: skip

    def empty(self, rows: int) -> BatchArrays:
        """Arrays for a number of rows, uninitialised."""
        return BatchArrays.empty(rows, *self._shape)

    def fill(
        self, out: BatchArrays, lines: np.ndarray, plan: Plan, rows: np.ndarray, key: np.uint64
    ) -> None:
        """Write rows (int64 [n]) of a plan into lines (int64 [n]) of the batch."""
        arrays = _PlanArrays(*(getattr(plan, name) for name in _FIELDS))
        done = _fill(self._tokens, arrays, rows, lines, key, self._rule, out)
        if done < len(rows):
            raise ValueError(
                f"row {rows[done]} of the plan does not fit {self._shape} "
                "(tokens, prediction slots, examples)"
            )

    def pad(self, out: BatchArrays, lines: np.ndarray) -> None:
        """Make lines of the batch hold nothing but padding, with all weights zero."""
        for line in lines:
            _pad(out, line, 0, 0, 0, self._rule.pad_id)


class Batches:
    """All batches of one phase of training over one split.

    Global row step·batch_size + k lies in epoch (row // rows_per_epoch); within an epoch a keyed
    permutation of the epoch's own rows gives the order. An epoch that has more rows than epoch 0
    leaves out some at random, one that has fewer repeats some. A batch may straddle epochs.

    Safe to call from several threads; every batch is a new set of arrays.
    """

    def __init__(
        self,
        split: "Split",
        plan_spec: PlanSpec,
        masking_spec: MaskingSpec,
        batch_size: int,
        special: "SpecialIds",
        vocab_size: int,
        cache_dir: str | os.PathLike[str],
        *,
        sources: Sequence[str] = (),
        languages: Sequence[str] = (),
    ) -> None:
        """`sources` and `languages` name the split's indices in errors. Plans epoch 0."""
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}: at least 1 is needed")
        self._spec, self._batch_size = plan_spec, batch_size
        self._plans = Plans(split, plan_spec, cache_dir, sources=sources, languages=languages)
        self.rows_per_epoch = self._plans.rows
        self._assembler = Assembler(
            split.tokens, special, vocab_size, masking_spec, plan_spec.seq_length
        )

    @property
    def batches_once(self) -> int:
        """How many calls of `once` see every row."""
        return -(-self.rows_per_epoch // self._batch_size)

    def batch(self, step: int, rows: Sequence[int] | np.ndarray | None = None) -> Batch:
        """Rows `rows` of the global batch of a step, all of them by default; see `BatchArrays`.

        The global batch is the same whichever rows are asked for, in whatever order, by anybody.
        """
        lines = self._checked(step, rows)
        epochs, places = np.divmod(step * self._batch_size + lines, self.rows_per_epoch)
        out = self._assembler.empty(len(lines))
        for epoch in np.unique(epochs).tolist():
            here = np.flatnonzero(epochs == epoch)
            plan = self._plans.epoch(epoch)
            order = self._key(epoch, ORDER)
            chosen = permute(order, places[here] % plan.rows, plan.rows)
            self._assembler.fill(out, here, plan, chosen, self._key(epoch, MASKING))
            if places[here].max() >= self.rows_per_epoch // 2:
                self._plans.prepare(epoch + 1)
        return out._asdict()

    def once(self, index: int, rows: Sequence[int] | np.ndarray | None = None) -> Batch:
        """Batch `index` of one pass over epoch 0: one fixed random order, always masked alike.

        Rows past the end are padding with all weights zero, so that every row counts exactly once.
        """
        places = index * self._batch_size + self._checked(index, rows)
        out = self._assembler.empty(len(places))
        inside = places < self.rows_per_epoch
        chosen = permute(self._key(0, ORDER), places[inside], self.rows_per_epoch)
        self._assembler.fill(
            out, np.flatnonzero(inside), self._plans.epoch(0), chosen, self._key(0, MASKING)
        )
        self._assembler.pad(out, np.flatnonzero(~inside))
        return out._asdict()

    def _checked(self, step: int, rows: Sequence[int] | np.ndarray | None) -> np.ndarray:
        if step < 0:
            raise ValueError(f"there is no step {step}")
        if rows is None:
            return np.arange(self._batch_size)
        lines = np.asarray(rows, np.int64).reshape(-1)
        if np.any((lines < 0) | (lines >= self._batch_size)):
            raise ValueError(f"rows must lie in [0, {self._batch_size})")
        return lines

    def _key(self, epoch: int, purpose: Purpose) -> np.uint64:
        return stream_key(self._spec.seed, self._spec.phase, epoch, purpose)


def prefetch(
    make: Callable[[int], T], start: int, stop: int, depth: int = 2
) -> Generator[tuple[int, T]]:
    """(step, make(step)) for start ≤ step < stop, made in a background thread.

    `depth` results wait at most while the next is made. An error in `make` is raised at its step,
    after all earlier steps were delivered. Closing the iterator, or dropping it, stops the thread.
    """
    if depth < 1:
        raise ValueError(f"depth {depth}: at least one result has to wait")
    ready: queue.Queue[tuple[int, T] | BaseException | None] = queue.Queue(maxsize=depth)
    closed = threading.Event()

    def put(item: tuple[int, T] | BaseException | None) -> None:
        while not closed.is_set():
            with contextlib.suppress(queue.Full):
                return ready.put(item, timeout=0.1)

    def produce() -> None:
        try:
            for step in range(start, stop):
                if closed.is_set():
                    return
                put((step, make(step)))
            put(None)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=produce, name="prefetch", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        closed.set()
        thread.join()
