"""Signs of life between the processes of a job, and what they are told of one another's end.

Every process writes a beat a second into JAX's key-value store, which process 0 serves, and reads
what has been said to all: that somebody asked to stop, or that a process ended and why. Process 0
looks at all beats, the others only at process 0: so the traffic grows with the number of processes,
not with its square.
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
from bert_jax.errors import LOST
from bert_jax.runtime.activity import ActivityClock

_INTERVAL = 1.0  # seconds between beats
_NEWS = 30.0  # seconds in which it is known here that another process is gone; far less as a rule
_PARTING = 2.5  # seconds in which a process that closed its connection may have said why


@dataclasses.dataclass
class _Beat:
    """The last sign of life of a process, and when it changed by this process's clock."""

    text: str = ""
    changed: float = 0.0
    closed: float = 0.0  # when its connection did

    def describe(self) -> str:
        if not self.text:
            return "nothing"
        count, activity, seconds, step = json.loads(self.text)
        del count
        return f"{activity!r} for {seconds:.0f} s after step {step}"


class Heartbeat:
    """The thread that talks to the other processes."""

    def __init__(
        self,
        peers: ProcessGroup,
        clock: ActivityClock,
        process_exit: ProcessExit,
        *,
        peer_timeout: float,
    ):
        """peer_timeout: seconds of silence after which another process is taken to be gone."""
        self._peers, self._clock, self._process_exit = peers, clock, process_exit
        self._timeout = peer_timeout
        now = time.monotonic()
        self._beats = [_Beat(changed=now) for _ in range(peers.num_processes)]
        self._answered = now  # when the store last did
        self._over = threading.Event()
        self.on_stop: Callable[[str], None] = lambda notice: None  # somebody asked to stop
        process_exit.before.append(self._tell)

    def start(self) -> None:
        threading.Thread(target=self._talk, name="heartbeat", daemon=True).start()
        threading.Thread(target=self._judge, name="judge", daemon=True).start()
        threading.Thread(target=self._listen, name="connections", daemon=True).start()

    def wait_for_news(self) -> None:
        """A collective failed here, or the store. If that is because another process is gone, this
        one ends in here with a line that says so."""
        self._over.wait(_NEWS)
        if any(beat.closed for beat in self._beats):
            self._over.wait()

    def stop(self) -> None:
        """All processes are through: silence is no sign of death any more."""
        self._over.set()

    def wait_for_others(self, seconds: float) -> None:
        """In process 0, which serves them: until all others are gone or know that they can go."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            closed = {str(process) for process, beat in enumerate(self._beats) if beat.closed}
            if len(closed | set(self._peers.all("gone"))) >= self._peers.num_processes - 1:
                return
            time.sleep(0.05)

    def others(self) -> str:
        """Where the processes are that are not where this one is, as far as it is known."""
        if not self._peers.is_first:  # only process 0 follows them all
            reader = threading.Thread(target=self._read_beats_if_possible, daemon=True)
            reader.start()
            reader.join(2.0)
        mine = self._clock.now()[0]
        away = [
            f"{self._peers.name(p)}: {beat.describe()}"
            for p, beat in enumerate(self._beats)
            if p != self._peers.process_id and f'"{mine}"' not in beat.text and beat.text
        ]
        return "; ".join(away[:8])

    def _talk(self) -> None:
        """Reads and writes; may be held up by a store that does not answer."""
        peers, count, told = self._peers, 0, False
        while not self._over.is_set():
            count += 1
            activity, seconds = self._clock.now()
            try:
                beat = json.dumps([count, activity, round(seconds, 1), self._clock.step])
                peers.put(f"beats/{peers.process_id}", beat)
                verdict, notice = peers.get("verdict"), peers.get("stop")
                if peers.is_first:
                    self._read_beats()
                self._answered = time.monotonic()
            except Exception:  # JAX raises one type for everything: no answer is judged by its age
                time.sleep(_INTERVAL)
                continue
            if verdict:
                self._follow(verdict)
            if notice and not told:
                told = True
                # It waits for the others, while their beats and their ends are still to be read.
                threading.Thread(target=self.on_stop, args=(notice,), daemon=True).start()
            time.sleep(_INTERVAL)

    def _read_beats_if_possible(self) -> None:
        with contextlib.suppress(Exception):  # JAX raises one type for everything
            self._read_beats()

    def _read_beats(self) -> None:
        for process, text in self._peers.all("beats").items():
            known = self._beats[int(process)]
            if text != known.text:
                known.text, known.changed = text, time.monotonic()

    def _judge(self) -> None:
        """Ends the process when another one is silent for too long; never waits for anybody."""
        looked = time.monotonic()
        while not self._over.wait(0.2):
            limit = self._timeout
            now, before = time.monotonic(), looked
            looked = now
            if now - before > limit / 2:
                # This process itself was stopped. If the others have given it up, it ends before it
                # writes anything more: they may be at work again, without it.
                if self._look(0.0):
                    self._process_exit.end(LOST, self._late(now - before))
                self._answered += now - before
                for beat in self._beats:
                    beat.changed += now - before
                continue
            for process, beat in enumerate(self._beats):
                if beat.closed and now - beat.closed > _PARTING:
                    self._lost(process, "its connection closed")
            silent = now - self._answered
            if not self._peers.is_first and silent > limit:
                self._lost(0, f"silent for {silent:.0f} s")
            elif self._peers.is_first and silent < limit / 2:
                ages = [now - beat.changed for beat in self._beats]
                worst = max(range(len(ages)), key=ages.__getitem__)
                if ages[worst] > limit:
                    self._lost(worst, f"silent for {ages[worst]:.0f} s")

    def _listen(self) -> None:
        while len(self._look(None)) < len(self._peers.connections):
            pass

    def _look(self, seconds: float | None) -> list[int]:
        """Waits for a connection to close, None: for ever; the processes whose connections have.

        Nothing is ever said on them: one that is ready to read has closed.
        """
        of = {connection: process for process, connection in self._peers.connections.items()}
        still = [connection for connection in of if not self._beats[of[connection]].closed]
        for connection in select.select(still, [], [], seconds)[0] if still else ():
            beat = self._beats[of[connection]]
            beat.closed = beat.closed or time.monotonic()
        return [process for process in of.values() if self._beats[process].closed]

    def _late(self, seconds: float) -> str:
        gone = ", ".join(map(self._peers.name, self._look(0.0)[:8]))
        return (
            f"{self._peers.name(self._peers.process_id)} was stopped for {seconds:.0f} s, and "
            f"{gone} went on without it; the same command goes on from the newest checkpoint"
        )

    def _lost(self, process: int, how: str) -> None:
        beat = self._beats[process]
        last = f"; before that {beat.describe()}" if beat.text else ""
        self._process_exit.end(
            LOST,
            f"{self._peers.name(process)} is lost: {how}{last}; "
            "the same command goes on from the newest checkpoint",
            tell=process != 0,  # with it the store is gone, through which the others would hear
        )

    def _follow(self, verdict: str) -> None:
        code, line, process, stacks = json.loads(verdict)
        if process != self._peers.process_id:
            with contextlib.suppress(Exception):  # process 0 may be gone itself
                self._peers.put(f"gone/{self._peers.process_id}", "")
            line = f"{self._peers.name(process)}: {line}"
            self._process_exit.end(code, line, stacks=stacks, tell=False)

    def _tell(self, code: int, line: str) -> None:
        """Tells the others that this process ends; process 0 stays until they know."""
        said = json.dumps([code, line, self._peers.process_id, self._process_exit.with_stacks])
        teller = threading.Thread(target=self._peers.put, args=("verdict", said), daemon=True)
        teller.start()
        teller.join(2.0)
        if self._peers.is_first:
            self.wait_for_others(4.0)
