"""Source readers: the documents of each kind of source, and one-line errors for bad input."""

import bz2
import gzip
import json
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bert_jax.data_pipeline.build.shard import cleaned
from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.sources import (
    Document,
    SourceSpec,
    find,
    parse_source,
    read,
    read_range,
)
from bert_jax.data_pipeline.sources.document import Range
from bert_jax.data_pipeline.sources.reading import cut

PLAIN = """\
<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="A &quot;b&quot;">
A "b"

First paragraph.
Second.

</doc>
<doc id="13" url="https://en.wikipedia.org/wiki?curid=13" title="C">
C
</doc>
"""


def documents(text: str) -> list[Document]:
    """Reads all documents of a source given as on the command line."""
    spec = parse_source(text)
    return [document for path in find(spec).files for document in read(spec, path)]


# Parsing and finding -----------------------------------------------------------------------------


def test_a_source_is_parsed_with_its_options() -> None:
    assert parse_source("books:/data/b,name=old-books,lang=fr,lines=50") == (
        SourceSpec("books", Path("/data/b"), "old-books", "fr", 50)
    )
    assert parse_source("lines:a,b.txt") == SourceSpec("lines", Path("a,b.txt"), "lines")
    assert parse_source("python").path.is_dir()
    assert parse_source("python,packages=absl+numpy").packages == ("absl", "numpy")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wikiextracter:/x", "did you mean wikiextractor"),
        ("books", "missing path"),
        ("books:/x,nam=y", "did you mean name"),
        ("books:/x,lines=0", "positive integer"),
        ("books:/x,name=a b", "a name may have only"),
        ("books:/x,lang=klingon", "language 'klingon' is unknown"),
        ("books:/x,packages=numpy", "unknown option 'packages'; valid: lang, lines, name"),
        ("jsonl:/x,txt=a", "did you mean text"),
        ("jsonl:/x,text=", "text= needs the name of a column"),
        ("csv:/x,column=a+b", "did you mean columns"),
        ("tfds:", "missing path"),
    ],
)
def test_a_misspelt_source_is_explained(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_source(text)


@pytest.mark.parametrize("kind", ["wikiextractor", "books", "lines", "python"])
def test_missing_and_empty_folders(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UserError, match="absent: no such file or folder"):
        find(parse_source(f"{kind}:{tmp_path}/absent"))
    with pytest.raises(UserError, match="empty folder"):
        find(parse_source(f"{kind}:{tmp_path}"))
    (tmp_path / "picture.jpg").touch()
    with pytest.raises(UserError, match=r"1 file, but no |no Python sources there"):
        find(parse_source(f"{kind}:{tmp_path}"))


@pytest.mark.parametrize("kind", ["books", "lines"])
def test_text_that_is_not_utf8_is_named_with_its_byte(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "wiki_00"
    file.write_bytes(b"\xef\xbb\xbf\n" + "é\nab".encode() + b"\xe9 c\n")
    with pytest.raises(UserError, match=r"wiki_00: not UTF-8 at byte 9 \(0xe9\)"):
        documents(f"{kind}:{file}")


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    file = tmp_path / "wiki_00.gz"
    file.write_bytes(gzip.compress(PLAIN.encode())[:-10])
    with pytest.raises(UserError, match=r"wiki_00\.gz: cannot be read"):
        documents(f"wikiextractor:{file}")


# wikiextractor -----------------------------------------------------------------------------------

Written = Callable[..., list[Document]]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes one file and reads it as a source."""

    def write(kind: str, name: str, data: str | bytes, options: str = "") -> list[Document]:
        data = data.encode() if isinstance(data, str) else data
        (tmp_path / name).write_bytes(data)
        return documents(f"{kind}:{tmp_path / name}{options}")

    return write


def test_plain_articles(written: Written) -> None:
    first, second = written("wikiextractor", "wiki_00", PLAIN)
    assert first.title == 'A "b"'
    assert first.text.splitlines() == ['A "b"', "", "First paragraph.", "Second."]
    assert second.text == "C"


def test_json_articles(written: Written) -> None:
    rows = [{"id": "7", "title": "T", "text": "One.\n\nTwo."}, {"title": "U", "text": ""}]
    first, second = written("wikiextractor", "wiki_00", "\n".join(map(json.dumps, rows)) + "\n")
    assert (first.title, first.text) == ("T", "One.\n\nTwo.")
    assert second.text == ""


@pytest.mark.parametrize(("suffix", "pack"), [(".bz2", bz2.compress), (".gz", gzip.compress)])
def test_compressed_articles(written: Written, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    assert len(written("wikiextractor", f"wiki_00{suffix}", pack(PLAIN.encode()))) == 2


def test_a_folder_tree_is_read_in_order_and_other_files_left_out(tmp_path: Path) -> None:
    for name in ("AB/wiki_00", "AA/wiki_01.bz2", "AA/wiki_00", "AA/.wiki_02", "AA/log.txt"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bz2.compress(PLAIN.encode()) if name.endswith("bz2") else PLAIN.encode())
    files = find(parse_source(f"wikiextractor:{tmp_path}")).files
    names = [file.relative_to(tmp_path).as_posix() for file in files]
    assert names == ["AA/wiki_00", "AA/wiki_01.bz2", "AB/wiki_00"]


@pytest.mark.parametrize(
    "end", ["\n</doc>\n", "\n</doc> \n\n", "</doc>\n", " </doc>\t\n", "</doc>"]
)
@pytest.mark.parametrize(
    "attributes",
    [
        'id="1" url="u" title="{}"',
        'id="1" revid="2" url="u" title="{}"',
        'id="1" title="{}" nonfiltered="1" dbindex="3" ',
        'title="{}" id="1"',
    ],
)
def test_blocks_of_every_writer(written: Written, attributes: str, end: str) -> None:
    titles = ["A", 'A &quot;b" = c', 'On title="x" > y']
    blocks = [f"<doc {attributes.format(title)}>\nText.{end}" for title in titles]
    found = written("wikiextractor", "wiki_00", "\n".join(blocks))
    assert [(d.title, d.text.strip()) for d in found] == [
        ("A", "Text."),
        ('A "b" = c', "Text."),
        ('On title="x" > y', "Text."),
    ]


def test_an_article_may_quote_an_element(written: Written) -> None:
    quoted = 'A <doc> has the form <doc id="1"> here.'
    (found,) = written("wikiextractor", "wiki_00", f'<doc id="1">\n{quoted}\n</doc>\n')
    assert found.text == quoted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Just text.\n", "line 1 is not in a <doc"),
        (PLAIN.removesuffix("</doc>\n"), "ends inside article 'C' of line "),
        (
            PLAIN.replace("</doc>\n", "", 1),
            r"line \d begins an article inside .* of line 1, which no",
        ),
        *(
            (f"<doc {one}>\nA\n{glue}<doc{two}>\nB\n</doc>\n", "line 3 begins an article inside")
            for one, two, glue in [
                ('title="A" id="1"', ' title="B" id="2"', ""),
                ('id="1"', ' id="2"', ""),
                ('id="1"', '\tid="2"', " "),
                ('id="1" url="u" title="A"', '  url="u" id="2" title="B"', ""),
                ('id="1" url="u" title="A"', ' url="u" title="B"', "It is. "),
                ('id="1"', ' id="2"', "It is.</doc> "),
            ]
        ),
        (PLAIN.replace("</doc>\n", "It </doc> is ", 1), r"begins an article inside 'A \"b\"' of"),
        ('{"title": "A"}\n', 'line 1 is not a JSON object with strings "title" and "text"'),
        ('{"title": "A", "te\n', "line 1 is not a JSON object"),
    ],
)
def test_what_is_not_wikiextractor_output(written: Written, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        written("wikiextractor", "wiki_00", text)


# lines -------------------------------------------------------------------------------------------


def test_blank_lines_end_documents_and_sentences_are_given(written: Written) -> None:
    found = written("lines", "a.txt", "\nOne.\nTwo.\n\n\nThree.\r\n \nFour.")
    assert [d.text for d in found] == ["One.\nTwo.", "Three.", "Four."]
    assert all(d.sentences_given and not d.cut for d in found)


def test_a_file_without_blank_lines_is_cut(written: Written) -> None:
    text = "".join(f"Line {i}.\n" for i in range(7))
    found = written("lines", "a.txt", text + "\n\n", ",lines=3")
    assert [len(d.text.split("\n")) for d in found] == [3, 3, 1]
    assert all(d.cut for d in found)
    assert not any(d.cut for d in written("lines", "a.txt", text + "\nOther.", ",lines=3"))


def test_cutting_holds_no_more_than_the_limit() -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        for taken in range(1_000_000):  # noqa: B007  read outside
            yield "x"

    pieces = cut(endless(), limit=100, size=10)
    assert next(pieces) == (["x"] * 10, True)
    assert taken <= 101


# books -------------------------------------------------------------------------------------------

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
    with pytest.raises(UserError, match=r"line 3 begins a text .* inside that of line 1, which no"):
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


# python ------------------------------------------------------------------------------------------


def test_docstrings_in_order_and_topics(tmp_path: Path) -> None:
    module = '"""Module."""\nclass A:\n    """Class."""\n    def f(self):\n        """Method."""\n'
    module += 'def g():\n    "Function."\n    return 1\nraise SystemExit("imported")\n'
    (tmp_path / "pydoc_data").mkdir()
    (tmp_path / "pydoc_data/topics.py").write_text("topics = {'a': 'Text A.', 'b': 'Text B.'}\n")
    (tmp_path / "m.py").write_text(module)
    (tmp_path / "bare.py").write_text("x = 1\n")
    for folder in ("test", "site-packages/p"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "t.py").write_text('"""Left out."""\n')
    found = documents(f"python:{tmp_path}")
    assert [d.text for d in found] == [
        "Module.\n\nClass.\n\nMethod.\n\nFunction.",
        "Text A.",
        "Text B.",
    ]


@pytest.mark.slow
def test_this_python_carries_enough_to_train_on() -> None:
    found = documents("python")
    assert len(found) > 300
    assert sum(len(d.text) for d in found) > 1_000_000


def test_packages_are_read_after_the_library_without_their_tests(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text('"""A module of the library."""')
    found = [
        path.as_posix() for path in find(parse_source(f"python:{tmp_path},packages=absl")).files
    ]
    assert found[0].endswith("/m.py")
    assert any(name.endswith("/absl/app.py") for name in found)
    assert not any("/tests/" in name for name in found)
    with pytest.raises(UserError, match="packages=abls: no such package is installed; install it"):
        find(parse_source(f"python:{tmp_path},packages=abls"))


def test_broken_python_is_named(written: Written) -> None:
    with pytest.raises(UserError, match=r"m\.py: cannot be parsed as Python source"):
        written("python", "m.py", "def (:\n")
