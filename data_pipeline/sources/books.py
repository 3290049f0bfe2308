"""Source kind `books`: a folder tree of .txt and .md files, one book a file, in sorted order.

Headers go: the `# Title:` … `-------` block of markdown collections, and everything outside
Project Gutenberg's START and END lines. A book's documents are its chapters, begun by markdown
headings or by lines such as CHAPTER IV, BOOK II, Part One. A book without headings, or a chapter
of more than ten times `document_lines` lines, is cut into documents of `document_lines` lines.
"""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from data_pipeline.clean import Rule, replace, unwrap
from data_pipeline.sources.document import Document, SourceSpec
from data_pipeline.sources.reading import COMPRESSED, cut, files_under, lines

CUT_BECAUSE = "no chapter headings, or a chapter of enormous length"
_ENORMOUS = 10  # times document_lines, for a chapter
_WHOLE = 2  # times document_lines: a text without headings up to this length is one document
_HEADER_LINES = 20  # the markdown header is looked for in so many lines

_START = re.compile(r"\*\*\* ?START OF (?:THE|THIS) PROJECT GUTENBERG EBOOK", re.IGNORECASE)
_END = re.compile(r"\*\*\* ?END OF (?:THE|THIS) PROJECT GUTENBERG EBOOK", re.IGNORECASE)
_RULE = re.compile(r"-{3,}\s*$")
# At least one letter or digit: "### * * * *" is a pause, not a chapter.
_MARKDOWN_HEADING = re.compile(r" {0,3}#{1,6}\s.*[^\W_]")
_UNITS = (
    "one|two|three|four|five|six|seven|eight|nine|first|second|third|fourth|fifth|sixth|seventh|"
    "eighth|ninth"
)
_TEENS = (
    "ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen|twenty|"
    "thirty|forty|fifty|tenth|eleventh|twelfth|last"
)
_WORDS = rf"(?i:(?:the )?(?:{_UNITS}|{_TEENS}|(?:twenty|thirty|forty|fifty)[ -](?:{_UNITS})))"
_PARTS = "Chapter|Book|Part|Volume|Act|Scene|Letter"
_CHAPTER = re.compile(
    rf"\s*(?:{_PARTS}|{_PARTS.upper()}) (?:[IVXLCDM]+|\d+|{_WORDS})"
    r"(?:\s*[.:\u2014\u2013-].{0,70})?\s*$"
)

RULES: tuple[Rule, ...] = (
    replace("block_quote", r"^(?:> ?)+", "", needles=(">",)),
    replace("illustration", r"\[Illustrations?\b[^\]]*\]", "", needles=("[Illus",)),
    replace("footnote_mark", r"\s?\[(?:\*|†|‡|\^?\d{1,3}|FN ?\d+)\]", "", needles=("[",)),
    unwrap(),
    replace("strong", r"\*\*(?!\s)([^*\n]+?)(?<!\s)\*\*", r"\1", needles=("**",)),
    replace("emphasis", r"_(?<!\w_)_*(?!\s)([^_\n]+?)\s*_+(?!\w)", r"\1", needles=("_",)),
    replace(
        "emphasis_stars", r"\*(?<![\w*]\*)(?![\s*])([^*\n]+?)\*(?![\w*])", r"\1", needles=("*",)
    ),
    replace("backslash", r"\\([\\`*_{}\[\]()#+\-.!>])", r"\1", needles=("\\",)),
)


class _Outline(NamedTuple):
    start: int  # first line of the text
    stop: int | None  # the line after it, None at the end of the file
    headings: int


def units(spec: SourceSpec) -> list[Path]:
    """The .txt and .md files (also compressed) of the source."""

    def wanted(path: Path) -> bool:
        name = path.stem if path.suffix in COMPRESSED else path.name
        return name.endswith((".txt", ".md"))

    return files_under(spec, wanted, ".txt or .md books")


def read(spec: SourceSpec, path: Path) -> Iterator[Document]:
    """The chapters of one book. Reads the file twice: for its outline, then for its text."""
    outline = _outline(path)
    size = spec.document_lines
    limit = size * (_ENORMOUS if outline.headings else _WHOLE)
    number = 0
    for chapter in _chapters(islice(lines(path), outline.start, outline.stop)):
        for text, was_cut in cut(chapter, limit, size):
            number += 1
            yield Document(
                id=f"{path.name}#{number}",
                source=spec.name,
                language=spec.language,
                text="\n".join(text),
                cut=was_cut,
            )


def _outline(path: Path) -> _Outline:
    start, headings, has_header, blank = 0, 0, False, True
    for number, line in enumerate(lines(path)):
        if number < _HEADER_LINES:
            has_header = has_header or line.startswith("# Title:")
        header_ends = has_header and number < _HEADER_LINES and _RULE.match(line)
        if header_ends or _START.search(line):
            start, headings = number + 1, 0
        elif _END.search(line):
            return _Outline(start, number, headings)
        headings += _is_heading(line, blank)
        blank = not line.strip()
    return _Outline(start, None, headings)


def _is_heading(line: str, after_blank: bool) -> bool:
    if _MARKDOWN_HEADING.match(line):
        return True
    return after_blank and len(line) < 100 and bool(_CHAPTER.match(line))


def _chapters(text: Iterator[str]) -> Iterator[Iterator[str]]:
    """Lines between headings; each chapter must be used up before the next is asked for."""
    ended = False

    def chapter() -> Iterator[str]:
        nonlocal ended
        blank = True
        for line in text:
            if _is_heading(line, blank):
                return
            yield line
            blank = not line.strip()
        ended = True

    while not ended:
        yield chapter()
