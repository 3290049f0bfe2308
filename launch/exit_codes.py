"""What the exit codes of a job's processes say together: done, an error, reason to start again."""

import signal
from collections.abc import Iterable, Sequence

# The processes' own codes (bert_jax/errors.py) for which the same command goes on.
STOPPED = 42  # asked to stop, saved
LOST = 43  # another process is gone, or this one hangs

_KILLED = range(129, 193)  # 128 + N: how a shell, or a process itself, says that signal N ended it


def signal_of(code: int) -> int | None:
    """The signal that ended a process, or None; exit codes as in `subprocess`."""
    return -code if code < 0 else code - 128 if code in _KILLED else None


def verdict(codes: Iterable[int]) -> int:
    """The exit code of a job.

    codes: of its processes, in the order in which they ended, negative where a signal ended one.
    Returns:
        0: all are done. STOPPED: some saved and ended because they were asked to. LOST: some were
        killed or lost another. Any other code is an error that would come again, the first of them.
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
    """`host-1 was killed by SIGKILL; host-0, host-2 ended with 43`, signals first.

    ends: host name and exit code of each process.
    """
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
