"""Source kind `books`: a folder tree of .txt and .md files, one book per file, in sorted order.

Headers are removed: the `# Title:` … `-------` block of markdown collections, and everything
outside Project Gutenberg's START and END lines. Each chapter is a document; it starts at a markdown
heading or a line such as CHAPTER IV, BOOK II, Part One (see `headings`). A book without headings,
or a chapter of more than ten times `document_lines` lines, is cut into documents of
`document_lines` lines. Lines are joined into paragraphs, which blank lines separate; in a book with
long lines and few blank lines, every line is a paragraph.
"""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.sources import finding
from bert_jax.data_pipeline.sources.cutting import whole_file
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.formats import extension
from bert_jax.data_pipeline.sources.headings import Headings, Layout, Survey
from bert_jax.data_pipeline.sources.reading import cut, lines
from bert_jax.data_pipeline.text.clean import Rule, replace, unwrap

PLAIN_TEXT = True
MARKUP = True
OPTIONS: tuple[str, ...] = ("lines",)
LIBRARIES: tuple[str, ...] = ()
CUT_BECAUSE = "no chapter headings, or a chapter of enormous length"
CUT_REMEDY = "write '# ' before each chapter's title"
_ENORMOUS = 10  # times document_lines, for a chapter
_WHOLE = 2  # times document_lines: a text without headings up to this length is one document
# Names of files that describe a folder; one given directly is read.
_ABOUT_THE_BOOKS = {"README", "LICENSE", "LICENCE", "COPYING", "CHANGELOG", "CONTRIBUTING"}
_HEADER_LINES = 20  # the markdown header must be within the first 20 lines

_START = re.compile(r"\*\*\* ?START OF (?:THE|THIS) PROJECT GUTENBERG EBOOK", re.IGNORECASE)
_END = re.compile(r"\*\*\* ?END OF (?:THE|THIS) PROJECT GUTENBERG EBOOK", re.IGNORECASE)
_RULE = re.compile(r"-{3,}\s*$")

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


def find(spec: SourceSpec) -> Found:
    """Returns the .txt and .md files (also compressed) of the source."""
    return finding.find(spec, _is_book, ".txt or .md books", reason_of=_about_the_books)


def _is_book(path: Path) -> bool:
    return extension(path) in (".txt", ".md") and not _about_the_books(path)


def _about_the_books(path: Path) -> str:
    """Returns why a file beside the books, such as README.md, is none; "" for others."""
    named = path.name.partition(".")[0].upper()
    return "about the books, by the name" if named in _ABOUT_THE_BOOKS else ""


ranges = whole_file  # chapters are found by the outline of their book


def read(spec: SourceSpec, part: Range) -> Iterator[Document]:
    """Yields the chapters of one book, or of several framed by Project Gutenberg's lines. Reads the
    file twice: for its outline, then for its text. UserError for a frame inside another."""
    pieces, layout = _outline(part.path)
    size = spec.document_lines
    limit = size * (_ENORMOUS if layout.headings else _WHOLE)
    text, at = lines(part.path), 0
    for start, stop in pieces:
        piece = islice(text, start - at, None if stop is None else stop - at)
        for chapter in _chapters(piece, layout):
            for document, was_cut in cut(chapter, limit, size):
                paragraphs = layout.line_paragraphs
                yield Document("\n".join(document), line_paragraphs=paragraphs, cut=was_cut)
        at = stop or at


def _outline(path: Path) -> tuple[list[tuple[int, int | None]], Layout]:
    """Returns the first line of each piece of text and the line after it (None: the end of the
    file), and the layout of all."""
    pieces: list[tuple[int, int | None]] = []
    begun = 0  # number of the line that began the text, if one did
    start, is_text, has_header, survey = 0, True, False, Survey()
    for number, line in enumerate(lines(path, markup=MARKUP)):
        if number < _HEADER_LINES:
            has_header = has_header or line.startswith("# Title:")
        is_start = bool(_START.search(line))
        header_ends = has_header and number < _HEADER_LINES and _RULE.match(line)
        if is_start and is_text and begun:
            raise UserError(
                f"{path}: line {number + 1} begins a text of Project Gutenberg inside that of line "
                f"{begun}, which no END line ends; divide the file, or add the line"
            )
        if header_ends or is_start:
            begun = number + 1 if is_start else begun
            survey = survey if pieces else Survey()
            start, is_text = number + 1, True
        elif is_text and _END.search(line):
            pieces.append((start, number))
            is_text = False
        elif is_text:
            survey.add(line)
    return [*pieces, *([(start, None)] if is_text else [])], survey.layout()


def _chapters(text: Iterator[str], layout: Layout) -> Iterator[Iterator[str]]:
    """Yields the lines between headings; consume each chapter before requesting the next."""
    headings = Headings()
    ended = False

    def chapter() -> Iterator[str]:
        nonlocal ended
        for line in text:
            if headings.kind(line) in layout.accepted:
                return
            yield line
        ended = True

    while not ended:
        yield chapter()
