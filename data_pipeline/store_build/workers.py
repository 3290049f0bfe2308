"""Runs independent jobs in a pool of processes, with a progress bar.

Processes are spawned, not forked: a fork copies the locks that other threads hold. A program that
calls this with more than one worker therefore needs `if __name__ == "__main__":`.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from bert_jax.errors import UserError
from bert_jax.extensions.modules import Module
from bert_jax.extensions.registry import added, repeat_all
from bert_jax.storage.progress import byte_bar

_REFRESH = 0.2  # seconds
_PARALLELISM = "TOKENIZERS_PARALLELISM"  # one worker is one core: the pool is the parallelism

Job = TypeVar("Job")
Report = Callable[[int], None]
_counter: Any = None  # bytes done by all workers in total; set in each worker by `_start`
_failed = ""  # why a module of the user could not be executed there


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(
    work: Callable[[Job, Report], None],
    jobs: Sequence[Job],
    *,
    total_bytes: int,
    done_bytes: int = 0,
    workers: int | None = None,
    title: str = "",
    progress: bool = True,
) -> None:
    """Calls `work(job, report)` for every job.

    Args:
        work: a module-level function (it is pickled); calls `report(bytes)` as it makes progress.
        total_bytes: the sum of all reports plus `done_bytes` from earlier runs.
        workers: processes; None uses every core, 1 stays in this process.
        title: label of the progress bar, which is on standard error.

    Raises:
        UserError: a worker process died.
        Exception: the first exception that `work` raised.
    """
    workers = min(workers or available_cores(), len(jobs))
    with byte_bar(title, total_bytes, done_bytes, progress) as update:
        if workers > 1:
            _run_pool(work, jobs, workers, lambda done: update(done_bytes + done))
        else:
            _run_here(work, jobs, lambda done: update(done_bytes + done))


def _run_here(
    work: Callable[[Job, Report], None], jobs: Sequence[Job], update: Callable[[int], None]
) -> None:
    done = 0

    def report(count: int) -> None:
        nonlocal done
        done += count
        update(done)

    before = os.environ.get(_PARALLELISM)
    os.environ[_PARALLELISM] = "false"
    try:
        for job in jobs:
            work(job, report)
    finally:
        if before is None:
            del os.environ[_PARALLELISM]
        else:
            os.environ[_PARALLELISM] = before


def _run_pool(
    work: Callable[[Job, Report], None],
    jobs: Sequence[Job],
    workers: int,
    update: Callable[[int], None],
) -> None:
    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0)
    pool = ProcessPoolExecutor(workers, context, _start, (counter, added()))
    try:
        pending: set[Future[None]] = {pool.submit(_call, work, job) for job in jobs}
        while pending:
            finished, pending = wait(pending, _REFRESH, FIRST_EXCEPTION)
            for future in finished:
                future.result()
            update(counter.value)
    except BrokenProcessPool:
        raise UserError(
            "a worker process died (killed, or out of memory); run the same command again to "
            "resume, with fewer --workers if memory ran out: finished shards are kept"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start(counter: Any, modules: Sequence[Module]) -> None:
    """Initializes a worker process. modules: of the user, that add rows."""
    global _counter, _failed
    _counter = counter
    try:
        repeat_all(modules)
    except Exception as error:  # user code may raise anything
        _failed = f"{type(error).__name__}: {error}"
    os.environ[_PARALLELISM] = "false"
    # Ctrl-C reaches every process of the terminal; a worker ends without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _call(work: Callable[[Job, Report], None], job: Job) -> None:
    if _failed:
        raise UserError(f"a module fails in a worker process: {' '.join(_failed.split())}")
    work(job, _report)


def _report(count: int) -> None:
    with _counter.get_lock():
        _counter.value += count
