"""A batch is a pure function of the step: `Batches.batch(step, rows)`. Nothing here has a state."""

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from bert_jax.data_pipeline.assemble import Assembler, Batch
from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.masking import MaskingSpec
from bert_jax.data_pipeline.pairing.modes import PAIRS
from bert_jax.data_pipeline.plan.cache import Plans
from bert_jax.data_pipeline.plan.packing import packing_bound
from bert_jax.data_pipeline.plan.plan import PlanSpec
from bert_jax.data_pipeline.random.counter_rng import MASKING, ORDER, permute, stream_key

if TYPE_CHECKING:
    from bert_jax.data_pipeline.store.split import Split
    from bert_jax.data_pipeline.tokenizer.tokenizer import SpecialIds

T = TypeVar("T")
_STUCK = 5.0  # seconds after which a batch in the making is not waited for any more


class Batches:
    """All batches of one phase of training over one split.

    Global row step·batch_size + k lies in epoch (row // rows_per_epoch); within an epoch a keyed
    permutation of the epoch's own rows gives the order. An epoch that has more rows than epoch 0
    leaves out some at random, one that has fewer repeats some. A batch may straddle epochs. With
    dupe_factor n, pairs and masks of epoch e are those of epoch e mod n, in an order of its own.

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
        word_starts: np.ndarray | None = None,
        token_counts: np.ndarray | None = None,
        span_boundary: bool = False,
        sources: Sequence[str] = (),
        languages: Sequence[str] = (),
    ) -> None:
        """Plans epoch 0.

        word_starts: bool [V], whether an entry begins a word; needed by all masking but "token".
        token_counts: [V], how often each id occurs in the training text, for unigram random tokens;
        None = the split's own. span_boundary: with the arrays of the span boundary objective.
        sources, languages: names of the split's indices, for errors. ValueError where word_starts
        are needed and missing.
        """
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}: at least 1 is needed")
        self._assembler = Assembler(
            split.tokens,
            special,
            vocab_size,
            masking_spec,
            plan_spec.row_tokens or plan_spec.seq_length,
            plan_spec.row_predictions or masking_spec.max_predictions,
            plan_spec.examples_per_row,
            pairs=plan_spec.pairing in PAIRS,
            span_boundary=span_boundary,
            word_starts=word_starts,
            token_counts=split.token_counts if token_counts is None else token_counts,
        )
        self._spec, self._batch_size, self._files = plan_spec, batch_size, split.files
        self._plans = Plans(split, plan_spec, cache_dir, sources=sources, languages=languages)
        self.rows_per_epoch = self._plans.rows

    def compile_ahead(self) -> None:
        """Has the loops that fill a batch compiled in the background, where that is not done yet.

        Whoever asks for a batch meanwhile waits for them as before, and meets their errors.
        """

        def fill_nothing() -> None:
            none, key = np.empty(0, np.int64), self._spec.key(0, MASKING)
            with contextlib.suppress(Exception):
                out = self._assembler.empty(0)
                self._assembler.fill(out, none, self._plans.epoch(0), none, key)

        threading.Thread(target=fill_nothing, name="compile batches", daemon=True).start()

    @property
    def batches_once(self) -> int:
        """How many calls of `once` see every row."""
        return -(-self.rows_per_epoch // self._batch_size)

    def fill(self) -> tuple[float, float]:
        """The share of real tokens, special ones included, in the rows of epoch 0; and the share
        that no packing of its examples could exceed (rows of one example: the same)."""
        plan = self._plans.epoch(0)
        fill = plan.fill(self._spec.limits.tokens)
        if self._spec.examples_per_row == 1:
            return fill, fill
        return fill, packing_bound(np.bincount(plan.lengths()), self._spec.slots, self._spec.limits)

    def specials_per_token(self) -> tuple[float, float]:
        """How many [CLS] and [SEP] stand in the rows of epoch 0 for each token of text."""
        plan = self._plans.epoch(0)
        text = int(plan.piece_length.sum(dtype=np.int64))
        both = int(plan.lengths().sum(dtype=np.int64)) - text
        return plan.examples / text, (both - plan.examples) / text

    def batch(self, step: int, rows: Sequence[int] | np.ndarray | None = None) -> Batch:
        """Rows `rows` of the global batch of a step, all of them by default; see `BatchArrays`.

        The global batch is the same whichever rows are asked for, in whatever order, by anybody.

        Raises:
            StorageError: the files of the split changed since they were opened.
        """
        self._files.check()
        lines = self._checked(step, rows)
        epochs, places = np.divmod(step * self._batch_size + lines, self.rows_per_epoch)
        out = self._assembler.empty(len(lines))
        for epoch in np.unique(epochs).tolist():
            here = np.flatnonzero(epochs == epoch)
            plan = self._plans.epoch(epoch)
            order = self._order(epoch)
            chosen = permute(order, places[here] % plan.rows, plan.rows)
            self._assembler.fill(out, here, plan, chosen, self._spec.key(epoch, MASKING))
            if places[here].max() >= self.rows_per_epoch // 2:
                self._plans.prepare(epoch + 1)
        return out.by_name()

    def evaluation_batch(self, index: int, rows: Sequence[int] | np.ndarray | None = None) -> Batch:
        """Batch `index` of one pass over epoch 0: one fixed random order, always masked alike.

        Rows past the end are padding with all weights zero, so that every row counts exactly once.
        Raises what `batch` does.
        """
        self._files.check()
        places = index * self._batch_size + self._checked(index, rows)
        out = self._assembler.empty(len(places))
        inside = places < self.rows_per_epoch
        chosen = permute(self._order(0), places[inside], self.rows_per_epoch)
        self._assembler.fill(
            out, np.flatnonzero(inside), self._plans.epoch(0), chosen, self._spec.key(0, MASKING)
        )
        self._assembler.pad(out, np.flatnonzero(~inside))
        return out.by_name()

    def _checked(self, step: int, rows: Sequence[int] | np.ndarray | None) -> np.ndarray:
        if step < 0:
            raise ValueError(f"there is no step {step}")
        if rows is None:
            return np.arange(self._batch_size)
        lines = np.asarray(rows, np.int64).reshape(-1)
        if np.any((lines < 0) | (lines >= self._batch_size)):
            raise ValueError(f"rows must lie in [0, {self._batch_size})")
        return lines

    def _order(self, epoch: int) -> np.uint64:
        """The key of the order of rows: each epoch's own, with fixed pairs and masks too."""
        return stream_key(self._spec.seed, self._spec.phase, epoch, ORDER)


def prefetch(
    make: Callable[[int], T],
    start: int,
    stop: int,
    depth: int = 2,
    *,
    while_waiting: Callable[[], None] = lambda: None,
) -> Generator[tuple[int, T]]:
    """(step, make(step)) for start ≤ step < stop, made in a background thread.

    `depth` results wait at most while the next is made. An error in `make` is raised at its step,
    after all earlier steps were delivered. Closing the iterator, or dropping it, stops the thread,
    or leaves it alone where it is stuck.

    Args:
        while_waiting: called before each result and every tenth of a second until it is there; what
            it raises ends the iteration.
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
        thread.join(_STUCK)
