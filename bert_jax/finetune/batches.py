"""Batches of whole examples, a pure function of the step, for training and evaluation.

All batches of a run have the same shape: as many rows as the fullest batch needs, so that one
program trains and one evaluates. Sizes: B rows, S positions, N examples in a row.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.config.schema import PhaseConfig
from bert_jax.data_pipeline.assemble import Batch
from bert_jax.finetune.order import Order, epoch_order, pack, spread
from bert_jax.finetune.tasks.encoding import Encoded, Targets


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the examples of an epoch are.

    Attributes:
        order: int64 [E], the examples batch by batch.
        rows: int64 [E], the row of each within its batch, in the same order.
        most_rows: of a batch.
        most_examples: of a row.
    """

    order: np.ndarray
    rows: np.ndarray
    most_rows: int
    most_examples: int


class ExampleBatches:
    """The batches of a split; see `run_data.TrainBatches`. Thread-safe.

    Args:
        targets: of the same examples.
        phase: `batch_size` examples are packed into rows of `row_tokens`, at most
            `examples_per_row` in each; one in each row if that is 1.
        steps: of the run; the rows of a batch are enough for all of them.
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
    ) -> None:
        self._encoded, self._phase, self._padding_reads = encoded, phase, padding_reads
        self._how, self._seed, self._pad = how, seed, pad
        self.rows_per_epoch = len(encoded.lengths)
        tokens = {"input_ids": encoded.ids, "token_type_ids": encoded.types}
        first = {"cls_positions": np.zeros(self.rows_per_epoch, np.int32)}
        self._arrays = Targets(
            {**tokens, **targets.of_tokens}, targets.of_examples, {**first, **targets.positions}
        )
        self.steps_per_epoch = -(-self.rows_per_epoch // phase.batch_size)
        self._layout = functools.lru_cache(maxsize=3)(self._planned)
        epochs = range(max(1, -(-steps // self.steps_per_epoch)))
        layouts = [self._layout(epoch) for epoch in epochs]
        needed = max(layout.most_rows for layout in layouts)
        self.rows = -(-needed // parts) * parts
        self._examples = max(layout.most_examples for layout in layouts)

    @property
    def shape(self) -> PhaseConfig:
        """The phase with the rows of a batch and the most examples of a row."""
        return dataclasses.replace(
            self._phase, batch_size=self.rows, examples_per_row=self._examples
        )

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example."""
        return self._encoded.lengths

    def compile_ahead(self) -> None:
        """Nothing is compiled."""

    def fill_rate(self) -> tuple[float, float]:
        """Returns the fraction of tokens that are no padding, and an upper bound: that of batches
        whose examples could be cut anywhere."""
        tokens = int(self._encoded.lengths.sum())
        width, steps = self._phase.row_tokens, self.steps_per_epoch
        least = -(-tokens // (steps * width)) if self._phase.examples_per_row > 1 else self.rows
        return tokens / (steps * self.rows * width), tokens / (steps * max(least, 1) * width)

    def batch(self, step: int, rows: Sequence[int] | np.ndarray | None = None) -> Batch:
        """Returns rows `rows` (default: all) of the batch of a step.

        input_ids, token_type_ids, example_ids (from 1, 0 = padding), position_ids: int32 [B, S];
        cls_positions: int32 [B, N]; and those of the targets, 0 at padding and in empty slots. With
        `padding_reads` also reading_ids, int32 [B, S], see `PretrainingModel`.
        """
        epoch, index = divmod(step, self.steps_per_epoch)
        wanted = np.arange(self.rows) if rows is None else np.asarray(rows, np.int64).reshape(-1)
        out = self._empty(len(wanted))
        places = self.places(epoch, index)
        for line, row in enumerate(wanted.tolist()):
            at = 0
            for slot, example in enumerate(places[row]):
                at = self._write(out, line, slot, at, example)
        return out

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
        lengths, size = self.lengths, self._phase.batch_size
        order = epoch_order(lengths, size, self._how, self._seed, epoch)
        if self._phase.examples_per_row == 1:
            return Layout(order, np.arange(len(order)) % size, min(size, len(order)), 1)
        limits = self._phase.row_tokens, self._phase.examples_per_row
        if self._how == "strata":
            order = spread(order, lengths, size, *limits)
        starts = range(0, len(order), size)
        packed = [pack(lengths[order[start : start + size]], *limits) for start in starts]
        most = max(int(np.bincount(rows).max()) for rows in packed)
        return Layout(
            order, np.concatenate(packed), max(int(rows.max()) for rows in packed) + 1, most
        )

    def _empty(self, rows: int) -> Batch:
        def zeros(width: int, values: Mapping[str, np.ndarray]) -> Batch:
            return {
                name: np.zeros((rows, width, *array.shape[1:]), array.dtype)
                for name, array in values.items()
            }

        tokens, slots, arrays = self._phase.row_tokens, self._examples, self._arrays
        out = zeros(tokens, arrays.of_tokens) | zeros(slots, arrays.of_examples)
        out |= zeros(slots, arrays.positions)
        out["input_ids"][:] = self._pad
        for name in ("example_ids", "position_ids"):
            out[name] = np.zeros((rows, tokens), np.int32)
        if self._padding_reads:
            out["position_ids"][:] = np.arange(tokens)
            out["reading_ids"] = np.zeros((rows, tokens), np.int32)
        return out

    def _write(self, out: Batch, line: int, slot: int, at: int, example: int) -> int:
        """Writes an example into a row from position `at`; returns the position after it."""
        first, end = self._encoded.starts[example : example + 2].tolist()
        here = np.s_[line, at : at + end - first]
        for name, values in self._arrays.of_tokens.items():
            out[name][here] = values[first:end]
        for name, values in self._arrays.of_examples.items():
            out[name][line, slot] = values[example]
        for name, values in self._arrays.positions.items():
            out[name][line, slot] = at + values[example]
        out["example_ids"][here] = slot + 1
        if self._padding_reads:
            out["reading_ids"][line] = 1
        out["position_ids"][here] = np.arange(end - first)
        return at + end - first
