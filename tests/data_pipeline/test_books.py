"""Books: their headers, chapters and frames, as documents."""

import textwrap
from collections import Counter
from pathlib import Path

import pytest
from source_files import Written, writer

from bert_jax.data_pipeline.sources import parse_source, read_range
from bert_jax.data_pipeline.sources.document import Range
from bert_jax.data_pipeline.store_build.shard import cleaned
from bert_jax.errors import UserError


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return writer(tmp_path)


BOOK = """\
# Title: T

## Author: A

## Year: 1900

-------

Opening words.

## CHAPTER I. The start

First
chapter.

### * * * *

Still first.

CHAPTER II.

Part of this is prose.
Book I was good to read.

## BOOK TWO

### Chapter the Third

Third.
"""


def test_chapters_are_documents(written: Written) -> None:
    texts = [d.text.strip() for d in written("books", "t.md", BOOK)]
    assert texts == [
        "Opening words.",
        "First\nchapter.\n\n### * * * *\n\nStill first.",
        "Part of this is prose.\nBook I was good to read.",
        "Third.",
    ]


@pytest.mark.parametrize(
    "heading",
    ["CHAPTER XIV", "Chapter 3. The end", "BOOK II", "Part One", "CHAPTER TWENTY-FIRST", "ACT III"],
)
def test_headings_in_plain_text(written: Written, heading: str) -> None:
    assert len(written("books", "t.txt", f"One.\n\n{heading}\n\nTwo.\n")) == 2
    assert len(written("books", "t.txt", f"One\n{heading}\n\nTwo.\n")) == 1  # inside a paragraph


@pytest.mark.parametrize(
    "heading",
    [
        "CHAPTER\u00a0II",
        "CHAPTER\u2003II",
        "\ufeffCHAPTER II",
        "\u200eCHAPTER II",
        "\u00adCHAPTER II",
        "CHAPTER II\u200b",
        "CHAP\u00adTER&nbsp;II",
        "\ufeff# The second",
        "\x00CHAPTER II",
    ],
)
def test_a_heading_is_what_is_seen(written: Written, heading: str) -> None:
    assert len(written("books", "t.txt", f"One.\n\n{heading}\n\nTwo.\n")) == 2


def test_a_heading_under_a_heading_needs_no_blank_line(written: Written) -> None:
    found = written("books", "t.txt", "BOOK I.\nCHAPTER I.\nOne.\n\nCHAPTER II.\nTwo.\n")
    assert [d.text.strip() for d in found] == ["One.", "Two."]


PROSE = (
    "Part of the way lay through woods, and Book learning was of no use there at all, said he.",
    '"Chapter and verse!" cried she, and read the letter that had come from Scene to Act again.',
)


