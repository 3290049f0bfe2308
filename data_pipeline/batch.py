"""Stateless batches: `Batches.batch(step, rows)` is a pure function of the step."""

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from bert_jax.data_pipeline.assemble import Assembler, Batch
from bert_jax.data_pipeline.masking.spec import MaskingSpec
from bert_jax.data_pipeline.pairing.modes import PAIRS
from bert_jax.data_pipeline.plan.cache import Plans
from bert_jax.data_pipeline.plan.packing import packing_bound
from bert_jax.data_pipeline.plan.plan import PlanSpec
from bert_jax.data_pipeline.random.counter_rng import MASKING, ORDER, permute, stream_key

if TYPE_CHECKING:
    from bert_jax.data_pipeline.store.split import Split
    from bert_jax.data_pipeline.tokenizer.tokenizer import SpecialIds

T = TypeVar("T")
_JOIN_TIMEOUT = 5.0  # seconds to wait for the thread when the iterator is closed


class EvaluationExamples(NamedTuple):
    """The examples of an evaluation, in its order: arrays [N]."""

    number: np.ndarray  # int64, in the plan: in the order of the text
    first_token: np.ndarray  # int64, its address in the split: of a pair, in the first segment
    source: np.ndarray  # uint16, of that token


class Batches:
    """All batches of one phase of training over one split.

    Global row step·batch_size + k belongs to epoch (row // rows_per_epoch); within an epoch, a
    keyed permutation of its rows gives the order. An epoch with more rows than epoch 0 skips some
    at random, one with fewer repeats some. A batch may span two epochs. With dupe_factor n,
    epoch e uses the pairs and masks of epoch e mod n, in its own order.

    Thread-safe; every batch is a new set of arrays.
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
        word_starts: np.ndarray | None = None,
        token_counts: np.ndarray | None = None,
        sources: Sequence[str] = (),
        languages: Sequence[str] = (),
    ) -> None:
        """Plans epoch 0.

        Args:
            word_starts: [V], see `Tokenizer.word_starts`; required if the masking `needs_words`.
            token_counts: [V], occurrences of each id in the training text, for unigram random
                tokens; None = the split's own counts.
            sources, languages: names of the split's indices, for error messages.

        Raises:
            ValueError: word_starts are required and missing.
        """
        self._assembler = Assembler(
            split.tokens,
            special,
            vocab_size,
            masking_spec,
            plan_spec.row_tokens or plan_spec.seq_length,
            plan_spec.row_predictions or masking_spec.max_predictions,
            plan_spec.examples_per_row,
            pairs=plan_spec.pairing in PAIRS,
            word_starts=word_starts,
            token_counts=split.token_counts if token_counts is None else token_counts,
        )
        self._spec, self._batch_size, self._files = plan_spec, batch_size, split.files
        self._plans = Plans(split, plan_spec, cache_dir, sources=sources, languages=languages)
        self.rows_per_epoch = self._plans.rows

    def compile_ahead(self) -> None:
        """Compiles the loops that fill a batch in a background thread, unless already compiled.

        A batch requested meanwhile waits for the compilation as usual, and raises its errors.
        """

        def fill_nothing() -> None:
            none, key = np.empty(0, np.int64), self._spec.key(0, MASKING)
            with contextlib.suppress(Exception):
                out = self._assembler.empty(0)
                self._assembler.fill(out, none, self._plans.epoch(0), none, key)

        threading.Thread(target=fill_nothing, name="compile batches", daemon=True).start()

    @property
    def batches_once(self) -> int:
        """Number of evaluation batches that cover every row of epoch 0 once."""
        return -(-self.rows_per_epoch // self._batch_size)

    def fill_rate(self) -> tuple[float, float]:
        """Returns the fraction of non-padding tokens (special tokens included) in the rows of epoch
        0, and an upper bound over all packings (with one example per row, both are equal)."""
        plan = self._plans.epoch(0)
        rate = plan.fill_rate(self._spec.limits.tokens)
        if self._spec.examples_per_row == 1:
            return rate, rate
        return rate, packing_bound(np.bincount(plan.lengths()), self._spec.slots, self._spec.limits)

    def specials_per_token(self) -> tuple[float, float]:
        """Returns the number of [CLS] and of [SEP] per text token in the rows of epoch 0."""
        plan = self._plans.epoch(0)
        text = int(plan.piece_length.sum(dtype=np.int64))
        both = int(plan.lengths().sum(dtype=np.int64)) - text
        return plan.examples / text, (both - plan.examples) / text

    def text_per_row(self) -> float:
        """Returns the mean tokens of text in a row of epoch 0, without special tokens."""
        text = int(self._plans.epoch(0).piece_length.sum(dtype=np.int64))
        return text / self.rows_per_epoch

    def batch(self, step: int, rows: Sequence[int] | np.ndarray | None = None) -> Batch:
        """Returns rows `rows` (default: all) of the global batch of a step; see `BatchArrays`.

        The global batch does not depend on which rows are requested, in which order or by which
        process.

        Raises:
            StorageError: the files of the split changed since they were opened.
        """
        self._files.check()
        lines = self._row_indices(step, rows)
        epochs, places = np.divmod(step * self._batch_size + lines, self.rows_per_epoch)
        out = self._assembler.empty(len(lines))
        for epoch in np.unique(epochs).tolist():
            in_epoch = np.flatnonzero(epochs == epoch)
            plan = self._plans.epoch(epoch)
            order = self._order(epoch)
            chosen = permute(order, places[in_epoch] % plan.rows, plan.rows)
            key = self._spec.key(epoch, MASKING)
            self._assembler.fill(out, in_epoch, plan, chosen, key, step)
            if places[in_epoch].max() >= self.rows_per_epoch // 2:
                self._plans.prepare(epoch + 1)
        return out.by_name()

    def evaluation_batch(self, index: int, rows: Sequence[int] | np.ndarray | None = None) -> Batch:
        """Returns batch `index` of one pass over epoch 0, in a fixed random order with fixed masks.

        Rows past the end are padding with all weights zero, so that every row counts exactly once.

        Raises:
            StorageError: as `batch`.
        """
        self._files.check()
        places = index * self._batch_size + self._row_indices(index, rows)
        out = self._assembler.empty(len(places))
        is_row = places < self.rows_per_epoch
        chosen = permute(self._order(0), places[is_row], self.rows_per_epoch)
        lines, key = np.flatnonzero(is_row), self._spec.key(0, MASKING)
        self._assembler.fill(out, lines, self._plans.epoch(0), chosen, key, index)
        self._assembler.pad(out, np.flatnonzero(~is_row))
        return out.by_name()

    def evaluation_examples(self, rows: int) -> "EvaluationExamples":
        """Returns what the first `rows` rows of the batches of `evaluation_batch` are made of; of
        rows with one example each."""
        plan = self._plans.epoch(0)
        chosen = permute(self._order(0), np.arange(rows), self.rows_per_epoch)
        examples = plan.row_example[plan.row_examples[chosen]]
        return EvaluationExamples(
            examples.astype(np.int64),
            plan.piece_start[plan.example_pieces[examples]],
            plan.example_source[examples],
        )

    def _row_indices(self, step: int, rows: Sequence[int] | np.ndarray | None) -> np.ndarray:
        if step < 0:
            raise ValueError(f"step is {step}, must be >= 0")
        if rows is None:
            return np.arange(self._batch_size)
        lines = np.asarray(rows, np.int64).reshape(-1)
        if np.any((lines < 0) | (lines >= self._batch_size)):
            raise ValueError(f"rows must be in [0, {self._batch_size})")
        return lines

    def _order(self, epoch: int) -> np.uint64:
        """The key of the row order: one per epoch, even where pairs and masks repeat."""
        return stream_key(self._spec.seed, self._spec.phase, epoch, ORDER)


def prefetch(
    make: Callable[[int], T],
    start: int,
    stop: int,
    depth: int = 2,
    *,
    while_waiting: Callable[[], None] = lambda: None,
) -> Generator[tuple[int, T]]:
    """Yields (step, make(step)) for start ≤ step < stop, computed in a background thread.

    At most `depth` finished results are buffered. An error in `make` is raised at its step, after
    all earlier steps were delivered. Closing or dropping the iterator stops the thread; a thread
    that is stuck is abandoned.

    Args:
        while_waiting: called before each result and every 0.1 s until the result is ready; an
            exception that it raises ends the iteration.
    """
    if depth < 1:
        raise ValueError(f"depth {depth}: must be at least 1")
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

    def take() -> tuple[int, T] | BaseException | None:
        while True:
            while_waiting()
            with contextlib.suppress(queue.Empty):
                return ready.get(timeout=0.1)

    try:
        while (item := take()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        closed.set()
        thread.join(_JOIN_TIMEOUT)
