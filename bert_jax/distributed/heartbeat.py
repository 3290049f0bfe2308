"""Heartbeats between the processes of a job, and notices that a process has ended.

Every process writes a heartbeat per second to JAX's key-value store, which process 0 serves, and
reads the notices to all: a request to stop, or a process that ended and why. Process 0 checks all
heartbeats, the others only process 0, so the traffic grows with the number of processes, not with
its square.
"""

import contextlib
import dataclasses
import json
import select
import threading
import time
from collections.abc import Callable

from bert_jax.distributed.peers import ProcessGroup
from bert_jax.distributed.watchdog import ProcessExit
from bert_jax.exit_codes import LOST
from bert_jax.runtime.activity import ActivityClock

_INTERVAL = 1.0  # seconds between heartbeats
_DETECTION = 30.0  # seconds to detect that another process is gone; usually far less
_CLOSING = 2.5  # seconds for a process that closed its connection to report why
_WRITING = 2.0  # seconds for a write to the store before the process exits without it
_RESUME = "run the same command again to resume from the newest checkpoint"


@dataclasses.dataclass
class _PeerState:
    """The last heartbeat of a process, and when it changed by this process's clock."""

    text: str = ""
    changed: float = 0.0
    closed: float = 0.0  # when its connection closed

    def describe(self) -> str:
        if not self.text:
            return "nothing"
        _, activity, seconds, step = json.loads(self.text)
        return f"{activity!r} for {seconds:.0f} s after step {step}"