def book(between: str, headings: list[str], paragraphs: int = 8) -> str:
    """A book of chapters with headings, and paragraphs joined by `between`."""
    chapters = [[heading, *PROSE * (paragraphs // 2)] for heading in headings]
    return between.join(line for chapter in chapters for line in chapter) + between


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("between", ["\n", "\n\n"])
@pytest.mark.parametrize(
    "headings",
    [
        [f"CHAPTER {n}. The title" for n in ("I", "II", "III", "IV")],
        [f"Chapter {n} The Title" for n in range(1, 5)],
        ["Prologue", "STAVE  ONE", "STAVE TWO.", "EPILOGUE."],
        ["## The one", "## The other", "## A third", "## The last"],
        ["I", "II", "III", "IV"],
        ["I. The House", "II. The Barn", "III. The Mill", "IV. The Hill"],
        ["1 THE HOUSE", "2 THE BARN", "3 THE MILL", "4 THE HILL"],
    ],
)
def test_chapters_with_and_without_blank_lines(
    written: Written, headings: list[str], between: str, end: str
) -> None:
    found = written("books", "t.txt", book(between, headings).replace("\n", end), ",lines=2")
    assert len(found) == 4
    assert not any(d.cut for d in found)
    assert all(d.text.count("Part of the way") == 4 for d in found)


def test_numerals_out_of_order_are_no_headings(written: Written) -> None:
    assert len(written("books", "t.txt", book("\n\n", ["V", "VII", "XII", "L"]))) == 1


def test_prose_is_no_heading(written: Written) -> None:
    lines = ("Book I was read.", "Part II. of it is lost.", "Part of the Chapter", "I was there.")
    found = written("books", "t.txt", "\n\n".join(["CHAPTER I", *lines, "CHAPTER II", "Two."]))
    assert [len(d.text.split("\n\n")) for d in found] == [4, 1]


@pytest.mark.parametrize(
    ("text", "paragraphs"),
    [
        (book("\n", ["CHAPTER I"]), 8),
        (book("\n\n", ["CHAPTER I"]), 8),
        ("CHAPTER I\n\n" + "\n\n".join(textwrap.fill(p, 40) for p in PROSE), 2),
    ],
    ids=["one paragraph a line", "blank lines between", "hard-wrapped"],
)
def test_what_a_paragraph_is(written: Written, text: str, paragraphs: int) -> None:
    text = text.replace("he.", "he, " + "for he had never been there in his life before " * 2 + ".")
    (document,) = written("books", "t.txt", text)
    spec = parse_source("books:t.txt")
    assert len(cleaned(document, spec)[0].split("\n")) == paragraphs


def _bare(line: str) -> str:
    return line.strip().lstrip("# ")


VARIANTS = {
    "without #": lambda lines: [_bare(line) for line in lines],
    "one paragraph a line": lambda lines: [_bare(line) for line in lines if line.strip()],
    "hard-wrapped": lambda lines: [textwrap.fill(_bare(line), 70) for line in lines],
    "wrapped, no blank lines": lambda lines: [
        textwrap.fill(_bare(line), 70) for line in lines if line.strip()
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_chapters_of_real_novels_in_other_layouts(
    written: Written, real_books: list[Path], variant: str
) -> None:
    novels = [file for file in real_books if file.stem in ("Little Dorrit", "Treasure Island")]
    assert len(novels) == 2
    for file in novels:
        text = file.read_text(encoding="utf-8-sig").split("-------\n", 1)[1]
        chapters = len(written("books", "t.md", text))
        changed = "\n".join(VARIANTS[variant](text.split("\n")))
        found = written("books", "t.txt", changed)
        assert not any(document.cut for document in found)
        assert abs(len(found) - chapters) <= 2


HEADER = "# Title: X\n# Author: Y\n-------\n\n"


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (HEADER + "A dark night.\n\n---\n\nA scene.\n", "A dark night."),
        (HEADER + "A dark night\n------------\n\nA scene.\n", "A dark night"),
        ("# Title: X\n\nA dark night.\n\n---\n\nA scene.\n", "A dark night."),
        ("A dark night.\n\n# Title: X\n\n---\n\nA scene.\n", "A dark night."),
    ],
    ids=["scene break", "setext heading", "no header", "text before"],
)
def test_a_rule_that_ends_no_header_removes_nothing(
    written: Written, text: str, first: str
) -> None:
    found = written("books", "t.md", text)
    lines = [line for d in found for line in d.text.split("\n") if line.strip(" -")]
    assert lines == [first, "A scene."]


@pytest.mark.parametrize(
    "start",
    [
        "*** START OF THE PROJECT GUTENBERG ETEXT T ***",
        "***START OF THE PROJECT GUTENBERG EBOOK T***",
        "*** START OF THE COPYRIGHTED PROJECT GUTENBERG EBOOK T ***",
        "*** START OF THIS PROJECT GUTENBERG EBOOK THE LONG\nTITLE OF A BOOK ***",
        "*** START OF THIS PROJECT GUTENBERG EBOOK T",
        "\\*\\*\\* START OF THE PROJECT GUTENBERG EBOOK T \\*\\*\\*",
        "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*",
        "*END THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93\n*END*",
        "*END*THE SMALL PRINT!*END*\nScanned.\n*** START OF THE PROJECT GUTENBERG EBOOK T ***",
    ],
)
@pytest.mark.parametrize(
    "end",
    [
        "End of the Project Gutenberg EBook of T, by U",
        "End of Project Gutenberg's T",
        "*** END OF THE COPYRIGHTED PROJECT GUTENBERG EBOOK T ***",
        "* * * END OF THE PROJECT GUTENBERG ETEXT T ***\n*END*THE SMALL PRINT!*END*",
    ],
)
def test_frames_of_every_year(written: Written, start: str, end: str) -> None:
    found = written("books", "t.txt", f"License.\n{start}\n\nText.\n{end}\nLicense.\n")
    assert [d.text.strip() for d in found] == ["Text."]


def test_a_frame_without_end_is_read_and_said(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("*** START OF THE PROJECT GUTENBERG EBOOK T ***\nText.\n")
    spec, skipped = parse_source(f"books:{tmp_path}"), Counter[str]()
    found = [*read_range(spec, Range(tmp_path / "t.txt"), skipped)]
    assert [d.text for d in found] == ["Text."]
    assert skipped.total() == 1
    assert "without an END line" in next(iter(skipped))


@pytest.mark.parametrize(("lines", "is_said"), [(500, False), (700, True)])
def test_more_than_a_licence_behind_the_end_of_a_text_without_a_start_is_said(
    lines: int, is_said: bool, tmp_path: Path
) -> None:
    """As in books that were put together without their frames."""
    path = tmp_path / "t.txt"
    path.write_text("Text.\nEnd of Project Gutenberg's Book One\n" + "Line.\n\n" * lines)
    skipped = Counter[str]()
    found = [*read_range(parse_source(f"books:{tmp_path}"), Range(path), skipped)]
    assert [d.text for d in found] == ["Text."]
    assert skipped.total() == int(is_said)
    assert all("behind an END line" in why for why in skipped)


def test_gutenberg_frame_is_stripped(written: Written) -> None:
    found = written(
        "books",
        "t.txt",
        "The Project Gutenberg eBook\n\nCHAPTER I\n\n"
        "*** START OF THE PROJECT GUTENBERG EBOOK T ***\nText.\n"
        "*** END OF THE PROJECT GUTENBERG EBOOK T ***\nLicense.\n",
    )
    assert [d.text for d in found] == ["Text."]


GUTENBERG = """*** START OF THE PROJECT GUTENBERG EBOOK {0} ***
Text of {0}.
*** END OF THE PROJECT GUTENBERG EBOOK {0} ***
License.
"""


def test_every_book_of_a_file_of_several_is_read(written: Written) -> None:
    found = written("books", "t.txt", "".join(map(GUTENBERG.format, "ABC")))
    assert [d.text for d in found] == ["Text of A.", "Text of B.", "Text of C."]


def test_a_book_that_begins_inside_another_is_an_error_with_its_line(written: Written) -> None:
    first = GUTENBERG.format("A").split("*** END")[0]
    with pytest.raises(
        UserError, match=r"line 3 begins a text .* before an END line ends that of line 1"
    ):
        written("books", "t.txt", first + GUTENBERG.format("B"))


def test_a_book_without_headings_is_cut_when_long(written: Written) -> None:
    paragraphs = "\n\n".join(f"Paragraph {i}." for i in range(9))
    found = written("books", "t.txt", paragraphs, ",lines=4")
    assert [len(d.text.split()) // 2 for d in found] == [4, 4, 1]
    assert all(d.cut for d in found)
    (whole,) = written("books", "t.txt", paragraphs, ",lines=5")
    assert not whole.cut


def test_an_enormous_chapter_is_cut_and_the_next_is_not(written: Written) -> None:
    long = "\n".join(f"Line {i}." for i in range(21))
    found = written("books", "t.txt", f"CHAPTER I\n{long}\n\nCHAPTER II\nShort.", ",lines=2")
    assert [d.cut for d in found] == [True] * 11 + [False]
