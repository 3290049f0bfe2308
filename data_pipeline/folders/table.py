"""Entries of the tables: a file or a key, and how it is used."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

# "read": has its meaning. "no effect": changes no number that is computed. "refused": the folder
# is, by the name of the entry, since its meaning would be lost.
Use = Literal["read", "no effect", "refused"]
READ: Final = "read"
NO_EFFECT: Final = "no effect"
REFUSED: Final = "refused"


@dataclass(frozen=True)
class Entry:
    """Files, folders or keys.

    Attributes:
        names: patterns of `fnmatch`; that of a folder ends with "/".
        about: what is read, or why the entry has no effect or is refused.
        unless: of refused keys, the values that change nothing.
    """

    names: tuple[str, ...]
    use: Use
    about: str
    unless: tuple[Any, ...] = ()

    def matches(self, name: str) -> bool:
        """Returns whether a file, a folder with "/" at its end, or a key is one of these."""
        return any(fnmatchcase(name, pattern) for pattern in self.names)

    def allows(self, value: Any) -> bool:
        """Returns whether a refused key has a value that changes nothing."""
        return any(value == one and type(value) is type(one) for one in self.unless)


def find_entry(name: str, entries: Iterable[Entry]) -> Entry | None:
    """Returns the first entry for a name; None if there is none."""
    return next((entry for entry in entries if entry.matches(name)), None)


def read(names: str, about: str) -> Entry:
    """Returns an entry that is read; names: separated by spaces."""
    return Entry(tuple(names.split()), READ, about)


def no_effect(names: str, about: str) -> Entry:
    """Returns an entry without effect."""
    return Entry(tuple(names.split()), NO_EFFECT, about)


def refused(names: str, about: str, *unless: Any) -> Entry:
    """Returns an entry that is refused unless it has one of these values."""
    return Entry(tuple(names.split()), REFUSED, about, unless)
