"""Bold and italics of wikitext, whose marks are runs of apostrophes: which of these are text.

MediaWiki's rule, line by line (mediawiki.org/wiki/Help:Formatting; `doQuotes` of its parser): of
four apostrophes the first is text, of more than five all but the last five. Where the marks of both
bold and italics are left open, one mark of bold is an apostrophe and a mark of italics: the first
after a word of one letter, else the first after a longer word, else the first after a space.
"""

import re
from collections.abc import Sequence
from typing import Final

BARRIER: Final = "\x03"  # stands where markup was: apostrophes on its two sides are two runs
APOSTROPHE: Final = "\x04"  # one that is text, such as inside nowiki
_RUN: Final = re.compile("(''+)")
_ITALIC, _BOLD, _BOTH = 2, 3, 5  # apostrophes of a mark
_QUOTE: Final = '"'
# What is open, outermost first, and a mark -> what is open then, and whether italics begin or end
# there. "?" is both, opened at once: which is the outer one depends on which is closed first.
_AFTER: Final[dict[tuple[str, int], tuple[str, bool]]] = {
    ("", _ITALIC): ("i", True),
    ("b", _ITALIC): ("bi", True),
    ("i", _ITALIC): ("", True),
    ("bi", _ITALIC): ("b", True),
    ("ib", _ITALIC): ("b", True),
    ("?", _ITALIC): ("b", True),
    ("", _BOLD): ("b", False),
    ("b", _BOLD): ("", False),
    ("i", _BOLD): ("ib", False),
    ("bi", _BOLD): ("i", False),
    ("ib", _BOLD): ("i", False),
    ("?", _BOLD): ("i", False),
    ("", _BOTH): ("?", False),
    ("b", _BOTH): ("i", True),
    ("i", _BOTH): ("b", True),
    ("bi", _BOTH): ("", True),
    ("ib", _BOTH): ("", True),
    ("?", _BOTH): ("", False),
}


def quoted(text: str) -> str:
    """Makes quotation marks of the marks of italics, mostly titles, as WikiExtractor does; removes
    those of bold text, of text that is both throughout, and of nothing. What is open at the end of
    a line ends there. Removes `BARRIER`, and puts apostrophes for `APOSTROPHE`."""
    if "''" in text:
        lines = text.split("\n")
        text = "\n".join(_quoted_line(line) if "''" in line else line for line in lines)
    return text.replace(BARRIER, "").replace(APOSTROPHE, "'")


def _quoted_line(line: str) -> str:
    pieces = _RUN.split(line)  # text, mark, text, …, text
    _shorten(pieces)
    opened, began = "", 0  # `began`: the last mark with which italics may have begun
    for at in range(1, len(pieces), 2):
        mark = len(pieces[at])
        before, pieces[at] = opened, ""
        opened, changes = _AFTER[opened, mark]
        if before == "?" and opened:  # it was italics that began there
            pieces[began] = _QUOTE
        elif opened == "?" or (changes and "i" not in before):
            began = at
            pieces[at] = _QUOTE if changes else ""
        if changes and ("i" in before or before == "?"):
            _close(pieces, began, at)
    if "i" in opened:
        _close(pieces, began, len(pieces))
    return "".join(pieces)


def _close(pieces: list[str], began: int, at: int) -> None:
    """Ends italics before the piece `at`; both of their marks go if nothing is between them."""
    is_empty = not "".join(pieces[began + 1 : at]).strip(f" \t{BARRIER}")
    if is_empty:
        pieces[began] = ""
    elif at < len(pieces):
        pieces[at] = _QUOTE
    else:
        pieces[-1] = pieces[-1].rstrip() + _QUOTE


def _shorten(pieces: list[str]) -> None:
    """Moves apostrophes that are text out of the marks, which then have 2, 3 or 5."""
    marks = range(1, len(pieces), 2)
    for at in marks:
        length = len(pieces[at])
        if length > _BOTH or length == _BOLD + 1:
            kept = min(_BOTH, length - 1)
            _take(pieces, at, kept)
    lengths = [len(pieces[at]) for at in marks]
    bold = sum(length >= _BOLD for length in lengths)
    italic = sum(length != _BOLD for length in lengths)
    if bold % 2 and italic % 2 and (at := _apostrophe(pieces)):
        _take(pieces, at, _ITALIC)


def _take(pieces: list[str], at: int, kept: int) -> None:
    """Leaves the last apostrophes of a mark; those before them are text."""
    pieces[at - 1] += pieces[at][kept:]
    pieces[at] = pieces[at][:kept]


def _apostrophe(pieces: Sequence[str]) -> int:
    """Returns the place of the mark of bold that begins with an apostrophe; 0 if there is none."""
    after_word = after_space = 0
    for at in range(1, len(pieces), 2):
        if len(pieces[at]) != _BOLD:
            continue
        text = pieces[at - 1]
        if text.endswith(" "):
            after_space = after_space or at
        elif text[-2:-1] == " " and " " < text[-1] <= "~":  # MediaWiki looks at bytes
            return at
        else:
            after_word = after_word or at
    return after_word or after_space
