"""Files without text are rejected with a remedy, whatever their names."""

import bz2
import gzip
import json
import lzma
import re
import sqlite3
import tarfile
import zipfile
from pathlib import Path

import pytest
from row_files import write_arrow, write_parquet

from bert_jax.data_pipeline.sources import check, find, guess_kind, parse_source, read
from bert_jax.data_pipeline.store_build.vocabulary import train_tokenizer
from bert_jax.demo.pipeline import source_of
from bert_jax.errors import UserError

TEXT = b"It was a dark night. Nothing moved.\n"
ZIP, OTHER = "unpack it", "write its rows to a .jsonl file"
JSONL, CSV = "pass --source=jsonl:PATH", "pass --source=csv:PATH"
PARQUET, ARROW = "pass --source=parquet:PATH", "pass --source=arrow:PATH"


def reading(kind: str, path: Path) -> None:
    """Runs all of a build's reading of a source, from parsing to the last document."""
    spec = parse_source(f"{kind}:{path}")
    for file in find(spec).files:
        check(spec, file)
        list(read(spec, file))


@pytest.mark.parametrize("kind", ["books", "lines"])
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("data.csv", CSV),
        ("data.tsv", CSV),
        ("data.jsonl", JSONL),
        ("data.json.gz", JSONL),
        ("data.xlsx", "save it as CSV"),
        ("data.parquet", PARQUET),
        ("data.arrow", ARROW),
        ("data.orc", OTHER),
        ("data.sqlite", OTHER),
        ("dump.xml", "pass --source=dump:PATH"),
        ("enwiki-latest-pages-articles.xml.bz2", "pass --source=dump:PATH"),
        ("page.html", "pandoc"),
        ("book.epub", "pandoc"),
        ("book.docx", "pandoc"),
        ("book.PDF", "pdftotext"),
        ("books.zip", ZIP),
        ("books.tar.gz", ZIP),
        ("books.tgz", ZIP),
    ],
)
def test_a_named_file_of_another_format_is_refused_by_its_name(
    tmp_path: Path, kind: str, name: str, what: str
) -> None:
    (tmp_path / name).write_bytes(TEXT)
    with pytest.raises(UserError, match=what) as caught:
        reading(kind, tmp_path / name)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def zipped(name: str) -> bytes:
    path = Path(name)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "application/epub+zip" if name == "epub" else "x")
    return path.read_bytes()


def tarred() -> bytes:
    Path("a.txt").write_bytes(TEXT)
    with tarfile.open("made.tar", "w") as archive:
        archive.add("a.txt")
    return Path("made.tar").read_bytes()


def database() -> bytes:
    connection = sqlite3.connect("made.db")
    connection.execute("create table books (text)")
    connection.commit()
    connection.close()
    return Path("made.db").read_bytes()


ROWS = json.dumps({"text": "It was a dark night."}).encode() + b"\n"
CONTENTS = {
    "zip": (lambda: zipped("zip"), ZIP),
    "epub": (lambda: zipped("epub"), "pandoc"),
    "tar": (tarred, ZIP),
    "sqlite": (database, OTHER),
    "parquet": (lambda: b"PAR1\x15\x04" + bytes(100) + b"PAR1", PARQUET),
    "arrow": (lambda: b"ARROW1\0\0" + bytes(100), ARROW),
    "stream of arrow": (lambda: b"\xff\xff\xff\xff" + bytes(100), ARROW),
    "pdf": (lambda: b"%PDF-1.7\n%\xe2\xe3\n", "pdftotext"),
    "rtf": (lambda: b"{\\rtf1\\ansi " + TEXT, "pandoc"),
    "7z": (lambda: b"7z\xbc\xaf\x27\x1c" + bytes(30), ZIP),
    "zstd": (lambda: b"\x28\xb5\x2f\xfd" + TEXT, "rename it to NAME.zst"),
    "gzip": (lambda: gzip.compress(TEXT), "rename it to NAME.gz"),
    "bzip2": (lambda: bz2.compress(TEXT), "rename it to NAME.bz2"),
    "xz": (lambda: lzma.compress(TEXT), "rename it to NAME.xz"),
    "UTF-16": (lambda: TEXT.decode().encode("utf-16"), "iconv -f UTF-16"),
    "UTF-16 without a mark": (lambda: TEXT.decode().encode("utf-16-be"), "iconv -f UTF-16"),
    "zeros": (lambda: bytes(1000), "leave it out"),
    "JSON lines": (lambda: ROWS * 3, JSONL),
    "JSON with a mark": (lambda: b"\xef\xbb\xbf\n" + ROWS, JSONL),
    "JSON list": (lambda: b'[\n  {"text": "Night."}]', JSONL),
    "TSV": (lambda: b"1\t-0.5\tA dull film.\n2\t1.5\tA feast for eyes.\n" * 3, CSV),
    "dump": (lambda: b'<mediawiki xmlns="http://x">\n<page>', "pass --source=dump:PATH"),
    "dump with a prolog": (
        lambda: b'<?xml version="1.0"?>\n<mediawiki>',
        "pass --source=dump:PATH",
    ),
    "XML": (lambda: b'<?xml version="1.0"?>\n<TEI>', "pandoc"),
    "HTML": (lambda: b"\n<!DOCTYPE html>\n<html><p>Night.", "pandoc"),
    "extracted": (lambda: b'<doc id="1" url="" title="T">\nT\n</doc>\n', "--source=wikiextractor"),
}


