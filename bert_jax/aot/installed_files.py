"""Checks the files of a compiler before it is loaded: a damaged one may kill the process."""

import base64
import hashlib
import importlib.metadata
from pathlib import Path


def check(folder: Path, package: str) -> None:
    """Raises OSError for a file of a package that is not as it was installed: missing, cut off or
    changed; a folder without what pip records of the package is not checked.

    folder: that pip installed into.
    """
    for distribution in importlib.metadata.distributions(name=package, path=[str(folder)]):
        for file in distribution.files or ():
            if file.suffix == ".pyc":  # of which pip lists some that Python may delete
                continue
            if not (folder / file).is_file():
                raise OSError(f"{file} is missing")
            found = (folder / file).stat().st_size
            if file.size not in (None, found):
                raise OSError(f"{file} has {found:,} bytes, not {file.size:,}")
            if file.hash and file.hash.value != _digest(folder / file, file.hash.mode):
                raise OSError(f"{file} has other bytes than were installed")


def _digest(file: Path, algorithm: str) -> str:
    """Returns the digest of a file as RECORD has it."""
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, algorithm).digest()
    return base64.urlsafe_b64encode(found).rstrip(b"=").decode()
