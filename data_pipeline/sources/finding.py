"""Finds the files that a source reads; counts every file that it skips, with the reason."""

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from bert_jax.data_pipeline.sources.document import SourceSpec
from bert_jax.data_pipeline.sources.formats import extension, format_of_name, refuse
from bert_jax.errors import UserError, count, first_few, hub_hint
from bert_jax.storage.read_files import objects, path_of
from bert_jax.storage.regular_file import check_not_special
from bert_jax.storage.remote import HUB, is_remote, storage_errors

_DANGLING: Final = "leading nowhere (link)"
_UNREADABLE: Final = "unreadable"
_OTHER_KIND: Final = "of another kind"
_OTHER_ENDING: Final = "text with another ending"  # which is read if it is given alone
_TEXT: Final = (".md", ".markdown", ".mdown", ".rst", ".text", ".asc")
_SHOWN: Final = 3  # names listed per reason
_WILDCARDS: Final = re.compile(r"((?:[^*?\[]*/)?)([^/]*[*?\[].*)", re.DOTALL)


class NothingFoundError(UserError):
    """A folder has no file of a source's kind."""


@dataclass(frozen=True)
class Found:
    """The files at a source's path."""

    files: list[Path]  # to be read, sorted
    left_out: Mapping[str, Sequence[str]]  # reason -> sorted paths relative to the source's folder
    warnings: Sequence[str] = ()
    about: Sequence[Path] = ()  # files that describe these: which there are, and what is in them
    base: Path | None = None  # the folder that their names begin from, if not the source's path
    # Of a dataset on the hub, see `hub.recorded`.
    commits: Mapping[str, str] = field(default_factory=dict)

    def entry(self) -> dict[str, dict[str, object]]:
        """Returns `left_out` as stored in the manifest: counts and the first names."""
        return {
            reason: {"count": len(names), "first": [*map(printable, names[:_SHOWN])]}
            for reason, names in sorted(self.left_out.items())
        }

    def describe(self) -> list[str]:
        """Returns a line per reason: "4 of another kind (.csv): a.csv, b.csv, …"."""
        lines = []
        for reason, names in sorted(self.left_out.items()):
            shown = map(printable, first_few(names, _SHOWN))
            lines.append(f"{len(names):,} {reason}: {', '.join(shown)}")
        return lines


def printable(name: str) -> str:
    """Escapes whatever in a file name would break a line, a terminal or UTF-8."""
    valid = name.encode("utf-8", "backslashreplace").decode()
    return re.sub(r"[^ -~]", lambda m: m[0] if m[0].isprintable() else ascii(m[0])[1:-1], valid)


def find(
    spec: SourceSpec,
    wanted: Callable[[Path], bool],
    described: str,
    *,
    ignored: Callable[[Path], bool] = lambda path: False,
    reason_of: Callable[[Path], str] = lambda path: "",
    text: bool = True,
) -> Found:
    """Returns the file itself, or the `wanted` files below a folder; follows links, and visits each
    folder once. In a path with wildcards (*, ?, []), those that it matches, and those below folders
    that it matches. Raises UserError if the path does not exist, the folder has no wanted file, or
    a file given directly has another format.

    Args:
        described: the wanted files in words, for messages.
        ignored: files and folders that do not belong to such a source; they are not counted.
        reason_of: why a file is not wanted; by default it is of another kind.
        text: check the extension of a file given directly: any, except one of another format.
    """
    root, pattern = _split(spec.path)
    there = _objects(root) if is_remote(root) else _local(root, ignored)
    if there is None and pattern:
        raise UserError(f"{spec.path}: {root} is a file, not a folder; check the path")
    if there is None:
        if text:
            refuse(root, format_of_name(root), described)
        return Found([root], {})
    if pattern:
        there = _matching(there, root, pattern)
    files: list[Path] = []
    left_out: dict[str, list[str]] = {}
    for path, reason in there:
        if reason or not wanted(path):
            reason = reason or reason_of(path) or _other(extension(path), text=text)
            left_out.setdefault(reason, []).append(path.relative_to(root).as_posix())
        else:
            files.append(path)
    for names in left_out.values():
        names.sort()
    files.sort(key=lambda p: p.relative_to(root).as_posix())
    result = Found(files, left_out)
    if not files and pattern and not left_out:
        raise UserError(f"{spec.path}: matches no file; check the path")
    if not files:
        raise NothingFoundError(_nothing(spec, result, described, text))
    return result


def find_ending(spec: SourceSpec, endings: Collection[str], described: str) -> Found:
    """Returns the files of a format that is not text, by the ends of their names, see `find`."""
    return find(spec, lambda path: path.suffix.lower() in endings, described, text=False)


