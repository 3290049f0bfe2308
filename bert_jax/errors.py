"""Exit codes of the program, and the exceptions that map to them."""

import errno

from bert_jax.data_pipeline.errors import (
    OneLineError,
    StorageError,
    UserError,
    count,
    nearest,
    nearest_name,
)
from bert_jax.launch.exit_codes import FAILED, LOST, NUMBERS, STOPPED, STORAGE, USAGE

DONE = 0

__all__ = [
    "DONE", "FAILED", "LOST", "NUMBERS", "STOPPED", "STORAGE", "USAGE",
    "LostError", "NumbersError", "StoppedError", "StorageError", "UsageError", "UserError",
    "code_of", "count", "line_of", "nearest", "nearest_name",
]  # fmt: skip


class UsageError(Exception):
    """The command line cannot be parsed."""


class StoppedError(OneLineError):
    """The run was asked to stop and has saved a checkpoint; the same command resumes from it."""


class LostError(Exception):
    """Another process is gone or does not answer; the message names its host."""


class NumbersError(OneLineError):
    """Too many steps in a row had a loss or a gradient that is not finite."""


_CODES: dict[type[BaseException], int] = {
    UserError: FAILED,
    UsageError: USAGE,
    StoppedError: STOPPED,
    LostError: LOST,
    NumbersError: NUMBERS,
    StorageError: STORAGE,
}


# Errors of a full or broken disk.
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
# Errors of a path that the user gave.
_NAME = {
    errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR,
}  # fmt: skip


def code_of(error: BaseException) -> int | None:
    """Returns the exit code of an error that is reported in one line; None for all others."""
    if isinstance(error, OSError) and error.errno in _DISK:
        return STORAGE
    if isinstance(error, OSError) and error.errno in _NAME and error.filename:
        return FAILED
    if _is_out_of_memory(error):
        return FAILED
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)


def line_of(error: BaseException) -> str:
    """Returns the one-line message of an error that has an exit code."""
    if isinstance(error, OSError) and error.errno in _DISK | _NAME:
        name = str(error.filename)
        name = name if len(name) <= 200 else f"{name[:60]}…{name[-60:]}"
        where = f"{name}: " if error.filename else ""
        retry = "; run the same command again to resume once the storage works"
        hint = retry if error.errno in _DISK else ""
        return f"{where}{error.strerror}{hint}"
    if _is_out_of_memory(error):
        details = " ".join(str(error).split())[:200]
        return (
            f"out of memory ({details}); use a smaller batch or model, more config.phases[…]"
            ".micro_batches, or config.compute.remat"
        )
    return str(error)


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, NumPy or XLA ran out of memory; XLA's by name, so JAX is not imported."""
    of_xla = type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")
    return isinstance(error, MemoryError) or (of_xla and "RESOURCE_EXHAUSTED" in str(error))
