"""Batches of whole examples, a pure function of the step, for training and evaluation.

All batches of a run have the same shape: as many rows as the fullest batch needs, so that one
program trains and one evaluates.

An example may have C sequences, such as a question with each of its choices. Then a row is T strips
of S positions, C or a multiple of it, each of which the encoder reads as a row of its own, and all
sequences of an example are in one row: rows are what devices and micro-batches divide, so a head
finds the sequences of an example together, whatever the mesh. Sizes: B rows, S positions, N
examples in a row.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from bert_jax.config.schema import PhaseConfig
from bert_jax.config.task_settings import Order
from bert_jax.data_pipeline.assemble import Batch
from bert_jax.data_pipeline.random.counter_rng import MASKING, fold_key, stream_key
from bert_jax.finetune.order import epoch_order, pack, spread, strips_of_rows
from bert_jax.finetune.tasks.encoding import Encoded, Targets


@dataclasses.dataclass(frozen=True)
class Layout:
    """Places of the examples of an epoch.

    Attributes:
        order: int64 [E], the examples batch by batch.
        rows: int64 [E], the row of each within its batch, in the same order.
        strips: int64 [E, C], that of each sequence of each example, by the example's index.
        most_rows: of a batch.
        most_examples: of a row.
    """

    order: np.ndarray
    rows: np.ndarray
    strips: np.ndarray
    most_rows: int
    most_examples: int


class ExampleBatches:
    """The batches of a split; see `run_data.TrainBatches`. Thread-safe.

    Args:
        targets: of the same examples.
        phase: `batch_size` examples are packed into rows of strips of `row_tokens`, at most
            `examples_per_row` in each; one in each row if that is 1, a sequence in each strip. Rows
            of C strips unless more are better filled, which a `row_length` rules out.
        steps: of the run; the rows of a batch are enough for all of them.
        check: called for each epoch with the indices of the examples of each of its batches.
        parts: the rows are a multiple of it.
        padding_reads: whether padding attends to the example of its row and has positions, as in
            transformers; with one example in a row.
    """

    def __init__(
        self,
        encoded: Encoded,
        targets: Targets,
        phase: PhaseConfig,
        how: Order,
        seed: int,
        pad: int,
        *,
        steps: int,
        parts: int,
        padding_reads: bool = False,
        check: Callable[[Iterable[np.ndarray]], object] = lambda batches: None,
    ) -> None:
        self._encoded, self._phase, self._padding_reads = encoded, phase, padding_reads
        self._how, self._seed, self._pad = how, seed, pad
        self.sequences = encoded.sequences
        self._lengths = encoded.lengths.reshape(-1, encoded.sequences)
        self.lengths = self._lengths.sum(1)  # tokens of each example
        self.rows_per_epoch = len(self.lengths)
        tokens = {"input_ids": encoded.ids, "token_type_ids": encoded.types}
        first = {"cls_positions": np.zeros(self._lengths.size, np.int32)}
        self._arrays = Targets(
            {**tokens, **targets.of_tokens},
            targets.of_examples,
            {**first, **targets.positions},
            targets.drawn,
        )
        self.steps_per_epoch = -(-self.rows_per_epoch // phase.batch_size)
        self.strips = self._best_strips()
        self._layout = functools.lru_cache(maxsize=3)(self._planned)
        needed = self._examples = 0
        for epoch in range(max(1, -(-steps // self.steps_per_epoch))):
            layout = self._layout(epoch)
            needed = max(needed, layout.most_rows)
            self._examples = max(self._examples, layout.most_examples)
            left = steps - epoch * self.steps_per_epoch
            check(self._batches_of(layout.order[: left * phase.batch_size]))
        self.rows = -(-needed // parts) * parts

    @property
    def shape(self) -> PhaseConfig:
        """The phase with the rows of a batch and the most examples of a row."""
        return dataclasses.replace(
            self._phase, batch_size=self.rows, examples_per_row=self._examples
        )

    def compile_ahead(self) -> None:
        """Nothing is compiled."""

    def fill_rate(self) -> tuple[float, float]:
        """Returns the fraction of tokens that are no padding, and an upper bound: that of batches
        whose examples could be cut anywhere."""
        tokens, steps = int(self.lengths.sum()), self.steps_per_epoch
        width = self._phase.row_tokens * self.strips
        least = -(-tokens // (steps * width)) if self._phase.examples_per_row > 1 else self.rows
        return tokens / (steps * self.rows * width), tokens / (steps * max(least, 1) * width)

    def batch(self, step: int, rows: Sequence[int] | np.ndarray | None = None) -> Batch:
        """Returns rows `rows` (default: all) of the batch of a step.

        input_ids, token_type_ids, example_ids (that of a sequence in its row, from 1; 0 = padding),
        position_ids: int32 [B, S], with several sequences [B, T, S]; cls_positions: int32 [B, N·C],
        through all strips of the row; and the targets, 0 at padding and in empty slots: those of
        tokens, and what is drawn, as input_ids, positions as cls_positions, those of examples
        [B, N, …]. What is drawn depends on the seed, the epoch and the example alone. With
        `padding_reads` also reading_ids, int32 [B, S], see `PretrainingModel`.
        """
        epoch, index = divmod(step, self.steps_per_epoch)
        wanted = np.arange(self.rows) if rows is None else np.asarray(rows, np.int64).reshape(-1)
        out = self._empty(len(wanted))
        places, strips = self.places(epoch, index), self._layout(epoch).strips
        key = stream_key(self._seed, 0, epoch, MASKING)
        for line, row in enumerate(wanted.tolist()):
            ends = [0] * self.strips
            for slot, example in enumerate(places[row]):
                self._write(out, line, slot, example, strips[example].tolist(), ends, key)
        if self.sequences > 1:
            own = (*self._arrays.of_tokens, *self._arrays.drawn)
            for name in (*own, "example_ids", "position_ids"):
                out[name] = out[name].reshape(len(wanted), self.strips, self._phase.row_tokens)
        return out

    def _batches_of(self, order: np.ndarray) -> Iterator[np.ndarray]:
        """Yields the examples of each batch of an epoch."""
        size = self._phase.batch_size
        return (order[start : start + size] for start in range(0, len(order), size))

    def _best_strips(self) -> int:
        phase, number = self._phase, self.sequences
        if phase.examples_per_row == 1 or phase.row_tokens > phase.seq_length or number == 1:
            return number
        size = phase.batch_size
        order = epoch_order(self.lengths, size, self._how, self._seed, 0)
        limits = phase.row_tokens, phase.examples_per_row
        return strips_of_rows(order, self._lengths, size, *limits)

    def slots(self, slot: int) -> int | slice:
        """Returns where a row's array of sequences has those of its example in a slot."""
        first = slot * self.sequences
        return slot if self.sequences == 1 else slice(first, first + self.sequences)

    def places(self, epoch: int, index: int) -> list[list[int]]:
        """Returns the examples of each row of a batch, in the order of their slots."""
        layout, size = self._layout(epoch), self._phase.batch_size
        rows: list[list[int]] = [[] for _ in range(self.rows)]
        own = slice(index * size, (index + 1) * size)
        pairs = zip(layout.order[own].tolist(), layout.rows[own].tolist(), strict=True)
        for example, row in pairs:
            rows[row].append(example)
        return rows

    def _planned(self, epoch: int) -> Layout:
        lengths, size = self._lengths, self._phase.batch_size
        order = epoch_order(self.lengths, size, self._how, self._seed, epoch)
        if self._phase.examples_per_row == 1:
            strips = np.broadcast_to(np.arange(self.sequences), lengths.shape)
            return Layout(order, np.arange(len(order)) % size, strips, min(size, len(order)), 1)
        limits = self._phase.row_tokens, self._phase.examples_per_row, self.strips
        if self._how == "strata":
            order = spread(order, lengths, size, *limits)
        packed = [pack(lengths[batch], *limits) for batch in self._batches_of(order)]
        strips = np.empty_like(lengths)
        strips[order] = np.concatenate([own for _, own in packed])
        return Layout(
            order,
            np.concatenate([rows for rows, _ in packed]),
            strips,
            most_rows=max(int(rows.max()) for rows, _ in packed) + 1,
            most_examples=max(int(np.bincount(rows).max()) for rows, _ in packed),
        )

    def _empty(self, rows: int) -> Batch:
        def zeros(width: int, values: Mapping[str, np.ndarray]) -> Batch:
            return {
                name: np.zeros((rows, width, *array.shape[1:]), array.dtype)
                for name, array in values.items()
            }

        tokens, slots = self._phase.row_tokens * self.strips, self._examples
        arrays = self._arrays
        out = zeros(tokens, arrays.of_tokens) | zeros(slots, arrays.of_examples)
        out |= zeros(slots * self.sequences, arrays.positions)
        out["input_ids"][:] = self._pad
        for name in (*arrays.drawn, "example_ids", "position_ids"):
            out[name] = np.zeros((rows, tokens), np.int32)
        if self._padding_reads:
            out["position_ids"][:] = np.arange(tokens)
            out["reading_ids"] = np.zeros((rows, tokens), np.int32)
        return out

    def _write(
        self,
        out: Batch,
        line: int,
        slot: int,
        example: int,
        strips: list[int],
        ends: list[int],
        key: np.uint64,
    ) -> None:
        """Writes an example into a row, each of its sequences at the end of its strip; key: of the
        draws of the epoch."""
        for name, values in self._arrays.of_examples.items():
            out[name][line, slot] = values[example]
        for number, strip in enumerate(strips):
            sequence, place = example * self.sequences + number, slot * self.sequences + number
            first, end = self._encoded.starts[sequence : sequence + 2].tolist()
            at = strip * self._phase.row_tokens + ends[strip]
            here = np.s_[line, at : at + end - first]
            for name, values in self._arrays.of_tokens.items():
                out[name][here] = values[first:end]
            for name, draw in self._arrays.drawn.items():
                own_key = np.uint64(fold_key(key, sequence))
                out[name][here] = draw(own_key, self._encoded.ids[first:end])
            for name, values in self._arrays.positions.items():
                out[name][line, place] = at + values[sequence]
            out["example_ids"][here] = place + 1
            if self._padding_reads:
                out["reading_ids"][line] = 1
            out["position_ids"][here] = np.arange(end - first)
            ends[strip] += end - first
