"""The gate for every path of the user that is written: a file, a folder, an address in a bucket.

A path is free where nothing is, or an empty file or folder. What is there is replaced, or added to,
only where its mark says that bert-jax wrote it; of a format without a mark, only on request. A
device or a pipe is never written to, and nothing is written into an input, over it or around it.
"""

import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from etils import epath

from bert_jax.errors import StorageError, UserError
from bert_jax.storage import atomic
from bert_jax.storage.read_files import size_of
from bert_jax.storage.remote import HUB, is_remote, open_path, reason, storage_errors


@dataclass(frozen=True)
class OutputKind:
    """A kind of output at a path that the user gave.

    Attributes:
        name: in messages: "page", "batch".
        is_ours: (path of a file that is not empty, or of such a folder) -> whether bert-jax wrote
            it, so that it may be replaced or added to; it may raise a UserError that says more.
            None: the format carries no mark.
        is_folder: or else a file.
        in_buckets: whether it may be in a bucket.
        by_rename: the folder appears complete by a rename, and may replace an earlier one.
        places: names of folders directly in an input where it may be nevertheless.
        holds: names of folders directly in it where inputs may be nevertheless.
    """

    name: str
    is_ours: Callable[[epath.Path], bool] | None
    is_folder: bool = False
    in_buckets: bool = True
    by_rename: bool = False
    places: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()


def check_output(
    path: epath.PathLike,
    kind: OutputKind,
    *,
    inputs: Iterable[epath.PathLike] = (),
    overwrite: bool = False,
    offline: bool = False,
) -> None:
    """Raises UserError for a path that may not be written; changes nothing.

    Args:
        inputs: files and folders that the same command reads, of which some may not exist.
        overwrite: replace a file of a format without a mark, whatever it is.
        offline: read nothing in a bucket.
    """
    text = os.fspath(path)
    if text.startswith(HUB):
        raise UserError(
            f"{text}: nothing is written there; give a path, and push a model with `bert-jax "
            "convert push`"
        )
    if text.endswith("/") and not kind.is_folder:
        raise UserError(f"{text}: names a folder; give the name of a file")
    if is_remote(text) and not kind.in_buckets:
        raise UserError(f"{text}: write to a local path, then copy it to the bucket")
    with storage_errors(text, "cannot be accessed"):
        place = _place(text)
        if not is_remote(text):
            _check_place(text, place, kind)
        check_inputs(text, kind, inputs)
        if offline and is_remote(text):
            return
        if _is_free(place, kind.is_folder):
            return
    if kind.is_ours is None:
        if not overwrite:
            raise UserError(
                f"{text}: exists, and nothing in a {kind.name} says who wrote it; choose another "
                "name, or replace it with --overwrite"
            )
        return
    with storage_errors(text, "cannot be accessed"):
        if not kind.is_ours(place):
            another = "give a new folder" if kind.is_folder else "choose another name"
            article = "an" if kind.name[0] in "aeio" else "a"
            raise UserError(
                f"{text}: exists and is not {article} {kind.name} of bert-jax; {another}"
            )


def check_apart(paths: Iterable[epath.PathLike]) -> None:
    """Raises UserError if one of the outputs of a command is another one, or in it."""
    seen: list[str] = []
    for path in map(os.fspath, paths):
        for other in seen:
            if _is_in(path, other) or _is_in(other, path):
                raise UserError(f"{path}: overlaps the output {other}; give another name")
        seen.append(path)


def write_output(
    path: epath.PathLike,
    data: bytes,
    kind: OutputKind,
    *,
    inputs: Iterable[epath.PathLike] = (),
    overwrite: bool = False,
) -> None:
    """Writes a file atomically where `check_output` allows it, or where one with these bytes is; a
    symbolic link is followed.

    Raises:
        UserError: as `check_output`.
        StorageError: it cannot be written; what was there is unchanged.
    """
    overwrite = overwrite or _has(path, data)
    check_output(path, kind, inputs=inputs, overwrite=overwrite)
    try:
        if is_remote(path):
            open_path(path).write_bytes(data)
        else:
            atomic.write_bytes(os.path.realpath(path), data)
    except OSError as error:
        raise StorageError(f"{os.fspath(path)}: cannot be written ({reason(error)})") from error


def _has(path: epath.PathLike, data: bytes) -> bool:
    """Returns whether a local file has these bytes."""
    if is_remote(path):
        return False
    try:
        info = os.stat(path)
        same_size = stat.S_ISREG(info.st_mode) and info.st_size == len(data)
        return same_size and Path(path).read_bytes() == data
    except OSError:
        return False


def target_of(path: epath.PathLike) -> Path:
    """Returns the local path that is written to, at the end of symbolic links."""
    return Path(os.path.realpath(path))


def _place(text: str) -> epath.Path:
    return open_path(text) if is_remote(text) else epath.Path(target_of(text))


def _check_place(text: str, place: epath.Path, kind: OutputKind) -> None:
    """Raises UserError if a local path cannot be that of a file, or of a folder."""
    try:
        mode = os.stat(place).st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = 0
    if mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{text}: a device, a pipe or a socket; choose another name")
    if kind.by_rename and (
        Path(text).name in ("", "..") or Path(os.path.realpath(os.curdir)).is_relative_to(place)
    ):
        raise UserError(
            f"{text}: this folder would be replaced; give a new one, not the current folder, one "
            "above it, or a path that ends with .."
        )
    if kind.is_folder:
        if mode and not stat.S_ISDIR(mode):
            raise UserError(f"{text}: a file, but a {kind.name} is a folder; give a folder")
        return
    if mode and stat.S_ISDIR(mode):
        raise UserError(f"{text}: is a folder; give the name of a file")
    if not place.parent.is_dir():
        parent = Path(text).parent
        raise UserError(f"{text}: no such folder {parent}; create it, or choose another")


def _is_free(place: epath.Path, is_folder: bool) -> bool:
    """Returns whether nothing is at a path, or what is there is empty."""
    if is_folder:
        return not place.exists() or not any(place.iterdir())
    if not is_remote(place):
        return not place.exists() or os.stat(place).st_size == 0
    try:
        return size_of(place) == 0
    except FileNotFoundError:
        return True


def check_inputs(path: epath.PathLike, kind: OutputKind, inputs: Iterable[epath.PathLike]) -> None:
    """Raises UserError if a path is an input, in one or around one; reads nothing in a bucket."""
    text = os.fspath(path)
    for name in map(os.fspath, inputs):
        if not name or is_remote(name) != is_remote(text):
            continue
        if any(_is_in(text, f"{name.rstrip('/')}/{place}") for place in kind.places):
            continue
        if any(_is_in(name, f"{text.rstrip('/')}/{place}") for place in kind.holds):
            continue
        inside, around = _is_in(text, name), _is_in(name, text)
        if inside and around:
            raise UserError(f"{text}: is the input, which it would replace; give another name")
        if inside:
            raise UserError(f"{text}: is in the input {name}; give a path outside")
        if around:
            raise UserError(f"{text}: contains the input {name}; give a path outside")


def _is_in(path: str, folder: str) -> bool:
    """Returns whether a path is another one, or below it."""
    if is_remote(path) or is_remote(folder):
        return f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")
    inner, outer = target_of(path), target_of(folder)
    if inner.is_relative_to(outer):
        return True
    try:  # another name of the same folder: a mount, a file system that ignores case
        wanted = os.stat(outer)
        return any(
            os.path.samestat(os.stat(above), wanted)
            for above in (inner, *inner.parents)
            if above.exists()
        )
    except OSError:
        return False
