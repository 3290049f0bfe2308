"""A disk without room: what is written below a folder fails, after a number of writes."""

import builtins
import errno
import io
import os
from pathlib import Path
from typing import Any, Literal

import pytest


class _FullError(OSError):
    def __init__(self) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _File:
    """A file whose `write` may fail."""

    def __init__(self, file: Any, spend: Any) -> None:
        self._file, self._spend = file, spend

    def write(self, data: Any) -> int:
        self._spend()
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def fill_disk(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    place: Literal["write", "fsync", "rename"] = "write",
    after: int = 0,
) -> list[str]:
    """Lets `after` operations below `folder` succeed and every later one fail with ENOSPC.

    Returns:
        A list that grows by one entry per failure.
    """
    failures: list[str] = []
    spent = 0

    def spend() -> None:
        nonlocal spent
        spent += 1
        if spent > after:
            failures.append(place)
            raise _FullError

    def below(path: Any) -> bool:
        return str(folder) in str(path)

    if place == "write":
        plain = io.open

        def opened(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            file = plain(path, mode, *args, **kwargs)
            return _File(file, spend) if below(path) and set(mode) & set("wax+") else file

        monkeypatch.setattr(io, "open", opened)
        monkeypatch.setattr(builtins, "open", opened)
    elif place == "fsync":
        sync = os.fsync

        def synced(handle: int) -> None:
            if below(os.readlink(f"/proc/self/fd/{handle}")):
                spend()
            sync(handle)

        monkeypatch.setattr(os, "fsync", synced)
    else:
        for name in ("rename", "replace"):
            plain = getattr(os, name)

            def renamed(source: Any, target: Any, plain: Any = plain) -> None:
                if below(source) or below(target):
                    spend()
                plain(source, target)

            monkeypatch.setattr(os, name, renamed)
    return failures
