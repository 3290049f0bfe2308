"""Exit codes and lines of errors, as docs/reliability.md promises them."""

import errno

import pytest

from bert_jax.errors import (
    LostError,
    NumbersError,
    StoppedError,
    StorageError,
    UsageError,
    UserError,
    code_of,
    line_of,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("bad input"), 1),
        (UsageError("bad command line"), 2),
        (StoppedError("asked to stop"), 42),
        (LostError("a process is gone"), 43),
        (NumbersError("not finite"), 44),
        (StorageError("cannot be written"), 45),
        (OSError(errno.ENOSPC, "No space left on device"), 45),
        (OSError(errno.ENAMETOOLONG, "File name too long", "a" * 300), 1),
        (OSError(errno.ENAMETOOLONG, "File name too long"), None),  # no file that a user named
        (MemoryError("12 GB"), 1),
        (ZeroDivisionError("a bug"), None),
    ],
)
def test_an_error_has_its_exit_code(error: BaseException, code: int | None) -> None:
    assert code_of(error) == code
    if code is not None:
        assert len(line_of(error).splitlines()) == 1
