"""Processes of tests begin with the signals of a terminal, however the tests were started.

A disposition outlives exec: under `nohup make test &` every process would ignore SIGINT and SIGHUP.
"""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PROGRAM = """
import os, signal, sys
ignored, *command = sys.argv[1:]
for number in {numbers}:
    ignore = str(number) in ignored.split()
    signal.signal(number, signal.SIG_IGN if ignore else signal.SIG_DFL)
os.execvp(command[0], command)
""".replace("{numbers}", str(tuple(map(int, ASKING))))


def with_signals(command: Sequence[str], ignored: Sequence[signal.Signals] = ()) -> list[str]:
    """The command line of a process that ignores these signals and takes the others."""
    numbers = " ".join(str(int(number)) for number in ignored)
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, numbers, *command]


@contextmanager
def dispositions(of: Callable[[signal.Signals], object]) -> Iterator[None]:
    """This process's own, by signal, while the context lasts."""
    before = {number: signal.signal(number, of(number)) for number in ASKING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