class Heartbeat:
    """Threads that exchange heartbeats with the other processes and detect lost ones."""

    def __init__(
        self,
        peers: ProcessGroup,
        clock: ActivityClock,
        process_exit: ProcessExit,
        *,
        peer_timeout: float,
    ):
        """peer_timeout: seconds without a heartbeat after which a process counts as lost."""
        self._peers, self._clock, self._process_exit = peers, clock, process_exit
        self._timeout = peer_timeout
        now = time.monotonic()
        self._states = [_PeerState(changed=now) for _ in range(peers.num_processes)]
        self._answered = now  # when the store last answered
        self._over = threading.Event()
        self.on_stop: Callable[[str], None] = lambda notice: None  # called on a request to stop
        process_exit.before.append(self._notify)

    def start(self) -> None:
        threading.Thread(target=self._exchange, name="heartbeat", daemon=True).start()
        threading.Thread(target=self._check, name="check", daemon=True).start()
        threading.Thread(target=self._listen, name="connections", daemon=True).start()

    def wait_for_news(self) -> None:
        """Waits after a failed collective or store call; if another process is gone, this one
        exits in this call and reports it."""
        self._over.wait(_DETECTION)
        if any(state.closed for state in self._states):
            self._over.wait()

    def stop(self) -> None:
        """All processes have finished: a missing heartbeat is no longer an error."""
        self._over.set()

    def wait_for_others(self, seconds: float) -> None:
        """Waits in process 0, which serves the store, until all others are gone or can exit."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            closed = {str(process) for process, state in enumerate(self._states) if state.closed}
            if len(closed | set(self._peers.all("gone"))) >= self._peers.num_processes - 1:
                return
            time.sleep(0.05)

    def others(self) -> str:
        """Describes the processes known to be at another activity than this one."""
        if not self._peers.is_first:  # only process 0 reads all heartbeats
            reader = threading.Thread(target=self._try_read_heartbeats, daemon=True)
            reader.start()
            reader.join(2.0)
        mine = self._clock.now()[0]
        away = [
            f"{self._peers.name(p)}: {state.describe()}"
            for p, state in enumerate(self._states)
            if p != self._peers.process_id and f'"{mine}"' not in state.text and state.text
        ]
        return "; ".join(away[:8])

    def _exchange(self) -> None:
        """Writes and reads heartbeats; may block if the store does not answer."""
        peers, count, notified = self._peers, 0, False
        while not self._over.is_set():
            count += 1
            activity, seconds = self._clock.now()
            try:
                text = json.dumps([count, activity, round(seconds, 1), self._clock.step])
                peers.put(f"beats/{peers.process_id}", text)
                verdict, notice = peers.get("verdict"), peers.get("stop")
                if peers.is_first:
                    self._read_heartbeats()
                self._answered = time.monotonic()
            except Exception:  # JAX raises one type for everything: `_check` times out instead
                time.sleep(_INTERVAL)
                continue
            if verdict:
                self._follow(verdict)
            if notice and not notified:
                notified = True
                # In a thread: it waits for the others, while this one still reads heartbeats.
                threading.Thread(target=self.on_stop, args=(notice,), daemon=True).start()
            time.sleep(_INTERVAL)

    def _try_read_heartbeats(self) -> None:
        with contextlib.suppress(Exception):  # JAX raises one type for everything
            self._read_heartbeats()

    def _read_heartbeats(self) -> None:
        for process, text in self._peers.all("beats").items():
            known = self._states[int(process)]
            if text != known.text:
                known.text, known.changed = text, time.monotonic()

    def _check(self) -> None:
        """Ends the process if another one is silent for too long; never blocks on the store."""
        last_check = time.monotonic()
        while not self._over.wait(0.2):
            limit = self._timeout
            now, before = time.monotonic(), last_check
            last_check = now
            if now - before > limit / 2:
                # This process itself was suspended. If the others have given it up, it ends before
                # it writes anything more: they may be running again without it.
                if self._closed(0.0):
                    self._process_exit.end(LOST, self._suspended(now - before))
                self._answered += now - before
                for state in self._states:
                    state.changed += now - before
                continue
            for process, state in enumerate(self._states):
                if state.closed and now - state.closed > _CLOSING:
                    self._lost(process, "its connection closed")
            silent = now - self._answered
            if not self._peers.is_first and silent > limit:
                self._lost(0, f"silent for {silent:.0f} s")
            elif self._peers.is_first and silent < limit / 2:
                ages = [now - state.changed for state in self._states]
                worst = max(range(len(ages)), key=ages.__getitem__)
                if ages[worst] > limit:
                    self._lost(worst, f"silent for {ages[worst]:.0f} s")

    def _listen(self) -> None:
        while len(self._closed(None)) < len(self._peers.connections):
            pass

    def _closed(self, seconds: float | None) -> list[int]:
        """Returns the processes whose connections have closed; first waits up to `seconds` for one
        to close (None: without limit).

        Nothing is ever sent on them: a connection that is ready to read has closed.
        """
        states = {c: self._states[process] for process, c in self._peers.connections.items()}
        is_open = [connection for connection, state in states.items() if not state.closed]
        for connection in select.select(is_open, [], [], seconds)[0] if is_open else ():
            states[connection].closed = states[connection].closed or time.monotonic()
        return [process for process in self._peers.connections if self._states[process].closed]

    def _suspended(self, seconds: float) -> str:
        gone = ", ".join(map(self._peers.name, self._closed(0.0)[:8]))
        return (
            f"{self._peers.name(self._peers.process_id)} was stopped for {seconds:.0f} s, and "
            f"{gone} continued without it; {_RESUME}"
        )

    def _lost(self, process: int, how: str) -> None:
        state = self._states[process]
        last = f"; before that {state.describe()}" if state.text else ""
        self._process_exit.end(
            LOST,
            f"{self._peers.name(process)} is lost: {how}{last}; {_RESUME}",
            notify=process != 0,  # process 0 serves the store that notifies the others
        )

    def _follow(self, verdict: str) -> None:
        code, line, process, stacks = json.loads(verdict)
        if process != self._peers.process_id:
            self._try_put(f"gone/{self._peers.process_id}", "")
            line = f"{self._peers.name(process)}: {line}"
            self._process_exit.end(code, line, stacks=stacks, notify=False)

    def _notify(self, code: int, line: str) -> None:
        """Notifies the others that this process ends; process 0 waits until they know."""
        verdict = json.dumps([code, line, self._peers.process_id, self._process_exit.with_stacks])
        self._try_put("verdict", verdict)
        if self._peers.is_first:
            self.wait_for_others(4.0)

    def _try_put(self, key: str, text: str) -> None:
        """Writes to the store if it answers; once process 0 is gone, a call may never return."""

        def put() -> None:
            with contextlib.suppress(Exception):  # JAX raises one type for everything
                self._peers.put(key, text)

        writer = threading.Thread(target=put, name="writer", daemon=True)
        writer.start()
        writer.join(_WRITING)
