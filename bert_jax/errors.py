"""How the program ends: its exit codes, and what carries them."""

from data_pipeline.errors import UserError

DONE = 0
FAILED = 1  # UserError: bad input, said in one line
USAGE = 2  # the command line cannot be read
STOPPED = 42  # asked to stop, saved; the same command goes on
LOST = 43  # another process is gone, or this one hangs; the same command goes on
NUMBERS = 44  # losses or gradients are not finite; the same command would end the same way
STORAGE = 45  # a checkpoint cannot be written, or none that is there is good

__all__ = [
    "DONE",
    "FAILED",
    "LOST",
    "NUMBERS",
    "STOPPED",
    "STORAGE",
    "USAGE",
    "LostError",
    "NumbersError",
    "StoppedError",
    "StorageError",
    "UsageError",
    "UserError",
    "code_of",
]


class UsageError(Exception):
    """A command line that cannot be read."""


class StoppedError(Exception):
    """The run was asked to stop and has saved itself; the same command goes on from there."""


class LostError(Exception):
    """Another process is gone or does not answer; one line names its host."""


class NumbersError(Exception):
    """Too many steps in a row had a loss or a gradient that is not finite."""


class StorageError(Exception):
    """What has to be written cannot be written, or what has to be read is damaged."""


_CODES: dict[type[BaseException], int] = {
    UserError: FAILED,
    UsageError: USAGE,
    StoppedError: STOPPED,
    LostError: LOST,
    NumbersError: NUMBERS,
    StorageError: STORAGE,
}


def code_of(error: BaseException) -> int | None:
    """The exit code of an error that is said in one line; None for all others."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)
