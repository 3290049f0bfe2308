"""Wikitext without what the parser need not see, as MediaWiki's preprocessor removes it first.

Comments, the tags of extensions with what is inside (mediawiki.org/wiki/Preprocessor_ABNF), other
tags whose content is text, and the marks of lists go, each in linear time. That saves almost half
of the time of parsing, and leaves the parser nothing that takes it minutes or gigabytes: it follows
every mark that is never closed to the end of the page.
"""

import re
from collections import Counter
from functools import lru_cache
from typing import Final

from bert_jax.data_pipeline.text.apostrophes import APOSTROPHE, BARRIER
from bert_jax.data_pipeline.text.variants import choose_variants
from bert_jax.data_pipeline.text.wikitext_words import DROPPED_EXTENSIONS, DROPPED_TAGS

LIST_LINE: Final = "\x02"  # marks a line that begins with *, # or ;
_AMPERSAND: Final = "\x01"  # hides entities, which cleaning replaces
# Limits of a page, far above those of real ones (of 103: at most 2,291 marks, and 1.2 million).
_MOST_MARKS: Final = 100_000
_MOST_WORK: Final = 50_000_000  # marks that are not closed, times characters

_EXTENSION: Final = re.compile(
    rf"<(?:(!--)|({'|'.join(sorted(DROPPED_EXTENSIONS))}|nowiki)(?=\s|/?>))", re.IGNORECASE
)
# Without a closing tag, these take the rest of the page; other tags are then none.
_TO_THE_END: Final = ("!--", "includeonly")
_IGNORED: Final = re.compile(r"</?(?:noinclude|onlyinclude)\s*/?>", re.IGNORECASE)
_NAMES: Final = "|".join(sorted(DROPPED_TAGS))
_SPACE_TAG: Final = re.compile(r"<[bh]r\b[^<>]*>", re.IGNORECASE)
_OTHER_TAG: Final = re.compile(
    rf"</?(?!/?(?:{_NAMES})\b)[a-z][^<>]*>|</?(?:ref|nowiki)\b[^<>\n]*+(?!>)", re.IGNORECASE
)
_STRAY: Final = re.compile(rf"<(?!/?(?:{_NAMES})\b)", re.IGNORECASE)
_HEADING: Final = re.compile(r"^=[^\n]*", re.MULTILINE)
_MOST_EQUAL_SIGNS: Final = 1000  # of a heading: the parser calls itself at each, without a limit
_LIST_MARKS: Final = re.compile(r"^[*#:;]+", re.MULTILINE)
_MARK: Final = re.compile(
    rf"\{{\{{|\}}\}}|\[\[|\]\]|\[(?=\w+:|//)|\]|\{{\||\|\}}|</?(?:{_NAMES})\b", re.IGNORECASE
)
_CLOSES: Final = {"}}": "{{", "]]": "[[", "]": "[", "|}": "{|"}


def preprocess(wikitext: str) -> str | None:
    """Returns what the parser gets; None for a page with too much markup, or too much that is not
    closed."""
    text = _without_extensions(_IGNORED.sub("", wikitext))
    text, _ = choose_variants(text)
    text = _OTHER_TAG.sub(BARRIER, _SPACE_TAG.sub(" ", text))
    text = _STRAY.sub("&lt;", text).replace("&", _AMPERSAND)
    text = _HEADING.sub(_heading, _LIST_MARKS.sub(_list_line, text))
    marks, unclosed = _count_marks(text)
    return text if marks <= _MOST_MARKS and unclosed * len(text) <= _MOST_WORK else None


def restore(text: str) -> str:
    """Returns text with its entities."""
    return text.replace(_AMPERSAND, "&")


def _without_extensions(wikitext: str) -> str:
    pieces: list[str] = []
    unclosed: set[str] = set()
    end = bracket = 0  # the first ">" after the last tag
    for tag in _EXTENSION.finditer(wikitext):
        name = (tag[1] or tag[2]).lower()
        if tag.start() < end or name in unclosed:
            continue
        start = tag.end()
        if name != "!--":
            bracket = bracket if bracket >= start else wikitext.find(">", start)
            if bracket < 0:  # no tag ends on the rest of the page
                bracket = len(wikitext)
            start = bracket + 1
        if wikitext[start - 2 : start] == "/>":
            content_end = stop = start
        elif close := _close_of(name).search(wikitext, start):
            content_end, stop = close.span()
        elif name in _TO_THE_END:
            content_end = stop = len(wikitext)
        else:
            unclosed.add(name)  # it is no tag, and none after it is
            continue
        pieces.append(wikitext[end : tag.start()])
        if name != "!--":
            pieces.append(BARRIER)
        if name == "nowiki":
            pieces.append(_without_markup(wikitext[start:content_end]))
        end = stop
    return "".join(pieces) + wikitext[end:]


@lru_cache(maxsize=100)
def _close_of(name: str) -> re.Pattern[str]:
    return re.compile("-->" if name == "!--" else rf"</{name}\s*>", re.IGNORECASE)


def _without_markup(text: str) -> str:
    """Returns the content of `nowiki`; brackets, which would be markup outside, are left out."""
    return re.sub(r"[\[\]{}<>|]", "", text).replace("'", APOSTROPHE) + BARRIER


def _heading(line: re.Match[str]) -> str:
    return f"{BARRIER}{line[0]}" if line[0].count("=") > _MOST_EQUAL_SIGNS else line[0]


def _list_line(marks: re.Match[str]) -> str:
    # Lines that begin with colons alone are indented text, such as quotations.
    return LIST_LINE if marks[0].strip(":") else ""


def _count_marks(text: str) -> tuple[int, int]:
    """Returns how many brackets and tags open something, and how many of these are not closed."""
    marks = unclosed = 0
    open_marks: list[str] = []
    count: Counter[str] = Counter()  # of `open_marks`
    for match in _MARK.finditer(text):
        mark = match[0].lower()
        opener = _CLOSES.get(mark) or (f"<{mark[2:]}" if mark.startswith("</") else "")
        if not opener:
            marks += 1
            open_marks.append(mark)
            count[mark] += 1
        elif count[opener]:
            while (last := open_marks.pop()) != opener:
                count[last] -= 1
                unclosed += 1
            count[opener] -= 1
    return marks, unclosed + len(open_marks)
