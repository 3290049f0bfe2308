"""A process of a training job: the others, what it is doing, when it preemption, how it ends."""

import contextlib
import dataclasses
import functools
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

from bert_jax.config.schema import Config
from bert_jax.distributed import peers as distributed
from bert_jax.distributed.cluster import ProcessTopology
from bert_jax.distributed.heartbeat import Heartbeat
from bert_jax.distributed.peers import ProcessGroup
from bert_jax.distributed.preemption import PreemptionHandler
from bert_jax.distributed.watchdog import ProcessExit, Watchdog
from bert_jax.errors import DONE, FAILED, LOST, STOPPED, StoppedError, code_of
from bert_jax.runtime import console, streams
from bert_jax.runtime.activity import ActivityClock

# What JAX's error says where processes could not talk to one another.
_CONNECTION = re.compile("Gloo|DEADLINE_EXCEEDED|UNAVAILABLE")


@dataclasses.dataclass(frozen=True)
class Job:
    """What the training loop needs of it."""

    peers: ProcessGroup
    clock: ActivityClock
    preemption: PreemptionHandler
    # Told the exit code and the line before a deadline or the loss of another process ends this.
    before_end: list[Callable[[int, str], None]] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def in_process_job(config: Config) -> Iterator[Job]:
    """For a run inside another program: one process, which no deadline ends."""
    clock = ActivityClock()
    peers = distributed.single_process_group(clock)
    preemption = PreemptionHandler(peers, config.deadlines.grace)
    with preemption.listening(console.console.print):
        yield Job(peers, clock, preemption)


@contextlib.contextmanager
def distributed_job(
    config: Config, place: ProcessTopology, about: Mapping[str, str]
) -> Iterator[Job]:
    """For a process of its own: starts JAX, keeps the deadlines, ends together with the others.

    Args:
        about: what must be the same in all processes.
    """
    clock, process_exit = ActivityClock(), ProcessExit(distributed.host_name())
    watchdog = Watchdog(clock, config.deadlines, distributed.host_name(), process_exit)
    preemption = PreemptionHandler(
        distributed.single_process_group(clock), config.deadlines.grace, process_exit
    )
    watchdog.start()
    with contextlib.ExitStack() as stack:
        stack.callback(watchdog.stop)
        stack.enter_context(streams.own_stdout())
        stack.enter_context(preemption.listening(console.console.print))
        with clock.activity("start"):
            peers = distributed.connect(
                place,
                about,
                clock,
                timeout=config.deadlines.start,
                barrier=config.deadlines.barrier,
                lost=functools.partial(process_exit.end, LOST),
            )
        preemption.peers = peers
        preemption.watch_machine()
        if peers.num_processes == 1:
            yield Job(peers, clock, preemption, process_exit.before)
            return
        console.console.quiet = not peers.is_first
        heartbeat = Heartbeat(peers, clock, process_exit, peer_timeout=config.deadlines.peer)
        heartbeat.on_stop, watchdog.others = preemption.agree, heartbeat.others
        heartbeat.start()
        try:
            try:
                yield Job(peers, clock, preemption, process_exit.before)
            except StoppedError as stopped:
                _end_together(peers, heartbeat, STOPPED, str(stopped))
            _end_together(peers, heartbeat, DONE, "")
        except BaseException as error:
            _end_all(error, heartbeat, process_exit)


def _end_together(peers: ProcessGroup, heartbeat: Heartbeat, code: int, line: str) -> NoReturn:
    """All processes are at the same place. Process 0, which serves the others, goes last."""
    peers.all_gather_text("end")
    heartbeat.stop()
    if peers.is_first:
        heartbeat.wait_for_others(30.0)
        if line:
            print(line, file=sys.stderr)
    else:
        peers.put(f"gone/{peers.process_id}", "")
    _exit(code)


def _end_all(error: BaseException, heartbeat: Heartbeat, process_exit: ProcessExit) -> NoReturn:
    """Only this process is here: the others hear why, and end with the same code."""
    code = code_of(error)
    if code is None:
        import jax  # has started; not when this module is read

        if isinstance(error, jax.errors.JaxRuntimeError):
            # Most likely because another process is gone: then this ends in here.
            heartbeat.wait_for_news()
        traceback.print_exception(error)
        # A connection failed, though nobody is gone: another attempt may go well.
        failed = isinstance(error, jax.errors.JaxRuntimeError) and _CONNECTION.search(str(error))
        code = LOST if failed else FAILED
    # Lost without a death: somewhere a process hangs, and its stacks say where.
    process_exit.end(code, str(error) or type(error).__name__, stacks=code == LOST)


def _exit(code: int) -> NoReturn:
    """Without JAX's own parting of processes, which waits for those that are gone already."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
