"""Source readers: the documents of each kind of source, and one-line errors for bad input."""

import bz2
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from source_files import Written, documents, writer

from bert_jax.data_pipeline.sources import (
    SourceSpec,
    find,
    parse_source,
)
from bert_jax.data_pipeline.sources.reading import cut
from bert_jax.errors import UserError

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


# Parsing and finding -----------------------------------------------------------------------------


def test_a_source_is_parsed_with_its_options() -> None:
    assert parse_source("books:/data/b,name=old-books,lang=fr,lines=50") == (
        SourceSpec("books", Path("/data/b"), "old-books", "fr", 50)
    )
    assert parse_source("lines:a,b.txt") == SourceSpec("lines", Path("a,b.txt"), "lines")
    assert parse_source("python").path.is_dir()
    assert parse_source("python,packages=absl+numpy").packages == ("absl", "numpy")


def test_a_dataset_of_the_hub_is_named_as_its_repository() -> None:
    texts = ("hf:org/my.wiki/20231101.simple:test@main,title=t", "hf:org/books", "hf:org/a,name=b")
    assert [parse_source(text).name for text in texts] == ["my.wiki", "books", "b"]


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


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return writer(tmp_path)


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


def test_the_tag_of_an_article_may_have_any_case(written: Written) -> None:
    (found,) = written("wikiextractor", "wiki_00", '<Doc id="1" title="A">\nIt is.\n</DOC>\n')
    assert (found.text, found.title) == ("It is.", "A")


def test_a_key_twice_is_refused(written: Written) -> None:
    with pytest.raises(UserError, match=r"a\.jsonl:1: has the key 'text' twice; correct the line"):
        written("jsonl", "a.jsonl", '{"text": "a", "text": "b"}\n')
