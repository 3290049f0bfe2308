"""The process group of a job: starts JAX in all processes and synchronizes them.

JAX is always started as a distributed job, even with one process: so CPU collectives run the same
code (gloo) with any number of processes, and give the same bits.
"""

import contextlib
import ctypes
import itertools
import json
import os
import select
import signal
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
from bert_jax.storage.host_name import host_name

# JAX's own heartbeats abort a process without a message; ours (heartbeat.py) report who is gone.
_NEVER = 10**7  # seconds: disables them


class ProcessGroup:
    """The processes of the job, which communicate through JAX's key-value store."""

    def __init__(
        self,
        topology: ProcessTopology,
        roster: Roster,
        clock: ActivityClock,
        client: Any,
        *,
        barrier: float,
    ):
        """client: JAX's store, None for a single process. barrier: timeout in seconds."""
        self.process_id, self.num_processes = topology.process_id, topology.num_processes
        self.hosts, self.topology, self.connections = roster.hosts, topology, roster.connections
        self._clock, self._client, self._barrier = clock, client, barrier
        self._counts: dict[str, itertools.count] = defaultdict(itertools.count)

    @property
    def is_first(self) -> bool:
        """Returns whether this is process 0, the one that writes."""
        return self.process_id == 0

    def name(self, process: int) -> str:
        """Returns a process's name for messages."""
        if self.num_processes == 1:
            return self.hosts[0]
        return f"{self.hosts[process]} (process {process})"

    def all_gather_text(
        self, name: str, text: str = "", *, timeout: float | None = None
    ) -> list[str]:
        """All-gathers text: returns each process's text by process id; all processes call it.

        Raises:
            LostError: not all arrived within `timeout` seconds; the message names the missing ones.
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
                processes = range(self.num_processes)
                texts = [self.wait(f"{folder}/{process}", deadline) for process in processes]
                self.put(f"{folder}/all", json.dumps(texts))
                if number:  # all have read the previous one; the store keeps everything in memory
                    self._client.key_value_delete(f"bert_jax/exchange/{name}/{number - 1}")
                return texts
            except TimeoutError:
                arrived = sorted(int(key) for key in self.all(folder) if key.isdigit())
        missing = [p for p in range(self.num_processes) if p not in arrived]
        raise LostError(
            f"waited {timeout:.0f} s for all processes at {name!r} (config.deadlines.barrier); "
            f"arrived: {', '.join(map(self.name, arrived))}; "
            f"missing: {', '.join(map(self.name, missing)) or 'none, but process 0 did not answer'}"
        )

    def put(self, key: str, text: str) -> None:
        self._client.key_value_set(f"bert_jax/{key}", text, allow_overwrite=True)

    def get(self, key: str) -> str | None:
        """Returns the text stored under a key, None if the key does not exist."""
        try:
            return self._client.key_value_try_get(f"bert_jax/{key}")
        except Exception as error:  # JAX raises one type for everything
            if "NOT_FOUND" in str(error):
                return None
            raise

    def wait(self, key: str, deadline: float) -> str:
        """Waits for a key and returns its text; TimeoutError at `deadline`, a monotonic time."""
        milliseconds = max(int(1000 * (deadline - time.monotonic())), 1)
        try:
            return self._client.blocking_key_value_get(f"bert_jax/{key}", milliseconds)
        except Exception as error:
            if "DEADLINE_EXCEEDED" in str(error):
                raise TimeoutError(key) from None
            raise

    def all(self, folder: str) -> Mapping[str, str]:
        """Returns the texts of all keys directly in a folder, by the last part of the key."""
        pairs = self._client.key_value_dir_get(f"bert_jax/{folder}/")
        return {key.rpartition("/")[2]: text for key, text in pairs}


def single_process_group(clock: ActivityClock) -> ProcessGroup:
    """Returns the group of a single process, whether JAX is started or not."""
    topology, roster = ProcessTopology("", 1, 0, found_by="alone"), Roster((host_name(),), {})
    return ProcessGroup(topology, roster, clock, None, barrier=0.0)


def connect(
    topology: ProcessTopology,
    about: Mapping[str, str],
    clock: ActivityClock,
    *,
    timeout: float,
    barrier: float,
    lost: Callable[[str], object] = print,
) -> ProcessGroup:
    """Waits for the other processes and starts JAX in all; call it before creating any array.

    Args:
        about: versions and settings that must be the same in all processes.
        timeout: seconds for all processes to arrive.
        barrier: seconds for all processes to arrive at an `all_gather_text`.
        lost: called in another thread if a process ends while JAX starts, which JAX would wait for.

    Raises:
        LostError, UserError: as `rendezvous.rendezvous`.
    """
    import jax
    from jax._src import distributed, xla_bridge

    started = xla_bridge.backends_are_initialized() or jax.distributed.is_initialized()
    if topology.found_by == "alone" and started:
        return single_process_group(clock)  # inside a program that already uses JAX
    me = Registration(topology.process_id, topology.num_processes, host_name(), about)
    bind = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", topology.coordinator)
    roster = rendezvous(topology.coordinator, me, bind=bind, timeout=timeout)
    if topology.num_processes > 1:
        _park_aborts()
    jax.config.update("jax_enable_preemption_service", False)  # replaced by preemption.py
    with _watching(roster, lost):
        jax.distributed.initialize(
            topology.coordinator,
            topology.num_processes,
            topology.process_id,
            local_device_ids=topology.local_device_ids,
            cluster_detection_method="deactivate",
            initialization_timeout=int(timeout),
            coordinator_bind_address=bind,
            heartbeat_timeout_seconds=_NEVER,
        )
    client = distributed.global_state.client
    return ProcessGroup(topology, roster, clock, client, barrier=barrier)


@contextlib.contextmanager
def _watching(roster: Roster, lost: Callable[[str], object]) -> Iterator[None]:
    """Watches the connections until heartbeat.py does."""
    over = threading.Event()
    processes = {connection: process for process, connection in roster.connections.items()}

    def watch() -> None:
        while not over.wait(0.1):
            for connection in select.select(list(processes), [], [], 0)[0]:
                process = processes.pop(connection)
                name = f"{roster.hosts[process]} (process {process})"
                lost(f"{name} is lost: it ended during the start")

    thread = threading.Thread(target=watch, name="connections", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _park_aborts() -> None:
    """Makes a thread that calls abort() sleep forever instead.

    When process 0 is gone, a thread of JAX's client aborts the process within milliseconds, before
    an error can be printed. A parked thread leaves heartbeat.py a second to report it and exit with
    43. After an abort for another reason, the deadline of the current activity ends the process.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        libc.signal.restype = ctypes.c_void_p
        libc.signal(signal.SIGABRT, ctypes.cast(libc.pause, ctypes.c_void_p))
