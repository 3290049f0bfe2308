"""A process of a training job: its process group, activity clock, preemption and shutdown."""

import contextlib
import dataclasses
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

from bert_jax.config.schema import Config
from bert_jax.distributed.cluster import ProcessTopology
from bert_jax.distributed.device_check import check_devices
from bert_jax.distributed.heartbeat import Heartbeat
from bert_jax.distributed.peers import ProcessGroup, connect, single_process_group
from bert_jax.distributed.preemption import PreemptionHandler
from bert_jax.distributed.watchdog import ProcessExit, Watchdog
from bert_jax.errors import StoppedError, UserError, code_of
from bert_jax.exit_codes import DONE, FAILED, LOST, STOPPED
from bert_jax.hardware.slices import Slice
from bert_jax.runtime import compile_cache, console, streams
from bert_jax.runtime.activity import ActivityClock
from bert_jax.runtime.log import NOTICE, configure_logging, logger
from bert_jax.storage.cache_dir import check_room
from bert_jax.storage.host_name import host_name

# Matches JAX's error message if the connection between processes failed.
_CONNECTION = re.compile("Gloo|DEADLINE_EXCEEDED|UNAVAILABLE")


@dataclasses.dataclass(frozen=True)
class Job:
    """The parts of a job that the training loop uses."""

    peers: ProcessGroup
    clock: ActivityClock
    preemption: PreemptionHandler
    # Called with the exit code and message before a deadline or a lost process ends this one.
    before_end: list[Callable[[int, str], None]] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def in_process_job(config: Config) -> Iterator[Job]:
    """A job inside another program: a single process without deadlines."""
    clock = ActivityClock()
    peers = single_process_group(clock)
    preemption = PreemptionHandler(peers, config.deadlines.grace)
    if not logger.handlers:  # the program may have its own
        configure_logging()
    with preemption.listening():
        yield Job(peers, clock, preemption)


@contextlib.contextmanager
def distributed_job(
    config: Config,
    topology: ProcessTopology,
    about: Mapping[str, str],
    expected: Slice | None = None,
) -> Iterator[Job]:
    """A job with its own processes: starts JAX, enforces deadlines, ends with the other processes.

    about: versions and settings that must be the same in all processes. expected: the TPU slices
    that these must have, if known.
    """
    host = host_name()
    name = f"{host} (process {topology.process_id})"
    configure_logging(name if topology.num_processes > 1 else "", quiet=topology.process_id > 0)
    compile_cache.use()  # before `check_devices` compiles a program
    clock, process_exit = ActivityClock(), ProcessExit(host)
    watchdog = Watchdog(clock, config.deadlines, host, process_exit)
    preemption = PreemptionHandler(
        single_process_group(clock), config.deadlines.grace, process_exit
    )
    watchdog.start()
    with contextlib.ExitStack() as stack:
        stack.callback(watchdog.stop)
        stack.enter_context(streams.own_stdout())
        stack.enter_context(preemption.listening())
        with clock.activity("start"):
            peers = connect(
                topology,
                about,
                clock,
                timeout=config.deadlines.start,
                barrier=config.deadlines.barrier,
                lost=functools.partial(process_exit.end, LOST),
            )
        preemption.peers = peers
        preemption.watch_machine()
        if peers.num_processes == 1:
            if expected is not None:
                check_disk(peers)
                check_devices(peers, expected)
            yield Job(peers, clock, preemption, process_exit.before)
            return
        console.console.quiet = not peers.is_first
        heartbeat = Heartbeat(peers, clock, process_exit, peer_timeout=config.deadlines.peer)
        heartbeat.on_stop, watchdog.others = preemption.agree, heartbeat.others
        heartbeat.start()
        try:
            try:
                with clock.activity("start"):
                    check_disk(peers)
                    check_devices(peers, expected)
                yield Job(peers, clock, preemption, process_exit.before)
            except StoppedError as stopped:
                _end_together(peers, heartbeat, STOPPED, str(stopped))
            _end_together(peers, heartbeat, DONE, "")
        except BaseException as error:
            _end_all(error, heartbeat, process_exit)


def check_disk(peers: ProcessGroup) -> None:
    """Raises UserError if this host's caches cannot be written, or their disk is nearly full.

    Without that a job of many hosts would fail on one of them, hours later where its log or a copy
    of the store is what has no room.
    """
    try:
        check_room()
    except UserError as error:
        raise UserError(f"{peers.name(peers.process_id)}: {error}") from None


def _end_together(peers: ProcessGroup, heartbeat: Heartbeat, code: int, line: str) -> NoReturn:
    """Ends all processes at the same point; process 0, which serves the store, exits last.

    The others say nothing more: process 0 sees their connections close. Were it told through the
    store, it could exit before it has answered, and the call would never return.
    """
    peers.all_gather_text("end")
    heartbeat.stop()
    if peers.is_first:
        heartbeat.wait_for_others(30.0)
        if line:
            logger.log(NOTICE, line)
    _exit(code)


def _end_all(error: BaseException, heartbeat: Heartbeat, process_exit: ProcessExit) -> NoReturn:
    """Handles an error in this process only: notifies the others, which exit with the same code."""
    code = code_of(error)
    if code is None:
        import jax  # here, not at import time of this module

        if isinstance(error, jax.errors.JaxRuntimeError):
            # Most likely another process is gone: then the process exits in this call.
            heartbeat.wait_for_news()
        logger.error("unexpected error", exc_info=error)
        # A connection failed, though no process is gone: another attempt may succeed.
        failed = isinstance(error, jax.errors.JaxRuntimeError) and _CONNECTION.search(str(error))
        code = LOST if failed else FAILED
    # LOST although no process died: one hangs, and its stacks show where.
    process_exit.end(code, str(error) or type(error).__name__, stacks=code == LOST)


def _exit(code: int) -> NoReturn:
    """Exits without JAX's own shutdown barrier, which waits for processes already gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