@pytest.mark.parametrize("kind", ["books", "lines"])
@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("where", ["file", "folder"])
def test_another_format_under_the_name_of_text_is_refused_by_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, content: str, where: str
) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "text").mkdir()
    monkeypatch.chdir(tmp_path / "made")
    make, what = CONTENTS[content]
    (tmp_path / "text/good.txt").write_bytes(TEXT)
    (tmp_path / "text/book.txt").write_bytes(make())
    path = tmp_path / "text" / ("book.txt" if where == "file" else "")
    with pytest.raises(UserError, match=what) as caught:
        reading(kind, path)
    assert "\n" not in str(caught.value)
    assert "book.txt" in str(caught.value)


@pytest.mark.parametrize("content", ["zip", "JSON lines", "dump", "HTML", "UTF-16"])
def test_what_is_compressed_is_looked_at_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make, what = CONTENTS[content]
    (tmp_path / "book.txt.bz2").write_bytes(bz2.compress(make()))
    with pytest.raises(UserError, match=what):
        reading("books", tmp_path / "book.txt.bz2")


@pytest.mark.parametrize("content", ["zip", "parquet", "dump", "dump with a prolog", "UTF-16"])
def test_wikiextractor_refuses_what_it_did_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make, what = CONTENTS[content]
    (tmp_path / "wiki_00").write_bytes(make())
    with pytest.raises(UserError, match=what):
        reading("wikiextractor", tmp_path / "wiki_00")


def real_parquet() -> bytes:
    write_parquet(Path("made.parquet"), [{"text": "Night."}])
    return Path("made.parquet").read_bytes()


def real_arrow() -> bytes:
    write_arrow(Path("made.arrow"), [{"text": "Night."}])
    return Path("made.arrow").read_bytes()


LINES = "--source=lines"
FORMS = {
    "jsonl": (lambda: ROWS * 3, JSONL),
    "csv": (lambda: b"id,text\n1,It was a dark night.\n", CSV),
    "csv with semicolons": (lambda: b'id;text\n1;"It was; a dark night."\n', CSV),
    "tsv": (lambda: b"id\ttext\n1\tIt was a dark night.\n", CSV),
    "parquet": (real_parquet, PARQUET),
    "arrow": (real_arrow, ARROW),
    "dump": CONTENTS["dump"],
    "wikiextractor": CONTENTS["extracted"],
    "lines": (lambda: b"It was a dark night, and cold.\nNothing, nothing moved.\n", LINES),
}
UNSURE = {("csv", "lines")}  # a table of one column


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "arrow", "dump", "wikiextractor"])
@pytest.mark.parametrize("content", FORMS)
def test_a_file_of_another_kind_is_named_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, content: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make, what = FORMS[content]
    file = tmp_path / "data.gz"
    file.write_bytes(gzip.compress(data := make()))
    (plain := tmp_path / "data").write_bytes(data)
    own = content.split()[0].replace("tsv", "csv") == kind
    if own or (kind, content) in UNSURE or (kind, content) == ("wikiextractor", "jsonl"):
        what = "^(?!.*looks like)"  # another error, or none
    zipped_files = [file] if kind in ("jsonl", "csv", "wikiextractor") else []
    for path in [plain, *zipped_files]:
        try:
            reading(kind, path)
            caught = ""
        except UserError as error:
            caught = str(error)
        assert re.search(what, caught), caught
        assert caught.startswith(str(path)) or own


def test_the_columns_of_a_right_file_are_still_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,body\n1,Night.\n")
    with pytest.raises(UserError, match="no column 'text'; its columns are id, body"):
        reading("csv", tmp_path / "a.csv")
    (tmp_path / "a.jsonl").write_bytes(b"{'text': 'a', 'b': 1}\n" * 3)
    with pytest.raises(UserError, match=r"a\.jsonl:1: .*; correct the line"):
        reading("jsonl", tmp_path / "a.jsonl")


def test_a_folder_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "wiki_00").write_bytes(CONTENTS["extracted"][0]())
    for kind in ("lines", "books", "jsonl", "dump"):
        with pytest.raises(UserError, match=f"--source=wikiextractor:{tmp_path}$"):
            reading(kind, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        b'{ he said "no" }\n',
        b"[1] A footnote first.\n",
        b"[[ brackets\n",
        b"<QUOTE> it begins.\n",
        b"<p>old files have a tag\n",
        b"PKZIP was a program.\n",
        b"BZ is no mark.\n",
        b"a\0b with one zero byte in it\n",
        b"\tAn indent.\n\tAnother indent.\n\n\tAnd a third.\n",
        b"Price\tfive\nThere is a table in this book.\nOne\ttwo\n",
        b"{}",
    ][:-1],
)
def test_text_that_only_looks_odd_is_read(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "book.txt").write_bytes(text)
    reading("books", tmp_path / "book.txt")
    reading("lines", tmp_path / "book.txt")


