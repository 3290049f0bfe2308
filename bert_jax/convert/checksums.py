"""SHA256SUMS of an exported folder: written by the export, verified when the folder is loaded.

The format is that of coreutils, so `sha256sum -c SHA256SUMS` checks a copy without this program.
transformers ignores the file. It detects damage; it does not authenticate who wrote the folder.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bert_jax.errors import UserError
from bert_jax.storage.digest import file_digest
from bert_jax.storage.read_files import read_bytes
from bert_jax.storage.remote import storage_errors
from bert_jax.storage.versions import hashed

SUMS = "SHA256SUMS"
_REMEDY = f"copy or export the folder again; if you changed it on purpose, remove {SUMS}"
_LINE = re.compile(r"([0-9a-f]{64})  ((?:\w+/)?[\w.-]+)")


def render(folder: Path, names: Iterable[str]) -> str:
    """Returns the contents of SHA256SUMS for these files of a folder."""
    return text({name: file_digest(folder / name) for name in names})


def text(sums: Mapping[str, str]) -> str:
    """Returns the contents of SHA256SUMS for these digests, by name."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))


def read_checksums(folder: Path) -> dict[str, str] | None:
    """File name -> sha256; None if the folder has no SHA256SUMS, as from other programs. UserError
    if it cannot be read, or is not in the format of an export."""
    file = folder / SUMS
    with storage_errors(file):
        if not file.exists():
            return None
        lines = read_bytes(file).decode("ascii", "replace").splitlines()
    matches = [_LINE.fullmatch(line) for line in lines]
    if not matches or not all(matches):
        raise UserError(f"{file}: damaged; {_REMEDY}")
    return {match[2]: match[1] for match in matches if match}


def below(sums: Mapping[str, str] | None, name: str) -> Mapping[str, str] | None:
    """Returns the sums of the files in a folder of the folder; "" is the folder itself."""
    if sums is None or not name:
        return sums
    start = f"{name}/"
    return {file.removeprefix(start): one for file, one in sums.items() if file.startswith(start)}


@contextmanager
def checked(folder: Path, name: str, sums: Mapping[str, str] | None) -> Iterator[None]:
    """Raises UserError if a file differs from the exported one, if SHA256SUMS does not list it, or
    if it changes within, where it is read. `sums`: as returned by `read`; None skips the check."""
    if sums is None:
        yield
        return
    if name not in sums:
        raise UserError(f"{folder / SUMS}: does not list {name}; {_REMEDY}")
    with storage_errors(folder / name):
        file = hashed(folder / name)
    if file.digest != sums[name]:
        raise UserError(f"{folder / name}: checksum differs from {SUMS}; {_REMEDY}")
    yield
    file.checked()
