"""How the program ends: its exit codes, and what carries them."""

import errno

from bert_jax.data_pipeline.errors import StorageError, UserError

DONE = 0
FAILED = 1  # UserError: bad input, said in one line
USAGE = 2  # the command line cannot be read
STOPPED = 42  # asked to stop, saved; the same command goes on
LOST = 43  # another process is gone, or this one hangs; the same command goes on
NUMBERS = 44  # losses or gradients are not finite; the same command would end the same way
STORAGE = 45  # a checkpoint cannot be written, none is good, or the store changed under the run

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
    "line_of",
]


class UsageError(Exception):
    """A command line that cannot be read."""


class StoppedError(Exception):
    """The run was asked to stop and has saved itself; the same command goes on from there."""


class LostError(Exception):
    """Another process is gone or does not answer; one line names its host."""


class NumbersError(Exception):
    """Too many steps in a row had a loss or a gradient that is not finite."""


_CODES: dict[type[BaseException], int] = {
    UserError: FAILED,
    UsageError: USAGE,
    StoppedError: STOPPED,
    LostError: LOST,
    NumbersError: NUMBERS,
    StorageError: STORAGE,
}


# What a disk says that is full or broken, to whatever was writing or reading.
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
# What it says of a name that was given to it.
_NAME = {
    errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR,
}  # fmt: skip


def code_of(error: BaseException) -> int | None:
    """The exit code of an error that is said in one line; None for all others."""
    if isinstance(error, OSError) and error.errno in _DISK:
        return STORAGE
    if isinstance(error, OSError) and error.errno in _NAME and error.filename:
        return FAILED
    if _is_out_of_memory(error):
        return FAILED
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)


def line_of(error: BaseException) -> str:
    """What is said of an error that has an exit code."""
    if isinstance(error, OSError) and error.errno in _DISK | _NAME:
        name = str(error.filename)
        name = name if len(name) <= 200 else f"{name[:60]}…{name[-60:]}"
        where = f"{name}: " if error.filename else ""
        hint = "; the same command goes on once the storage works" if error.errno in _DISK else ""
        return f"{where}{error.strerror}{hint}"
    if _is_out_of_memory(error):
        said = " ".join(str(error).split())[:200]
        return (
            f"out of memory ({said}); take a smaller batch or model, more config.phases[…]"
            ".micro_batches, or config.compute.remat"
        )
    return str(error)


def _is_out_of_memory(error: BaseException) -> bool:
    """Of Python and numpy, or of XLA, whose class is not imported for this."""
    of_xla = type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")
    return isinstance(error, MemoryError) or (of_xla and "RESOURCE_EXHAUSTED" in str(error))
