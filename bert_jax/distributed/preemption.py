"""Preemption: all processes agree to stop at the same step, within the grace period.

A request to stop is a signal to any process (SIGTERM, Ctrl-C, SIGHUP from a terminal that closes),
the maintenance notice of the machine, or a time limit. A run is a sequence of work items (steps and
evaluation batches), the same in every process, and every process calls `begin` before each item.
After a request, every process publishes the number of items it has begun; all stop at the largest
number: there `begin` raises, and the training loop saves (`training.phase_trainer`).
"""

import http.client
import itertools
import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bert_jax.distributed.peers import ProcessGroup
from bert_jax.distributed.watchdog import ProcessExit
from bert_jax.exit_codes import LOST, STOPPED
from bert_jax.runtime.log import logger

# Metadata paths of Compute Engine -> their values while no maintenance is due.
_NOTICES = {"maintenance-event": "NONE", "preempted": "FALSE"}
_POLL = 5.0  # seconds between polls
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_INTERRUPTED = (
    "interrupted without saving; run the same command again to resume from the newest checkpoint"
)


class StopRequestedError(Exception):
    """Raised at the work item that all processes agreed to stop at."""


class PreemptionHandler:
    """Receives requests to stop and makes all processes stop at the same work item."""

    def __init__(self, peers: ProcessGroup, grace: float, process_exit: ProcessExit | None = None):
        """grace: seconds from a request until the checkpoint is saved. process_exit: ends the
        process if no work item has begun, and when the grace period is over, if given."""
        self.peers, self._grace, self._process_exit = peers, grace, process_exit
        self._lock = threading.Lock()
        self._begun = 0  # work items begun
        self._stop_at: int | None = None  # total work items, once agreed
        self.why = ""

    def begin(self) -> None:
        """Begins the next work item.

        Raises:
            StopRequestedError: the run stops here; in every process at the same item.
        """
        with self._lock:
            self._check_locked()
            self._begun += 1

    def check(self) -> None:
        """Raises StopRequestedError if the next work item must not begin; for use while waiting."""
        with self._lock:
            self._check_locked()

    def _check_locked(self) -> None:
        if self._stop_at is not None and self._begun >= self._stop_at:
            raise StopRequestedError

    def request(self, why: str) -> None:
        """Asks all processes to stop; may be called from any thread and more than once."""
        with self._lock:
            if self.why:
                return
            self._note(why)
        if self.peers.num_processes == 1:
            self.agree(why)
        else:
            self.peers.put("stop", why)  # read by the heartbeat of every process, this one's too

    def request_at(self, when: float, why: str) -> threading.Timer:
        """Asks all processes to stop at a time of `time.monotonic`; returns a started timer."""
        timer = threading.Timer(max(0.0, when - time.monotonic()), self.request, (why,))
        timer.daemon = True
        timer.start()
        return timer

    def _note(self, why: str) -> None:
        """Stores why the job stops; ends the process if no work item has begun."""
        self.why = why
        if self._process_exit and not self._begun:
            self._process_exit.end(
                STOPPED, f"{why}: stopped before the first step, nothing is lost"
            )

    def agree(self, why: str) -> None:
        """Agrees on the work item to stop at; called in every process after a request."""
        threading.Thread(target=self._enforce_grace, name="grace", daemon=True).start()
        with self._lock:  # no work item begins meanwhile
            self._note(why)
            if self.peers.num_processes == 1:
                self._stop_at = self._begun
                return
            self.peers.put(f"begun/{self.peers.process_id}", str(self._begun))
            deadline = time.monotonic() + self._grace
            everywhere = range(self.peers.num_processes)
            try:
                begun = [int(self.peers.wait(f"begun/{p}", deadline)) for p in everywhere]
            except Exception:  # grace period over, or process 0 lost; both are reported elsewhere
                return
            self._stop_at = max(begun)

    def _enforce_grace(self) -> None:
        time.sleep(self._grace)
        if self._process_exit:
            self._process_exit.end(
                LOST,
                f"{self.peers.name(self.peers.process_id)}: asked to stop ({self.why}), but not "
                f"saved within {self._grace:.0f} s (config.deadlines.grace); run the same command "
                "again to resume from the newest checkpoint",
                stacks=True,
            )

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handles SIGTERM, SIGINT and SIGHUP as requests to stop; a second SIGINT exits without
        saving. A signal that is already ignored (nohup, a shell's background job) stays ignored.

        A SIGINT is the second only if this process received both: a signal to every process of a
        cluster is one request, however late it reaches the last of them.

        A thread reads the signals, so that they are handled while the main thread waits for a
        device or a compiler. Does nothing outside the main thread of a program.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        ignored = [n for n in _STOP_SIGNALS if signal.getsignal(n) == signal.SIG_IGN]
        handling = [n for n in _STOP_SIGNALS if n not in ignored]
        if ignored:
            names = ", ".join(n.name for n in ignored)
            logger.info(f"{names}: already ignored at the start, stays ignored")
        # SIGINTs: the thread misses none; the main thread may see them late, or two as one.
        received, handled = itertools.count(), itertools.count()
        twice = threading.Event()

        def listen() -> None:
            while numbers := reader.recv(64):
                for number in numbers:
                    if number == signal.SIGINT and next(received):
                        twice.set()
                        if self._process_exit:
                            self._process_exit.end(128 + number, _INTERRUPTED)
                    elif number in handling:
                        self._on_signal(signal.Signals(number))

        def interrupt(number: int, frame: Any) -> None:
            again = number == signal.SIGINT and (next(handled) or twice.is_set())
            if again and not self._process_exit:  # with it, `listen` ends the process
                raise KeyboardInterrupt

        old = {number: signal.signal(number, interrupt) for number in handling}
        old_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        listener = threading.Thread(target=listen, name="signals", daemon=True)
        listener.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in old.items():
                signal.signal(number, handler)
            writer.close()
            listener.join()
            reader.close()

    def _on_signal(self, number: signal.Signals) -> None:
        how = "again" if number == signal.SIGINT else "twice"
        logger.info(f"{number.name}: saves and stops (Ctrl-C {how}: stops without saving)")
        self.request(f"{number.name} to {self.peers.name(self.peers.process_id)}")

    def watch_machine(self) -> None:
        """Polls the maintenance notice if this is a Compute Engine machine."""
        named = os.environ.get("GCE_METADATA_HOST")
        if named or self.peers.topology.found_by in ("gcetpu", "gketpu"):
            host = named or "metadata.google.internal"
            threading.Thread(target=self._poll, args=(host,), name="notices", daemon=True).start()

    def _poll(self, host: str) -> None:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while not self.why:
            for path, normal in _NOTICES.items():
                request = urllib.request.Request(
                    f"http://{host}/computeMetadata/v1/instance/{path}",
                    headers={"Metadata-Flavor": "Google"},
                )
                try:
                    with direct.open(request, timeout=2) as answer:
                        value = answer.read(200).decode(errors="replace").strip()
                except (OSError, http.client.HTTPException):
                    continue  # no answer, no notice
                if value and value != normal:
                    machine = self.peers.name(self.peers.process_id)
                    self.request(f"{path} {value} of {machine}")
            time.sleep(_POLL)
