"""Infers the layout of a book from its lines: where chapters begin, and where paragraphs end.

A heading is a markdown heading, or a line such as CHAPTER IV, Book Two or Epilogue after a blank
line or another heading. Two more kinds count only in a book that has more of them than of these:
such a line after the end of a sentence, for books without blank lines, and numerals in order (IV,
IV. A title, 4 A TITLE), for books whose chapters have no other name.
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from bert_jax.data_pipeline.text.clean import BEFORE, OTHER_SPACES

Heading = Literal["", "marked", "unspaced", "numeral"]

# At least one letter or digit: "### * * * *" is a section break, not a chapter.
_MARKDOWN = re.compile(r" {0,3}#{1,6}\s.*[^\W_]")
_UNITS = (
    "one|two|three|four|five|six|seven|eight|nine|first|second|third|fourth|fifth|sixth|seventh|"
    "eighth|ninth"
)
_TEENS = (
    "ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen|twenty|"
    "thirty|forty|fifty|tenth|eleventh|twelfth|last"
)
_WORDS = rf"(?i:(?:the )?(?:{_UNITS}|{_TEENS}|(?:twenty|thirty|forty|fifty)[ -](?:{_UNITS})))"
_NUMBER = rf"(?:[IVXLCDM]+|\d+|{_WORDS})"
_PARTS = "Chapter|Book|Part|Volume|Act|Scene|Letter|Stave|Canto|Section"
_ALONE = "Prologue|Epilogue|Preface|Introduction|Conclusion|Foreword|Afterword"
# A title follows punctuation, or is in capitals, or, after CHAPTER IV, has no sentence punctuation.
_CHAPTER = re.compile(
    rf"\s*(?:(?:{_PARTS}|{_PARTS.upper()}) +{_NUMBER}"
    r"(?:(?!\. +[a-z])\s*[.:\u2014\u2013-].{0,120}|[^\w\n][^a-z\n]{1,130})?"
    rf"|(?:Chapter|CHAPTER) +{_NUMBER} [A-Z][^.!?;]{{0,60}}"
    rf"|(?:{_ALONE}|{_ALONE.upper()})[.:]?)\s*$"
)
_TITLE = r"(?:\. +| ?[\u2014\u2013:-] ?| +(?=[^a-z\n]*$))[^\Wa-z_].{0,60}(?<![,;])"
_NUMERAL = re.compile(
    r"\s*(?:(?=[IVXLC])(C{0,2}(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3}))"
    rf"(?:[.:]?|{_TITLE})|(\d{{1,3}}){_TITLE})\s*$"
)
_ENDS_TEXT = re.compile(r"""[.!?…:"'”’»)*_\]\u2014-]\s*$""")  # noqa: RUF001
# What cleaning leaves to the tokenizer.
_NO_WIDTH = re.compile("[\u061c\u200b-\u200f\ufeff]")
_SPACE = re.compile(f"[{OTHER_SPACES}]")
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
_LONGEST = 150  # characters of a heading
_FEWEST = 3  # headings that the kinds "unspaced" and "numeral" need to be accepted
_LONG_LINE = 100  # characters; hard-wrapped text has shorter ones


@dataclass(frozen=True)
class Layout:
    """The layout of a book's lines."""

    accepted: frozenset[Heading]  # the kinds of heading that begin a chapter
    headings: int  # number of headings of these kinds
    line_paragraphs: bool  # every line is a paragraph, although no blank line separates them


class Headings:
    """Distinguishes headings from text, one line at a time."""

    def __init__(self) -> None:
        self._before, self._broken = "", True

    def kind(self, line: str) -> Heading:
        """Returns the kind of the next line."""
        line = _shown(line)
        kind = self._classify(line)
        self._before, self._broken = line, bool(kind) or not line.strip()
        return kind

    def _classify(self, line: str) -> Heading:
        if _MARKDOWN.match(line):
            return "marked"
        if len(line) > _LONGEST or not (self._broken or _ENDS_TEXT.search(self._before)):
            return ""
        if _CHAPTER.match(line):
            return "marked" if self._broken else "unspaced"
        return "numeral" if _NUMERAL.match(line) and line.strip() else ""


class Survey:
    """Infers the layout of a book in one pass over its lines."""

    def __init__(self) -> None:
        self._headings = Headings()
        self._kinds: Counter[Heading] = Counter()
        self._numerals, self._next = 0, 1
        self._characters = self._in_long = self._long = self._long_before_blank = 0
        self._after_long = False

    def add(self, line: str) -> None:
        """Adds the next line."""
        kind = self._headings.kind(line)
        self._kinds[kind] += 1
        if kind == "numeral":
            value = _value(line)
            if value in (1, self._next):
                self._numerals, self._next = self._numerals + 1, value + 1
        self._long_before_blank += self._after_long and not line.strip()
        self._after_long = len(line) > _LONG_LINE
        self._characters += len(line)
        self._long += self._after_long
        self._in_long += len(line) * self._after_long

    def layout(self) -> Layout:
        """Returns the layout of the lines so far."""
        accepted: set[Heading] = {"marked"}
        count = self._kinds["marked"]
        if self._kinds["unspaced"] >= max(_FEWEST, count + 1):
            accepted, count = accepted | {"unspaced"}, count + self._kinds["unspaced"]
        if self._numerals >= max(_FEWEST, count + 1):
            accepted, count = accepted | {"numeral"}, count + self._kinds["numeral"]
        line_paragraphs = (
            2 * self._in_long > self._characters and 2 * self._long_before_blank < self._long
        )
        return Layout(frozenset(accepted), count, line_paragraphs)


def _shown(line: str) -> str:
    """Returns a line as cleaning shows it: without characters of no width, with plain spaces."""
    if line.isascii() and line.isprintable() and "&" not in line:
        return line
    for rule in BEFORE:
        line, _ = rule.apply(line)
    return _NO_WIDTH.sub("", _SPACE.sub(" ", line))


def _value(line: str) -> int:
    """Returns the number that starts a line of the kind "numeral"."""
    numeral = _NUMERAL.match(_shown(line))
    if numeral is None:
        return 0
    if numeral[2]:
        return int(numeral[2])
    digits = [_ROMAN[letter] for letter in numeral[1]]
    later = [*digits[1:], 0]
    return sum(-d if d < n else d for d, n in zip(digits, later, strict=True))
