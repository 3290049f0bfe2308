"""Source kind `books`: a folder tree of .txt and .md files, one book per file, in sorted order.

Headers are removed: the `# Title:` … `-------` block of markdown collections, and everything
outside Project Gutenberg's START and END lines (see `frames`). Each chapter is a document; it
starts at a markdown heading or a line such as CHAPTER IV, BOOK II, Part One (see `headings`). A
book without headings, or a chapter of more than ten times `document_lines` lines, is cut into
documents of `document_lines` lines. Lines are joined into paragraphs, which blank lines separate;
in a book with long lines and few blank lines, every line is a paragraph.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from bert_jax.data_pipeline.sources import finding
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.formats import extension
from bert_jax.data_pipeline.sources.frames import Frames
from bert_jax.data_pipeline.sources.headings import Headings, Layout, Survey
from bert_jax.data_pipeline.sources.kind import LINES, Kind
from bert_jax.data_pipeline.sources.reading import cut, lines
from bert_jax.data_pipeline.text.clean import Rule, replace, unwrap

_EXTENSIONS = (".txt", ".md")
_ENORMOUS = 10  # times document_lines, for a chapter
_WHOLE = 2  # times document_lines: a text without headings up to this length is one document
# Names of files that describe a folder; one given directly is read.
_ABOUT_THE_BOOKS = {"README", "LICENSE", "LICENCE", "COPYING", "CHANGELOG", "CONTRIBUTING"}
_NO_END = "texts of Project Gutenberg without an END line, read to the end of their files"
_NO_START = (
    "long rests of files behind an END line of Project Gutenberg without START lines, left out"
)

_RULES: tuple[Rule, ...] = (
    replace("block_quote", r"^(?:> ?)+", needles=(">",)),
    replace("illustration", r"\[Illustrations?\b[^\]]*\]", needles=("[Illus",)),
    replace("footnote_mark", r"\s?\[(?:\*|†|‡|\^?\d{1,3}|FN ?\d+)\]", needles=("[",)),
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
    return extension(path) in _EXTENSIONS and not _about_the_books(path)


def _about_the_books(path: Path) -> str:
    """Returns why a file beside the books, such as README.md, is none; "" for others."""
    named = path.name.partition(".")[0].upper()
    return "about the books, by the name" if named in _ABOUT_THE_BOOKS else ""


def read(spec: SourceSpec, part: Range) -> Iterator[Document]:
    """Yields the chapters of one book, or of several framed by Project Gutenberg's lines. Reads the
    file twice: for its outline, then for its text. UserError for a frame inside another."""
    frames, layout = _outline(part.path)
    size = spec.document_lines
    limit = size * (_ENORMOUS if layout.headings else _WHOLE)
    text, at = lines(part.path), 0
    for start, stop in frames.all_pieces():
        piece = islice(text, start - at, None if stop is None else stop - at)
        for chapter in _chapters(piece, layout):
            for document, was_cut in cut(chapter, limit, size):
                paragraphs = layout.line_paragraphs
                yield Document("\n".join(document), line_paragraphs=paragraphs, cut=was_cut)
        at = stop or at
    for found, why in ((frames.is_open, _NO_END), (frames.is_followed, _NO_START)):
        if found:
            yield Document("", skipped=why)


def _outline(path: Path) -> tuple[Frames, Layout]:
    """Returns where the texts of a file are, and the layout of all."""
    frames, survey = Frames(path), Survey()
    for line in lines(path, markup=True):
        part = frames.part(line)
        if part == "text":
            survey.add(line)
        elif part == "start" and not frames.pieces:
            survey = Survey()
    return frames, survey.layout()


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


KIND: Final = Kind(
    find,
    read,
    rules=_RULES,
    options=(LINES,),
    extensions=_EXTENSIONS,
    markup=True,
    cut_because="no chapter headings, or a chapter of enormous length",
    cut_remedy="write '# ' before each chapter's title",
)
