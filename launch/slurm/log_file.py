"""Copies a log that grows to standard output: each line once, in whole lines."""

import sys
from pathlib import Path

from bert_jax.storage.regular_file import open_regular
from bert_jax.storage.remote import storage_errors


class LogFile:
    """A log that other machines append to."""

    def __init__(self, path: Path, *, from_end: bool = False):
        """from_end: leave out what the file holds now."""
        self.path = path
        self._read = path.stat().st_size if from_end and path.exists() else 0
        self._rest = b""  # an incomplete line

    def copy_lines(self) -> None:
        """Copies the complete lines that were appended since the last call.

        Raises:
            UserError: it is not a regular file, or cannot be read: others write to its folder.
        """
        *lines, self._rest = (self._rest + self._new()).split(b"\n")
        self._write(b"".join(line + b"\n" for line in lines))

    def copy_rest(self) -> None:
        """Copies what is left, an incomplete last line included."""
        self.copy_lines()
        if self._rest:
            self._write(self._rest + b"\n")
            self._rest = b""

    def _new(self) -> bytes:
        # Opened again each time: a network file system shows what others wrote after an open.
        with storage_errors(self.path):
            try:
                with open_regular(self.path) as file:
                    file.seek(self._read)
                    data = file.read()
            except FileNotFoundError:
                return b""
        self._read += len(data)
        return data

    def _write(self, data: bytes) -> None:
        if data:
            sys.stdout.write(data.decode(errors="backslashreplace"))
            sys.stdout.flush()