def named(path: Path) -> list[Path]:
    """Returns the files and folders that a source's path names: one, or what its wildcards match;
    of wildcards in a bucket the folder above them."""
    root, pattern = _split(path)
    if not pattern:
        return [path]
    return [root] if is_remote(root) else sorted(root.glob("/".join(pattern)))


def above_wildcards(path: Path) -> Path:
    """Returns the folder above the first wildcard of a path, or a path without any."""
    return _split(path)[0]


def _split(path: Path) -> tuple[Path, list[str]]:
    """Splits a path at its first wildcard: returns the folder above, and the rest in parts."""
    match = _WILDCARDS.fullmatch(os.fspath(path))
    if not match or (not is_remote(path) and path.exists()):
        return path, []
    return path_of(match[1] or "."), match[2].split("/")


def _matching(
    there: Iterable[tuple[Path, str]], root: Path, pattern: Sequence[str]
) -> Iterator[tuple[Path, str]]:
    for path, reason in there:
        parts = path.relative_to(root).as_posix().split("/")
        if len(parts) >= len(pattern) and all(map(fnmatchcase, parts, pattern)):
            yield path, reason


def _objects(root: Path) -> list[tuple[Path, str]] | None:
    """Returns what `_walk` yields, for a folder of a bucket; None if the path is an object."""
    with storage_errors(root):
        sizes = objects(root)
    if not sizes:
        raise UserError(f"{root}: no such object or folder; check the path")
    if list(sizes) == [""]:
        return None
    hidden = {name for name in sizes if any(part.startswith(".") for part in name.split("/"))}
    return [
        (root / name, "hidden" if name in hidden else "" if size else "empty")
        for name, size in sizes.items()
    ]


def _local(root: Path, ignored: Callable[[Path], bool]) -> Iterator[tuple[Path, str]] | None:
    """Returns what `_walk` yields; None if the path is a file."""
    if root.is_file():
        return None
    if not root.is_dir():
        check_not_special(root)
        hint = hub_hint(str(root).removeprefix(HUB), "dataset") or "; check the path"
        raise UserError(f"{root}: no such file or folder{hint}")
    return _walk(root, ignored)


def _walk(root: Path, ignored: Callable[[Path], bool]) -> Iterator[tuple[Path, str]]:
    """Yields every file below a folder with "", and every skipped path with its reason.

    Linked folders are visited last, so that a folder below `root` gets its own path, not a link's.
    """
    folders, links = [root], list[Path]()
    seen: set[tuple[int, int]] = set()
    while folders or links:
        folder = folders.pop() if folders else links.pop(0)
        try:
            status = folder.stat()
            if (status.st_dev, status.st_ino) in seen:
                yield folder, "read already (folder by a link)"
                continue
            seen.add((status.st_dev, status.st_ino))
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            yield folder, "unreadable (folder)"
            continue
        for entry in entries:
            path = folder / entry.name
            if ignored(path):
                continue
            reason = _reason(entry)
            if reason is None:
                (links if entry.is_symlink() else folders).append(path)
            else:
                yield path, reason


def _reason(entry: os.DirEntry[str]) -> str | None:
    """Returns why an entry is skipped, "" for a file to check, None for a folder."""
    if entry.name.startswith("."):
        return "hidden"
    try:
        if entry.is_dir():
            return None
        if entry.is_file():
            return "" if entry.stat().st_size else "empty"
    except PermissionError:  # of the folder, or of one on the way of a link
        return _UNREADABLE
    except OSError:  # a cycle of links
        return _DANGLING
    return _DANGLING if entry.is_symlink() else "neither file nor folder"


def _other(ending: str, *, text: bool) -> str:
    """Returns why a file with such a name is not read."""
    kind = _OTHER_ENDING if text and ending in _TEXT else _OTHER_KIND
    return f"{kind} ({ending or 'no extension'})"


def _nothing(spec: SourceSpec, empty: Found, described: str, text: bool) -> str:
    if not empty.left_out:
        problem = f"no {described} there" if any(spec.path.iterdir()) else "empty folder"
        return f"{spec.path}: {problem}; source {spec.name!r} needs {described}"
    names = [name for names in empty.left_out.values() for name in names]
    formats = Counter(filter(None, (format_of_name(Path(name)) for name in names)))
    if formats:
        remedy = f"; {formats.most_common(1)[0][0].remedy}"
    elif text and any(reason.startswith((_OTHER_KIND, _OTHER_ENDING)) for reason in empty.left_out):
        remedy = "; rename files of plain text to NAME.txt"
    else:
        remedy = ""
    reasons = "; ".join(empty.describe())
    return (
        f"{spec.path}: {count(len(names), 'file')}, but no {described} with text ({reasons}); "
        f"source {spec.name!r} needs {described}{remedy}"
    )
