"""`bert-jax` in processes that a benchmark waits for, several at once, and the time they take."""

import contextlib
import datetime
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import harness

J, T = TypeVar("J"), TypeVar("T")
CORES = 2  # that a run with a clock is kept to
ONE_CORE = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}  # environment of a run on one


def run_command(
    words: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    each_second: Callable[[], None] = lambda: None,
) -> None:
    """Runs `bert-jax`, its output added to a file; ends the program with its error if it fails.

    A signal to end is left to the command, which may save first, if the main thread waits for it.
    """
    in_main = threading.current_thread() is threading.main_thread()
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "bert_jax", *words]
    with log.open("a") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, env={**os.environ, **(environment or {})}
        )
        if in_main:
            before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        code = None
        while code is None:
            # A terminal sends Ctrl-C to the command as well.
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                code = process.wait(1)
            each_second()
        if in_main:
            signal.signal(signal.SIGTERM, before)
    if code:
        last = log.read_text().strip().splitlines()[-1:]
        harness.fail(f"bert-jax {words[0]} ended with code {code}, see {log}: {''.join(last)}")


def run_each(work: Callable[[J], T], jobs: Sequence[J], at_once: int) -> Iterator[T]:
    """Yields what each job gives, in their order; `at_once` above 1: in threads, of which each, and
    what it starts, has a core of its own. Ends the program if there are fewer cores."""
    if at_once == 1:
        yield from map(work, jobs)
        return
    cores: queue.SimpleQueue[int] = queue.SimpleQueue()
    if hasattr(os, "sched_setaffinity"):
        own = sorted(os.sched_getaffinity(0))
        if at_once > len(own):
            harness.fail(f"--at_once={at_once}: there are {len(own)} cores")
        for core in own:
            cores.put(core)

    def take_core() -> None:
        if not cores.empty():
            os.sched_setaffinity(0, [cores.get()])

    with ThreadPoolExecutor(at_once, initializer=take_core) as pool:
        futures = [pool.submit(work, job) for job in jobs]
        try:
            for future in futures:
                yield future.result()
        finally:  # one has failed
            pool.shutdown(cancel_futures=True)


class Clock:
    """The seconds that each stage of a run has taken, also before it was interrupted.

    Attributes:
        record: what its file has: the request, the day, the processor and the commit of the first
            start, and the seconds.
    """

    def __init__(self, path: Path, request: dict[str, Any]):
        """Raises UserError if the folder has something else, or a run of another request."""
        from bert_jax.errors import UserError
        from bert_jax.storage import json_record

        self.path = path
        try:
            known = json_record.read_if_there(path, {"request": dict, "seconds": {str: float}})
        except ValueError as error:
            raise UserError(f"{path}: damaged ({error}); give a new folder") from None
        if known is None and path.parent.is_dir() and any(path.parent.iterdir()):
            raise UserError(
                f"--out={path.parent}: has files, but no run of this; give a new folder"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        self.record = known or {
            "request": request,
            "date": str(datetime.date.today()),
            "processor": f"{harness.processor()}, {CORES} of {os.cpu_count()} cores",
            "commit": commit(path.parent),
            "seconds": {},
        }
        for name, value in request.items():
            if (old := self.record["request"].get(name)) != value:
                raise UserError(
                    f"--out={path.parent}: has a run of {name}={old}, not {value}; give another"
                )
        self.save()

    def save(self) -> None:
        from bert_jax.storage import atomic

        atomic.write_text(self.path, json.dumps(self.record, indent=2) + "\n")

    @property
    def seconds(self) -> dict[str, float]:
        return self.record["seconds"]

    def run(self, stage: str, words: Sequence[str], is_done: Callable[[], bool]) -> None:
        """Runs `bert-jax` unless the stage is done; its time is in the file every second."""
        before, start = self.seconds.get(stage, 0.0), time.monotonic()

        def tick() -> None:
            self.seconds[stage] = before + time.monotonic() - start
            self.save()

        if not is_done():
            run_command(words, self.path.with_name(f"{stage}.log"), each_second=tick)
        print(f"# {stage}: {self.seconds.get(stage, 0.0):.0f} s", flush=True)


def commit(out: Path) -> str:
    """Returns the commit of this clone; changes of the table and in `out` do not count."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(harness.ROOT), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    others = [":!docs/speedrun.md"]
    if out.is_relative_to(harness.ROOT):
        others.append(f":!{out.relative_to(harness.ROOT).as_posix()}")
    changed = git("status", "--porcelain", "--untracked-files=all", "--", ".", *others)
    return (git("rev-parse", "--short", "HEAD") or "unknown") + " and changes" * bool(changed)
