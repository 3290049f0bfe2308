"""A process of a training job: the others, what it is doing, when it stops, how it ends."""

import contextlib
import dataclasses
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

from bert_jax import distributed, terminal
from bert_jax.config import Config
from bert_jax.distributed import Peers, Place
from bert_jax.errors import DONE, FAILED, STOPPED, StoppedError, code_of
from bert_jax.preemption import Stops
from bert_jax.pulse import Pulse
from bert_jax.watchdog import Ending, Watch, Watchdog


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
    with stops.listening(terminal.console.print):
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
    with stops.listening(terminal.console.print):
        with watch.doing("start"):
            peers = distributed.start(
                place,
                about,
                watch,
                timeout=config.deadlines.start,
                barrier=config.deadlines.barrier,
            )
        stops.peers = peers
        stops.watch_machine()
        if peers.num_processes == 1:
            yield Job(peers, watch, stops, ending.before)
            return
        terminal.console.quiet = not peers.is_first
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
        until = time.monotonic() + 10.0
        while len(peers.all("gone")) < peers.num_processes - 1 and time.monotonic() < until:
            time.sleep(0.05)
        if line:
            print(line, file=sys.stderr)
    else:
        peers.put(f"gone/{peers.process_id}", "")
    _exit(code)


def _end_all(error: BaseException, pulse: Pulse, ending: Ending) -> NoReturn:
    """Only this process is here: the others hear why, and end with the same code."""
    code = code_of(error)
    if code is None:
        # Most likely a collective failed because another process is gone: then this ends in here,
        # with the line that says so and not with what JAX makes of it.
        pulse.wait_for_news()
        traceback.print_exception(error)
        code = FAILED
    ending.end(code, str(error) or type(error).__name__)


def _exit(code: int) -> NoReturn:
    """Without JAX's own parting of processes, which waits for those that are gone already."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
