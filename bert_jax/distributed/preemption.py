"""Asked to stop: all processes agree on the same place to stop at, within the grace period.

The request is a signal to any process (SIGTERM, Ctrl-C, SIGHUP from a terminal that closes), or the
maintenance notice of the machine.
What a run does is a sequence of pieces, steps and batches of evaluations, the same in every
process, and before each piece every process calls `begin`. When a request is known, every process
says how many pieces it has begun; the largest number is where all of them stop.
"""

import http.client
import itertools
import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bert_jax.distributed.peers import ProcessGroup
from bert_jax.distributed.watchdog import ProcessExit
from bert_jax.errors import LOST, STOPPED

# What Compute Engine says of itself: metadata path -> what it says while all is well.
_NOTICES = {"maintenance-event": "NONE", "preempted": "FALSE"}
_POLL = 5.0  # seconds
_ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_AT_ONCE = "interrupted at once; the same command goes on from the newest checkpoint"


class StopRequestedError(Exception):
    """Raised out of a wait, at the place that all processes agreed to stop at."""


class PreemptionHandler:
    """Requests to stop, and the place where all processes do."""

    def __init__(self, peers: ProcessGroup, grace: float, process_exit: ProcessExit | None = None):
        """Args:
        grace: seconds from a request to having saved.
        process_exit: ends the process when no step was done yet, and when the grace period is
            over; None: nothing ends it.
        """
        self.peers, self._grace, self._process_exit = peers, grace, process_exit
        self._lock = threading.Lock()
        self._begun = 0  # pieces of work
        self._agreed: int | None = None  # pieces to do in all
        self.why = ""

    def begin(self) -> None:
        """The next piece of work begins.

        Raises:
            StopRequestedError: it must not; in every process at the same piece.
        """
        with self._lock:
            self._check()
            self._begun += 1

    def check(self) -> None:
        """Raises StopRequestedError where the next piece must not begin; for use while waiting."""
        with self._lock:
            self._check()

    def _check(self) -> None:
        if self._agreed is not None and self._begun >= self._agreed:
            raise StopRequestedError

    def request(self, why: str) -> None:
        """Asks all processes to stop; from any thread, may come again."""
        with self._lock:
            if self.why:
                return
            self.why = why
            if self._process_exit and not self._begun:
                self._process_exit.end(
                    STOPPED, f"{why}: stopped before the first step, nothing is lost"
                )
        if self.peers.num_processes == 1:
            self.agree(why)
        else:
            self.peers.put("stop", why)  # read by the heartbeat of every process, this one's too

    def agree(self, why: str) -> None:
        """Finds the place to stop at; called in every process once the request is known."""
        threading.Thread(target=self._end_in_time, name="grace", daemon=True).start()
        with self._lock:  # no piece begins meanwhile
            self.why = why
            if self._process_exit and not self._begun:
                self._process_exit.end(
                    STOPPED, f"{why}: stopped before the first step, nothing is lost"
                )
            if self.peers.num_processes == 1:
                self._agreed = self._begun
                return
            self.peers.put(f"begun/{self.peers.process_id}", str(self._begun))
            deadline = time.monotonic() + self._grace
            everywhere = range(self.peers.num_processes)
            try:
                begun = [int(self.peers.wait(f"begun/{p}", deadline)) for p in everywhere]
            except Exception:  # the grace period is over, or process 0 gone, which is said there
                return
            self._agreed = max(begun)

    def _end_in_time(self) -> None:
        time.sleep(self._grace)
        if self._process_exit:
            self._process_exit.end(
                LOST,
                f"{self.peers.name(self.peers.process_id)}: asked to stop ({self.why}), but not "
                f"saved within {self._grace:.0f} s (config.deadlines.grace); the same command goes "
                "on from the newest checkpoint",
                stacks=True,
            )

    @contextmanager
    def listening(self, say: Callable[[str], None]) -> Iterator[None]:
        """SIGTERM, SIGINT and SIGHUP are requests to stop; a second SIGINT interrupts at once. One
        that is ignored here already, as nohup and a shell's background jobs want, stays ignored.

        It is a second one where this very process was sent both: a signal to each process of a
        cluster is one request, however late it reaches the last of them.

        The signals are read by a thread, so that they are known while the main thread waits for a
        device or a compiler. Outside the main thread of a program nothing is listened to.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        ignored = [n for n in _ASKING if signal.getsignal(n) == signal.SIG_IGN]
        asking = [n for n in _ASKING if n not in ignored]
        if ignored:
            say(f"{', '.join(n.name for n in ignored)}: ignored since the start, and by this run")
        # SIGINTs: the thread misses none, the main thread may see them late, and two as one.
        heard, handled = itertools.count(), itertools.count()
        twice = threading.Event()

        def listen() -> None:
            while numbers := reader.recv(64):
                for number in numbers:
                    if number == signal.SIGINT and next(heard):
                        twice.set()
                        if self._process_exit:
                            self._process_exit.end(128 + number, _AT_ONCE)
                    elif number in asking:
                        self._note(signal.Signals(number), say)

        def interrupt(number: int, frame: Any) -> None:
            again = number == signal.SIGINT and (next(handled) or twice.is_set())
            if again and not self._process_exit:  # which ends it otherwise
                raise KeyboardInterrupt

        old = {number: signal.signal(number, interrupt) for number in asking}
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

    def _note(self, number: signal.Signals, say: Callable[[str], None]) -> None:
        how = "again" if number == signal.SIGINT else "twice"
        say(f"{number.name}: saves and preemption (Ctrl-C {how}: at once, unsaved)")
        self.request(f"{number.name} to {self.peers.name(self.peers.process_id)}")

    def watch_machine(self) -> None:
        """Polls the maintenance notice, where this is a machine of Compute Engine."""
        named = os.environ.get("GCE_METADATA_HOST")
        if named or self.peers.place.found_by in ("gcetpu", "gketpu"):
            host = named or "metadata.google.internal"
            threading.Thread(target=self._poll, args=(host,), name="notices", daemon=True).start()

    def _poll(self, host: str) -> None:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while not self.why:
            for path, well in _NOTICES.items():
                asked = urllib.request.Request(
                    f"http://{host}/computeMetadata/v1/instance/{path}",
                    headers={"Metadata-Flavor": "Google"},
                )
                try:
                    with direct.open(asked, timeout=2) as answer:
                        said = answer.read(200).decode(errors="replace").strip()
                except (OSError, http.client.HTTPException):
                    continue  # a machine that answers nothing has no notice
                if said and said != well:
                    machine = self.peers.name(self.peers.process_id)
                    self.request(f"{path} {said} of {machine}")
            time.sleep(_POLL)
