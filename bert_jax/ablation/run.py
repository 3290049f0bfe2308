"""Makes the runs of an ablation: each an ordinary `pretrain` through the launcher, then measured.

Several runs train at once, each in a process with its share of the cores. The kernel kills them
with this process, and the same command resumes them exactly. Other `ablate run` commands on the
same workdir make other runs: each run is locked while it is made.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_jax.ablation import spec, state, tasks
from bert_jax.ablation.layout import AblationDir
from bert_jax.ablation.spec import Ablation, Run
from bert_jax.errors import StoppedError, UserError, count
from bert_jax.exit_codes import DONE, NUMBERS, STOPPED, describe
from bert_jax.launch.process import Process
from bert_jax.runtime.console import clock
from bert_jax.runtime.log import logger
from bert_jax.storage.locks import FileLock, LockedError
from bert_jax.storage.remote import is_remote, storage_errors
from bert_jax.training.eval_setting import OWN
from bert_jax.workdir import lock

_PAUSE = 1.0  # seconds until a run that another process makes is looked at again


class Runner:
    """Makes the runs that are not done yet, `at_once` at a time."""

    def __init__(
        self,
        ablation: Ablation,
        workdir: AblationDir,
        runs: Sequence[Run],
        *,
        at_once: int = 1,
        options: Sequence[str] = (),
    ):
        """options: further flags of every `pretrain` and `evaluate`, such as --cpu_devices=1."""
        self._ablation, self._workdir, self._options = ablation, workdir, list(options)
        self._forms = {measure: ablation.form(measure) for measure in ablation.measures}
        self._at_once = at_once
        self._left, self._guard = list(runs), threading.Lock()
        self._processes: set[Process] = set()
        self._codes: dict[str, int] = {}  # of runs that failed
        self._is_stopping = False
        self._errors: list[Exception] = []  # of the threads
        self._seconds = {"pretrain": 0.0, "evaluate": 0.0, "scheduling": 0.0}  # of all workers

    def shares(self) -> str:
        """Returns in what share of the workers' time they trained, measured, and did neither."""
        total = sum(self._seconds.values())
        parts = (f"{name} {spent / total:.1%}" for name, spent in self._seconds.items() if total)
        return f"{clock(total)} of {count(self._at_once, 'worker')}: {', '.join(parts)}"

    def run(self) -> int:
        """Makes all runs; returns 0, or the exit code of a run that failed. A run that ends with 44
        is a result: the report names it.

        Raises:
            StoppedError: after a signal; all runs have saved.
            UserError: a file of a run is damaged.
        """
        workers = [
            threading.Thread(target=self._work, args=(cores,), name=f"run {number}")
            for number, cores in enumerate(_shares(self._at_once))
        ]
        with self._stopped_by_signals():
            for worker in workers:
                worker.start()
            for worker in workers:
                while worker.is_alive():
                    worker.join(0.2)
        if self._errors:
            raise self._errors[0]
        if self._is_stopping:
            raise StoppedError("all runs have saved; run the same command again to resume")
        return next(iter(self._codes.values()), DONE)

    @contextlib.contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        numbers = (signal.SIGTERM, signal.SIGINT)
        old = {number: signal.signal(number, lambda *_: self._stop()) for number in numbers}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _stop(self) -> None:
        """Asks all runs to save and end."""
        self._is_stopping = True
        for process in list(self._processes):
            with contextlib.suppress(ProcessLookupError):
                process.send(signal.SIGTERM)

    def _work(self, cores: set[int]) -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)  # of this thread, and of what it starts
        with self._spending("scheduling"):
            try:
                while not self._is_stopping and (run := self._next()):
                    if not self._make(run):  # another process makes it
                        self._left.append(run)
                        with self._spending(None):
                            time.sleep(_PAUSE)
            except Exception as error:  # raised by `run`, in its own thread
                self._errors.append(error)
                self._stop()

    @contextlib.contextmanager
    def _spending(self, what: str | None) -> Iterator[None]:
        """Counts the time within it as `what`, of the time within "scheduling" that contains it."""
        begun = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - begun
            with self._guard:
                if what:
                    self._seconds[what] += seconds
                if what != "scheduling":
                    self._seconds["scheduling"] -= seconds

    def _next(self) -> Run | None:
        with self._guard:
            return self._left.pop(0) if self._left else None

    def _make(self, run: Run) -> bool:
        """Trains and measures a run, unless it is done; False if another process makes it."""
        try:
            with _locked(self._workdir, run):
                return self._make_locked(run)
        except LockedError:
            return False

    def _make_locked(self, run: Run) -> bool:
        found = state.state_of(self._workdir, run, self._forms)
        if found.state == "damaged":
            raise UserError(f"{run.name}: {found.reason}")
        if found.state == "waiting":
            code = self._call(run, ["launch", "local", "run", "--processes=1", *self._train(run)])
            if code == NUMBERS or (code and self._note(run, code)):
                return True
            found = state.state_of(self._workdir, run, self._forms)
        if found.state == "trained" and not self._is_stopping:
            if self._note(run, self._call(run, self._evaluate(run))):
                return True
            found = state.state_of(self._workdir, run, self._forms)
        if found.state == "text":
            self._make_tasks(run)
        return True

    def _make_tasks(self, run: Run) -> None:
        """Fine-tunes a run for each task and measures it, but for those that are done."""
        for measure in self._ablation.tasks:
            path = self._workdir.values(run, measure)
            folder = str(self._workdir.run(run, measure))
            if path.exists():
                continue
            settings = tasks.settings_of(self._ablation.values, measure)
            start = str(self._workdir.run(run))
            train = tasks.words(settings, start, run.seed, folder)
            evaluate = ["evaluate", f"--workdir={folder}", f"--per_example={path}"]
            for words in (train, evaluate):
                if self._is_stopping or self._note(run, self._call(run, [*words, *self._options])):
                    return

    def _train(self, run: Run) -> list[str]:
        return [*spec.words(self._ablation, run, self._workdir.run(run)), *self._options]

    def _evaluate(self, run: Run) -> list[str]:
        texts = [self._forms[measure] for measure in self._ablation.texts]
        forms = [f"--form={form}" for form in (OWN, *texts)]
        return [
            "evaluate",
            f"--workdir={self._workdir.run(run)}",
            f"--per_example={self._workdir.values(run)}",
            *forms,
            *self._options,
        ]

    def _note(self, run: Run, code: int) -> bool:
        """Remembers the exit code of a failed run; returns whether it failed."""
        if code and not (self._is_stopping and code == STOPPED):
            self._codes[run.name] = code
            logger.error(f"{run.name}: {describe([(run.name, code)])}")
        return code != 0

    def _call(self, run: Run, words: Sequence[str]) -> int:
        """Runs a command of bert-jax with its output behind the name of the run."""
        logger.info(f"{run.name}: {words[0]}")
        out, its_out = os.pipe()
        command = [sys.executable, "-m", "bert_jax", *words]
        try:
            process = Process(command, os.environ, out=its_out, err=its_out)
        finally:
            os.close(its_out)
        self._processes.add(process)
        if self._is_stopping:  # since the command was prepared
            self._stop()
        with (
            self._spending("evaluate" if words[0] == "evaluate" else "pretrain"),
            open(out, errors="replace") as lines,
        ):
            for line in lines:
                print(f"{run.name} | {line.rstrip()}", flush=True)
            code = process.close()
        self._processes.discard(process)
        return code


def _shares(at_once: int) -> list[set[int]]:
    """Returns the cores of each of `at_once` processes; with fewer cores they share them."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    if at_once > len(cores):
        return [set(cores)] * at_once
    return [set(cores[number::at_once]) for number in range(at_once)]


@contextlib.contextmanager
def _locked(workdir: AblationDir, run: Run) -> Iterator[None]:
    """Holds the lock of a run; buckets have none. Raises LockedError if another process has it."""
    path = workdir.lock(run)
    if is_remote(path):
        yield
        return
    with FileLock(Path(path)) as file_lock:
        with storage_errors(path, "cannot be written"):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            file_lock.acquire()
        trainer = workdir.run(run).lock
        if lock.is_locked(trainer):  # started by another launcher
            raise LockedError(str(trainer))
        yield
