"""Exit codes of the program, and of a job from those of its processes."""

import signal
from collections.abc import Iterable, Sequence

DONE = 0
FAILED = 1  # bad input, reported in one line
USAGE = 2  # the command line cannot be parsed
NUMBERS = 44  # too many losses or gradients in a row are not finite; saved
STORAGE = 45  # a checkpoint cannot be written, none is valid, or the store changed during the run
FINAL = (FAILED, USAGE, NUMBERS, STORAGE)  # would occur again
# After these the same command resumes.
STOPPED = 42  # asked to stop, saved
LOST = 43  # another process is lost, or this one hangs

_KILLED = range(129, 193)  # 128 + N: a shell or the process itself reports an end by signal N


def signal_of(code: int) -> int | None:
    """Returns the signal that ended a process, or None; exit codes as in `subprocess`."""
    return -code if code < 0 else code - 128 if code in _KILLED else None


def verdict(codes: Iterable[int]) -> int:
    """Returns the exit code of a job.

    codes: of its processes, in the order in which they ended, negative if a signal ended one.
    Returns:
        0: all are done. STOPPED: some saved and stopped on request. LOST: some were killed or lost
        another process. Any other code is the first error that would occur again.
    """
    codes = list(codes)
    restartable = (0, STOPPED, LOST)
    errors = [code for code in codes if code not in restartable and signal_of(code) is None]
    if errors:
        return errors[0]
    if STOPPED in codes:
        return STOPPED
    return LOST if any(codes) else 0


def describe(ends: Sequence[tuple[str, int]]) -> str:
    """Formats the host name and exit code of each process, signals first:
    `host-1 was killed by SIGKILL; host-0, host-2 ended with 43`."""
    hosts: dict[str, list[str]] = {}
    for host, code in sorted(ends, key=lambda end: signal_of(end[1]) is None):
        hosts.setdefault(_how(code), []).append(host)
    return "; ".join(f"{', '.join(names)} {how}" for how, names in hosts.items())


def _how(code: int) -> str:
    number = signal_of(code)
    if number is None:
        return f"ended with {code}"
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal
        name = f"signal {number}"
    return f"was killed by {name}" if code < 0 else f"ended with {code} ({name})"
