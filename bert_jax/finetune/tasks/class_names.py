"""The names of classes as files spell them: what they say decides, not how they are typed."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Final

_NUMBER: Final = re.compile(
    r"([+-]?)(?=\.?\d)(\d*)(?:\.(\d*))?(?:[eE][+-]?\d{1,4})?", re.ASCII
)  # sign, whole part, fraction
_MOST_DIGITS: Final = 40  # of a number with an exponent that is written without
_UNSEEN: Final = ("Cc", "Cf")  # categories of characters without a width, such as U+FEFF
# Characters without a width that distinguish words and symbols: joiners and the tags of flags
# distinguish what is seen, selectors the style of a symbol.
_JOINERS: Final = re.compile("[\u200c\u200d\U000e0020-\U000e007f]")
_SELECTORS: Final = re.compile("[\ufe00-\ufe0f]")


class ClassNames:
    """The classes of a task.

    Spellings that differ in white space, in characters without a width, in the composition of
    accents, or as 1, +1.0 and 1e0 do, are one class. Codes and versions, such as 1 and 01, 1.1 and
    1.10, are two.

    Attributes:
        names: in the order of their ids.
        remarks: which spellings are one class, which are two though they look alike,
            and that -1 is one where it may stand for none.
    """

    def __init__(self, names: Sequence[str], remarks: Sequence[str] = ()) -> None:
        self.names, self.remarks = tuple(names), tuple(remarks)
        self._ids = {_said(name): number for number, name in enumerate(names)}
        self._ids |= {name: number for number, name in enumerate(names)}  # "1.10" beside "1.1"

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
        if {*names} == {"-1", "0", "1"}:
            remarks.append("label -1 is a class; leave its rows out if it stands for none")
        if all(map(_NUMBER.fullmatch, names)):
            ordered = sorted(names, key=lambda said: (Decimal(said), said))
        else:
            ordered = sorted(names)
        return cls([names[said] for said in ordered], remarks)

    def find(self, spelling: str) -> int | None:
        """Returns the id of a class; None if it is not one of these."""
        exact = self._ids.get(cleaned(spelling))
        return self._ids.get(_said(spelling)) if exact is None else exact


def cleaned(spelling: str) -> str:
    """Returns a name in NFC, its words joined by one space, without unseen characters around it."""
    text = unicodedata.normalize("NFC", spelling)
    kept = [i for i, c in enumerate(text) if unicodedata.category(c) not in _UNSEEN]
    return " ".join(text[kept[0] : kept[-1] + 1].split()) if kept else ""


def no_gold_label(labels: Iterable[str]) -> set[str]:
    """Returns the labels of a file that stand for none: "-", as in SNLI and MNLI, but for classes
    + and -; "-1" where the others are 0, 1, 2 and so on, as on the Hugging Face hub."""
    others = {*map(cleaned, labels)} - {"-", "-1"}
    found = set() if "+" in others else {"-"}
    if len(others) > 2 and others == {str(number) for number in range(len(others))}:
        found.add("-1")
    return found


def is_blank(text: str) -> bool:
    """Returns whether a text has white space and unseen characters alone."""
    return all(c.isspace() or unicodedata.category(c) in _UNSEEN for c in text)


def _said(spelling: str) -> str:
    """Returns what all spellings of a class have in common."""
    name = cleaned(spelling)
    if not name.isprintable():
        seen = (
            c for c in name if unicodedata.category(c) not in _UNSEEN or _JOINERS.match(c)
        )  # not "sp\u200bam"
        name = unicodedata.normalize("NFC", "".join(seen))
    number = _NUMBER.fullmatch(name)
    return _plain(number) if number else name


def _plain(number: re.Match[str]) -> str:
    """Returns a number without what does not change it; the zeros of codes and versions stay."""
    text, sign, whole, fraction = number[0], number[1], number[2], number[3] or ""
    if "e" in text.lower():
        value = Decimal(text)
        if abs(value.adjusted()) > _MOST_DIGITS or len(text) > _MOST_DIGITS:
            return text
        sign, (whole, _, fraction) = text[0], f"{value.copy_abs():f}".partition(".")
    fraction = fraction if fraction.strip("0") else ""
    digits = f"{whole or 0}{'.' if fraction else ''}{fraction}"
    return f"-{digits}" if sign == "-" and digits.strip("0.") else digits


def alike(names: Iterable[str]) -> list[str]:
    """Returns a remark on each set of names that are equal but for the case of letters, that look
    alike, or that are one number."""
    remarks = []
    listed = [*names]
    keys: tuple[tuple[Callable[[str], str | Decimal], str], ...] = (
        (str.casefold, "only their case differs"),
        (_look, "they look alike"),
        (_value, "they are the same number"),
    )
    for key, why in keys:
        same: defaultdict[str | Decimal, list[str]] = defaultdict(list)
        for name in listed:
            same[key(name)].append(name)
        several = [one for one in same.values() if len(one) > 1]
        remarks += [f"labels {_listed(s)} are {len(s)} classes, though {why}" for s in several]
    return remarks


def _look(name: str) -> str:
    return _SELECTORS.sub("", _JOINERS.sub("", name))


def _value(name: str) -> str | Decimal:
    return Decimal(name) if _NUMBER.fullmatch(name) else name


def _listed(spellings: Iterable[str]) -> str:
    return " and ".join(map(repr, sorted(spellings)))
