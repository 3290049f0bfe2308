"""A process of a training job: the others, what it is doing, when it stops, how it ends."""

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
from bert_jax.distributed.cluster import Place
from bert_jax.distributed.heartbeat import Pulse
from bert_jax.distributed.peers import Peers
from bert_jax.distributed.preemption import Stops
from bert_jax.distributed.watchdog import Ending, Watchdog
from bert_jax.errors import DONE, FAILED, LOST, STOPPED, StoppedError, code_of
from bert_jax.runtime import console, streams
from bert_jax.runtime.activity import Watch

# What JAX's error says where processes could not talk to one another.
_CONNECTION = re.compile("Gloo|DEADLINE_EXCEEDED|UNAVAILABLE")


@dataclasses.dataclass(frozen=True)
class Job:
    """What the training loop needs of it."""

    peers: Peers
    watch: Watch
    stops: Stops
    # Told the exit code and the line before a deadline or the loss of another process ends this.
    before_end: list[Callable[[int, str], None]] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def within(config: Config) -> Iterator[Job]:
    """For a run inside another program: one process, which no deadline ends."""
    watch = Watch()
    peers = distributed.alone(watch)
    stops = Stops(peers, config.deadlines.grace)
    with stops.listening(console.console.print):
        yield Job(peers, watch, stops)


@contextlib.contextmanager
def started(config: Config, place: Place, about: Mapping[str, str]) -> Iterator[Job]:
    """For a process of its own: starts JAX, keeps the deadlines, ends together with the others.

    Args:
        about: what must be the same in all processes.
    """
    watch, ending = Watch(), Ending(distributed.host_name())
    watchdog = Watchdog(watch, config.deadlines, distributed.host_name(), ending)
    stops = Stops(distributed.alone(watch), config.deadlines.grace, ending)
    watchdog.start()
    with contextlib.ExitStack() as stack:
        stack.callback(watchdog.stop)
        stack.enter_context(streams.own_stdout())
        stack.enter_context(stops.listening(console.console.print))
        with watch.doing("start"):
            peers = distributed.start(
                place,
                about,
                watch,
                timeout=config.deadlines.start,
                barrier=config.deadlines.barrier,
                lost=functools.partial(ending.end, LOST),
            )
        stops.peers = peers
        stops.watch_machine()
        if peers.num_processes == 1:
            yield Job(peers, watch, stops, ending.before)
            return
        console.console.quiet = not peers.is_first
        pulse = Pulse(peers, watch, ending, peer_timeout=config.deadlines.peer)
        pulse.on_stop, watchdog.others = stops.agree, pulse.others
        pulse.start()
        try:
            try:
                yield Job(peers, watch, stops, ending.before)
            except StoppedError as stopped:
                _end_together(peers, pulse, STOPPED, str(stopped))
            _end_together(peers, pulse, DONE, "")
        except BaseException as error:
            _end_all(error, pulse, ending)


def _end_together(peers: Peers, pulse: Pulse, code: int, line: str) -> NoReturn:
    """All processes are at the same place. Process 0, which serves the others, goes last."""
    peers.exchange("end")
    pulse.stop()
    if peers.is_first:
        pulse.wait_for_others(30.0)
        if line:
            print(line, file=sys.stderr)
    else:
        peers.put(f"gone/{peers.process_id}", "")
    _exit(code)


def _end_all(error: BaseException, pulse: Pulse, ending: Ending) -> NoReturn:
    """Only this process is here: the others hear why, and end with the same code."""
    code = code_of(error)
    if code is None:
        import jax  # has started; not when this module is read

        if isinstance(error, jax.errors.JaxRuntimeError):
            # Most likely because another process is gone: then this ends in here.
            pulse.wait_for_news()
        traceback.print_exception(error)
        # A connection failed, though nobody is gone: another attempt may go well.
        failed = isinstance(error, jax.errors.JaxRuntimeError) and _CONNECTION.search(str(error))
        code = LOST if failed else FAILED
    # Lost without a death: somewhere a process hangs, and its stacks say where.
    ending.end(code, str(error) or type(error).__name__, stacks=code == LOST)


def _exit(code: int) -> NoReturn:
    """Without JAX's own parting of processes, which waits for those that are gone already."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
