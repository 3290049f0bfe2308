"""Caches the plans of a phase in memory and on disk, under a hash of everything they depend on.

Resuming at any step is a lookup; a plan whose cache is lost or damaged is computed again.
"""

import dataclasses
import functools
import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bert_jax.data_pipeline.plan.column_files import LAYOUT, Put, find, keep, remove
from bert_jax.data_pipeline.plan.plan import COLUMNS, VERSION, Plan, PlanSpec, plan_epoch
from bert_jax.storage.digest import json_digest

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from bert_jax.data_pipeline.store.split import Split

KEPT: Final = 8  # cached epochs, in memory (mapped) and as files; each takes 0.4 bytes per token


def plan_digest(split: "Split", spec: PlanSpec, sources: Sequence[str]) -> str:
    """Returns the digest of everything that the plans of a phase depend on."""
    weighed = tuple(sources) if spec.source_weights else ()  # the split has only indices
    return json_digest((VERSION, LAYOUT, split.digest, dataclasses.asdict(spec), weighed))


class Plans:
    """The plans of all epochs of one phase, cached in `cache_dir`.

    Safe for concurrent use by several threads and processes. The most recently used epochs stay in
    memory; files of older epochs are removed, except epoch 0, which defines the number of rows of
    every epoch, and fixed plans (dupe_factor), which are used again.
    """

    def __init__(
        self,
        split: "Split",
        spec: PlanSpec,
        cache_dir: str | os.PathLike[str],
        *,
        sources: Sequence[str] = (),
        languages: Sequence[str] = (),
    ) -> None:
        self._split, self._spec = split, spec
        self._names = {"sources": sources, "languages": languages}
        self._cache_dir = Path(cache_dir)
        self._name = f"plan-{plan_digest(split, spec, sources)[:32]}"
        self._lock = threading.Lock()
        self._plans: dict[int, Future[Plan]] = {}  # least recently used first
        self._planner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="plan")

    @property
    def rows(self) -> int:
        """Number of rows of every epoch of the phase: that of epoch 0."""
        return self.epoch(0).rows

    def epoch(self, epoch: int) -> Plan:
        """Returns the plan of an epoch: from memory, from the disk cache, or computed now."""
        future, is_new = self._claim(self._spec.planned(epoch))
        if is_new:
            self._fulfil(self._spec.planned(epoch), future)
        return future.result()

    def prepare(self, epoch: int) -> None:
        """Computes the plan of an epoch in the background. If that fails, the next call of `epoch`
        computes it again, and raises the error."""
        future, is_new = self._claim(self._spec.planned(epoch))
        if is_new:
            self._planner.submit(self._fulfil, self._spec.planned(epoch), future)

    def _claim(self, epoch: int) -> tuple[Future[Plan], bool]:
        with self._lock:
            future = self._plans.pop(epoch, None)
            is_new = future is None
            self._plans[epoch] = future = future or Future()
            for other in [e for e, plan in self._plans.items() if plan.done()][:-KEPT]:
                del self._plans[other]
            return future, is_new

    def _fulfil(self, epoch: int, future: Future[Plan]) -> None:
        try:
            future.set_result(self._open_or_make(epoch))
        except BaseException as error:
            with self._lock:
                self._plans.pop(epoch, None)  # the next caller tries again
            future.set_exception(error)

    def _open_or_make(self, epoch: int) -> Plan:
        folder = self._folder(epoch)
        columns = find(folder, COLUMNS)
        if columns is None:
            if os.path.lexists(folder):
                _log.warning(f"{folder}: damaged plan; planning this epoch again")
            columns = keep(folder, COLUMNS, functools.partial(self._fill, epoch))
        if not self._spec.dupe_factor:
            self._remove_behind(epoch)
        return Plan(**columns)

    def _remove_behind(self, epoch: int) -> None:
        for folder in self._cache_dir.glob(f"{self._name}-*"):
            number = folder.name.removeprefix(f"{self._name}-")
            if number.isdecimal() and 0 < int(number) <= epoch - KEPT:
                remove(folder)

    def _fill(self, epoch: int, put: Put) -> None:
        plan_epoch(self._split, self._spec, epoch, put, **self._names)
        self._split.files.check()  # else a plan of other lengths gets this name

    def _folder(self, epoch: int) -> Path:
        return self._cache_dir / f"{self._name}-{epoch}"
