"""The processes of a job: which one this is, starting JAX among them, agreeing with them.

JAX is always started as a distributed job, with one process too: then collectives on the CPU are
the same code (gloo) in any number of processes, and give the same bits.
"""

import contextlib
import ctypes
import itertools
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bert_jax.distributed.cluster import ProcessTopology
from bert_jax.distributed.rendezvous import Registration, Roster, rendezvous
from bert_jax.errors import LostError
from bert_jax.runtime.activity import ActivityClock

# JAX's own heartbeats abort a process without a word; ours (heartbeat.py) say who is gone.
_NEVER = 10**7  # seconds


class ProcessGroup:
    """This process and the others, through JAX's key-value store."""

    def __init__(
        self,
        place: ProcessTopology,
        met: Roster,
        clock: ActivityClock,
        client: Any,
        *,
        barrier: float,
    ):
        """client: of JAX's store, None for a process without others; barrier: seconds."""
        self.process_id, self.num_processes = place.process_id, place.num_processes
        self.hosts, self.place, self.connections = met.hosts, place, met.connections
        self._clock, self._client, self._barrier = clock, client, barrier
        self._counts: dict[str, itertools.count] = defaultdict(itertools.count)

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes."""
        return self.process_id == 0

    def name(self, process: int) -> str:
        """A process as people call it."""
        if self.num_processes == 1:
            return self.hosts[0]
        return f"{self.hosts[process]} (process {process})"

    def all_gather_text(
        self, name: str, text: str = "", *, timeout: float | None = None
    ) -> list[str]:
        """A barrier with values: what each process says, by process; all of them call it.

        Raises:
            LostError: not all came within `timeout` seconds; names who is there and who is not.
        """
        if self.num_processes == 1:
            return [text]
        timeout = self._barrier if timeout is None else timeout
        number = next(self._counts[name])
        folder = f"exchange/{name}/{number}"
        deadline = time.monotonic() + timeout
        with self._clock.activity("barrier"):
            self.put(f"{folder}/{self.process_id}", text)
            try:
                if not self.is_first:
                    return json.loads(self.wait(f"{folder}/all", deadline))
                said = [
                    self.wait(f"{folder}/{process}", deadline)
                    for process in range(self.num_processes)
                ]
                self.put(f"{folder}/all", json.dumps(said))
                if number:  # who is here has read the one before; the store keeps all in memory
                    self._client.key_value_delete(f"bert_jax/exchange/{name}/{number - 1}")
                return said
            except TimeoutError:
                there = sorted(int(key) for key in self.all(folder) if key.isdigit())
        missing = [p for p in range(self.num_processes) if p not in there]
        raise LostError(
            f"waited {timeout:.0f} s for all processes at {name!r} (config.deadlines.barrier); "
            f"there: {', '.join(map(self.name, there))}; "
            f"missing: {', '.join(map(self.name, missing)) or 'none, but process 0 did not answer'}"
        )

    def put(self, key: str, text: str) -> None:
        self._client.key_value_set(f"bert_jax/{key}", text, allow_overwrite=True)

    def get(self, key: str) -> str | None:
        """The text under a key, None where there is none."""
        try:
            return self._client.key_value_try_get(f"bert_jax/{key}")
        except Exception as error:  # JAX raises one type for everything
            if "NOT_FOUND" in str(error):
                return None
            raise

    def wait(self, key: str, deadline: float) -> str:
        """The text under a key, as soon as it is there; TimeoutError at `time.monotonic()`."""
        left = max(int(1000 * (deadline - time.monotonic())), 1)
        try:
            return self._client.blocking_key_value_get(f"bert_jax/{key}", left)
        except Exception as error:
            if "DEADLINE_EXCEEDED" in str(error):
                raise TimeoutError(key) from None
            raise

    def all(self, folder: str) -> Mapping[str, str]:
        """The texts of all keys directly in a folder, by the last part of their names."""
        pairs = self._client.key_value_dir_get(f"bert_jax/{folder}/")
        return {key.rpartition("/")[2]: text for key, text in pairs}


def host_name() -> str:
    """What this machine is called in lines and records."""
    return os.environ.get("BERT_JAX_HOST_NAME") or socket.gethostname()


def single_process_group(clock: ActivityClock) -> ProcessGroup:
    """A process without others, JAX started or not."""
    met = Roster((host_name(),), {})
    return ProcessGroup(ProcessTopology("", 1, 0, found_by="alone"), met, clock, None, barrier=0.0)


def connect(
    place: ProcessTopology,
    about: Mapping[str, str],
    clock: ActivityClock,
    *,
    timeout: float,
    barrier: float,
    lost: Callable[[str], object] = print,
) -> ProcessGroup:
    """Meets the other processes and starts JAX among them; before the first array is made.

    Args:
        about: what must be the same in all processes.
        timeout: seconds until all must be there. barrier: the same, for `Peers.exchange`.
        lost: told in another thread that a process has gone while JAX starts, which JAX would wait
            for.

    Raises:
        LostError, UserError: see `rendezvous.meet`.
    """
    import jax
    from jax._src import distributed, xla_bridge

    started = xla_bridge.backends_are_initialized() or distributed.global_state.client is not None
    if place.found_by == "alone" and started:
        return single_process_group(clock)  # inside a program that has used JAX already
    me = Registration(place.process_id, place.num_processes, host_name(), about)
    bind = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", place.coordinator)
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    met = rendezvous(place.coordinator, me, bind=bind, timeout=timeout, say=say)
    if place.num_processes > 1:
        _park_aborts()
    jax.config.update("jax_enable_preemption_service", False)  # preemption.py takes its place
    with _watching(met, lost):
        jax.distributed.initialize(
            place.coordinator,
            place.num_processes,
            place.process_id,
            local_device_ids=place.local_device_ids,
            cluster_detection_method="deactivate",
            initialization_timeout=int(timeout),
            coordinator_bind_address=bind,
            heartbeat_timeout_seconds=_NEVER,
        )
    client = distributed.global_state.client
    return ProcessGroup(place, met, clock, client, barrier=barrier)


@contextlib.contextmanager
def _watching(met: Roster, lost: Callable[[str], object]) -> Iterator[None]:
    """Looks at the connections until heartbeat.py does."""
    over, of = threading.Event(), {c: process for process, c in met.connections.items()}

    def look() -> None:
        while not over.wait(0.1):
            for connection in select.select(list(of), [], [], 0)[0]:
                process = of.pop(connection)
                lost(f"{met.hosts[process]} (process {process}) is lost: it ended at the start")

    thread = threading.Thread(target=look, name="connections", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _park_aborts() -> None:
    """Lets a thread that calls abort() sleep for ever instead.

    When process 0 is gone, a thread of JAX's client aborts the process within milliseconds, before
    any line could say why. Parked, it leaves a second to heartbeat.py, which says it and exits with
    43.
    An abort for another reason ends at the deadline of what the process was doing.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        libc.signal.restype = ctypes.c_void_p
        libc.signal(signal.SIGABRT, ctypes.cast(libc.pause, ctypes.c_void_p))
