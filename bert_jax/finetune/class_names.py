"""The names of classes as files spell them: what they say decides, not how they are typed."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final

_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
_WHOLE: Final = re.compile(r"([+-]?\d+)\.0+")
_UNSEEN: Final = ("Cc", "Cf")  # categories of characters without a width, such as U+FEFF


class ClassNames:
    """The classes of a task.

    Spellings that differ in white space, in the composition of accents, or as 1 and 1.0 do, are one
    class.

    Attributes:
        names: in the order of their ids.
        remarks: which spellings are one class, and which are two though they look alike.
    """

    def __init__(self, names: Sequence[str], remarks: Sequence[str] = ()) -> None:
        self.names, self.remarks = tuple(names), tuple(remarks)
        self._ids = {_said(name): number for number, name in enumerate(names)}

    @classmethod
    def of(cls, spellings: Iterable[str]) -> "ClassNames":
        """Returns the classes that occur in a file, sorted: by number if all are numbers."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for spelling in set(spellings):
            found[_said(spelling)].add(spelling)
        names, remarks = {}, []
        for said, typed in found.items():
            names[said] = said if len(typed) > 1 else cleaned(*typed)
            if len(typed) > 1:
                remarks.append(f"labels {_listed(typed)} are one class, {said!r}")
        remarks += alike(names.values())
        if all(map(_NUMBER.fullmatch, names)):
            ordered = sorted(names, key=lambda said: (Decimal(said), said))
        else:
            ordered = sorted(names)
        return cls([names[said] for said in ordered], remarks)

    def find(self, spelling: str) -> int | None:
        """Returns the id of a class; None if it is not one of these."""
        return self._ids.get(_said(spelling))


def cleaned(spelling: str) -> str:
    """Returns a name in NFC, its words joined by one space, without unseen characters around it."""
    text = unicodedata.normalize("NFC", spelling)
    kept = [i for i, c in enumerate(text) if unicodedata.category(c) not in _UNSEEN]
    return " ".join(text[kept[0] : kept[-1] + 1].split()) if kept else ""


def _said(spelling: str) -> str:
    """Returns what all spellings of a class have in common."""
    name = cleaned(spelling)
    whole = _WHOLE.fullmatch(name)
    return whole[1] if whole else name


def alike(names: Iterable[str]) -> list[str]:
    """Returns a remark on each set of names that are equal but for the case of letters."""
    by_case: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        by_case[name.casefold()].append(name)
    several = [same for same in by_case.values() if len(same) > 1]
    what = "classes, though only their case differs"
    return [f"labels {_listed(same)} are {len(same)} {what}" for same in several]


def _listed(spellings: Iterable[str]) -> str:
    return " and ".join(map(repr, sorted(spellings)))