def test_names_without_an_extension_are_read(tmp_path: Path) -> None:
    for name in ("novel", "novel.text", "chapter.1"):
        (tmp_path / name).write_bytes(TEXT)
        reading("books", tmp_path / name)


def test_a_folder_without_text_says_what_to_do(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl", "c.parquet", "LICENSE"):
        (tmp_path / name).write_bytes(TEXT)
    with pytest.raises(UserError, match=r"4 files, but no \.txt or \.md books") as caught:
        reading("books", tmp_path)
    assert "2 of another kind (.jsonl): a.jsonl, b.jsonl" in str(caught.value)
    assert JSONL in str(caught.value)


def test_text_without_an_extension_is_renamed(tmp_path: Path) -> None:
    for name in ("fortunes", "notes.log"):
        (tmp_path / name).write_bytes(TEXT)
    for kind in ("books", "lines"):
        with pytest.raises(UserError, match=r"; rename files of plain text to NAME\.txt$"):
            reading(kind, tmp_path)
    with pytest.raises(UserError, match="needs WikiExtractor's wiki_NN"):
        reading("wikiextractor", tmp_path)


def test_a_vocabulary_is_not_trained_on_another_format_either(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_bytes(ROWS * 100)
    with pytest.raises(UserError, match=JSONL):
        train_tokenizer([parse_source(f"lines:{tmp_path}")], 100, progress=False)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("json", JSONL),
        ("tsv", CSV),
        ("sqlite", OTHER),
        ("Parquet", "did you mean parquet"),
        ("huggingface", "pass --source=arrow:FOLDER"),
        ("wikipedia", "pass --source=dump:PATH"),
        ("epub", "pandoc"),
        ("zip", ZIP),
        ("txt", "--source=books"),
        ("book", "did you mean books"),
        ("wikiextracter", "did you mean wikiextractor"),
        ("Python", "did you mean python"),
        ("s3", "valid: arrow, books, csv, dump, hf, jsonl, lines, parquet, python, tfds, "),
    ],
)
def test_kinds_that_do_not_exist(kind: str, what: str) -> None:
    with pytest.raises(UserError, match=what) as caught:
        parse_source(f"{kind}:/x")
    assert ("did you mean" in str(caught.value)) == ("did you mean" in what)


def test_an_option_that_is_like_no_other_lists_them() -> None:
    with pytest.raises(UserError, match="unknown option 'encoding'; valid: lang, lines, name"):
        parse_source("books:/x,encoding=latin-1")


# The demo's guess --------------------------------------------------------------------------------

ARTICLE = json.dumps({"id": "1", "title": "T", "text": "T\n\nText."}).encode()


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("wiki_00", b'<doc id="1" url="" title="T">\nT\n</doc>\n', "wikiextractor"),
        ("articles.json", ARTICLE, "wikiextractor"),
        ("data.jsonl", ROWS, "jsonl"),
        ("data.csv", TEXT, "csv"),
        ("data.parquet", b"PAR1", "parquet"),
        ("data.arrow", b"ARROW1", "arrow"),
        ("novel.txt", TEXT, "books"),
    ],
)
def test_the_demo_guesses_the_kind(tmp_path: Path, name: str, data: bytes, kind: str) -> None:
    (tmp_path / name).write_bytes(data)
    assert guess_kind(tmp_path / name) == kind
    source = source_of(str(tmp_path / name))
    assert (source.kind, source.name) == (kind, "text")
    source = source_of(f"lines:{tmp_path / name},lang=de")
    assert (source.kind, source.name, source.language) == ("lines", "text", "de")


def test_the_demo_looks_at_the_whole_folder(tmp_path: Path) -> None:
    (tmp_path / "AA").mkdir()
    (tmp_path / "AA/wiki_00").write_bytes(ARTICLE)
    (tmp_path / "0.jsonl").write_bytes(ROWS)
    assert guess_kind(tmp_path) == "wikiextractor"
    (tmp_path / "AA/wiki_00").rename(tmp_path / "AA/rows.jsonl")
    assert guess_kind(tmp_path) == "jsonl"
    (tmp_path / "state.json").write_bytes(b"{}")
    assert guess_kind(tmp_path) == "arrow"
    (tmp_path / "state.json").unlink()
    (tmp_path / "novel.txt").write_bytes(TEXT)
    assert guess_kind(tmp_path) == "books"
    for file in ("AA/rows.jsonl", "0.jsonl", "novel.txt"):
        (tmp_path / file).rename(tmp_path / "data.sqlite")
    assert guess_kind(tmp_path) == "books"
    with pytest.raises(UserError, match=OTHER):
        find(source_of(str(tmp_path)))
    with pytest.raises(UserError, match="absent: no such file or folder"):
        find(source_of(str(tmp_path / "absent")))
