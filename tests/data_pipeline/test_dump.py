"""Source kind `dump`: which pages are read, where dumps are cut, one line for damaged ones."""

import bz2
import random
import sys
from collections import Counter
from pathlib import Path

import pytest
from small_dump import END, HEAD, articles, multistream, page

from bert_jax.data_pipeline.sources import cutting, dump, find, parse_source, ranges, read_range
from bert_jax.data_pipeline.sources.document import Document, Range
from bert_jax.errors import UserError


def documents(path: Path, part: Range | None = None) -> tuple[list[Document], Counter[str]]:
    skipped: Counter[str] = Counter()
    return [*read_range(parse_source(f"dump:{path}"), part or Range(path), skipped)], skipped


def test_articles_alone_are_read_and_the_rest_is_counted(tmp_path: Path) -> None:
    pages = [
        page("Katze", "Eine [[Kater|Katze]].[[Datei:A.jpg|mini]] &amp;amp; &lt;br&gt; so."),
        page("Kater", "#REDIRECT [[Katze]]", more='<redirect title="Katze" />'),
        page("Alt", "#redirect [[Katze]]"),
        page("Diskussion:Katze", "Nein.", namespace=1),
        page("Lang", "a" * ((2 << 20) + 1)),
        page("Umlaut", "ä" * (1 << 20) + "a"),
        page("K", "* [[Katze]]\n{{Begriffsklärung}}"),
        page("Q1", '{"labels": {}}', text_as="wikibase-item", form="application/json"),
        page("Stil.css", "a {}", text_as="css", form="text/css"),
        page("Leer", "", text_as="wikitext", form="text/x-wiki", more_text="{&quot;a&quot;: 1}"),
    ]
    file = tmp_path / "dewiki.xml"
    file.write_text(HEAD + "".join(pages) + END, encoding="utf-8")
    skipped: Counter[str] = Counter()
    found = [*read_range(parse_source(f"dump:{file},lang=de"), Range(file), skipped)]
    assert [document.title for document in found] == ["Katze", "Leer"]
    assert found[0].plain_text is not None
    assert found[0].plain_text(found[0].text)[0] == "Eine Katze. &amp;   so."
    assert skipped == {
        "redirects": 2,
        "pages of other namespaces": 1,
        "pages above 2 MiB": 2,
        "pages of other content than wikitext": 2,
        "disambiguation pages": 1,
    }


def revision(year: int, text: str, model: str = "") -> str:
    when = f"<timestamp>{year}-01-01T00:00:00Z</timestamp>" if year else ""
    model = f"<model>{model}</model>" if model else ""
    return f"<revision>{when}{model}<text>{text}</text></revision>"


@pytest.mark.parametrize(
    "revisions",
    [
        [revision(2020, "The latest."), revision(2019, "An old one.")],
        [revision(2019, "An old one.", "css"), revision(2020, "The latest.")],
        [revision(2020, "a" * ((2 << 20) + 1)), revision(2021, "The latest.")],
        [revision(0, "One."), revision(0, "The latest.")],
        [revision(2020, "The latest."), "<upload><timestamp>2030</timestamp></upload>"],
        ["<upload><timestamp>2030</timestamp></upload>", revision(2020, "The latest.")],
    ],
    ids=["newest first", "another model", "too long", "no times", "upload", "upload first"],
)
def test_a_page_of_several_revisions_is_its_latest(tmp_path: Path, revisions: list[str]) -> None:
    file = tmp_path / "a.xml"
    page = f"<page><title>A</title><ns>0</ns>{''.join(revisions)}</page>"
    file.write_text(HEAD + page + END, encoding="utf-8")
    found, skipped = documents(file)
    assert [document.text for document in found] == ["The latest."]
    assert not skipped


@pytest.mark.parametrize("form", ["xml", "multistream"])
def test_every_page_is_in_one_range_wherever_a_dump_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    pages = articles(60)
    file = tmp_path / ("a.xml" if form == "xml" else "a.xml.bz2")
    text = (HEAD + "".join(pages) + END).encode()
    file.write_bytes(text if form == "xml" else multistream(pages))
    spec = parse_source(f"dump:{file}")
    whole, _ = documents(file)
    assert [document.title for document in whole] == [f"T{n}" for n in range(60)]
    for size in (100, 300, 700):
        monkeypatch.setattr(cutting, "RANGE_BYTES", size)
        parts = ranges(spec, file)
        assert len(parts) > 2
        read = [document for part in parts for document in documents(file, part)[0]]
        assert [(d.title, d.text) for d in read] == [(d.title, d.text) for d in whole]


def test_one_stream_and_streams_that_begin_inside_pages_are_one_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "RANGE_BYTES", 100)
    text = (HEAD + "".join(articles(60)) + END).encode()
    pieces = [text[at : at + 999] for at in range(0, len(text), 999)]
    for name, data in (
        ("enwiki-1-pages-articles.xml.bz2", bz2.compress(text)),
        (
            "b.xml.bz2",
            b"".join(map(bz2.compress, pieces)),
        ),
    ):
        (tmp_path / name).write_bytes(data)
        spec = parse_source(f"dump:{tmp_path / name}")
        (part,) = ranges(spec, tmp_path / name)
        assert len(documents(tmp_path / name, part)[0]) == 60
        (warning,) = find(spec).warnings
        assert "only one core can read: about 0.0 hours" in warning
        better = "pages-articles-multistream.xml.bz2" if name[0] == "e" else "-multistream in its"
        assert better in warning
    (tmp_path / "c.xml.bz2").write_bytes(multistream(articles(60)))
    assert not find(parse_source(f"dump:{tmp_path / 'c.xml.bz2'}")).warnings


def test_a_dump_that_ends_early_or_is_damaged_is_one_line(tmp_path: Path) -> None:
    data = multistream(articles(20))
    starts = [match.start() for match in dump._STREAM.finditer(data)]
    rng = random.Random(0)
    for cut in (*starts, *rng.sample(range(len(data)), 60)):
        file = tmp_path / "a.xml.bz2"
        file.write_bytes(data[:cut])
        with pytest.raises(UserError, match=r"a\.xml\.bz2: .*; download it again") as caught:
            documents(file)
        assert "\n" not in str(caught.value)
    # A damaged header is no stream; without an error, all that follows would be lost.
    for first, size in ((20, 9), (0, 1), (4, 6), (0, 200), (-100, 150)):
        hole = slice(starts[3] + first, starts[3] + first + size)
        file.write_bytes(data[: hole.start] + b"\0" * size + data[hole.stop :])
        with pytest.raises(UserError, match="download it again"):
            documents(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<!DOCTYPE a [<!ENTITY b "cc"><!ENTITY d "&b;&b;">]>' + HEAD + "&d;" + END, "DOCTYPE"),
        (HEAD + page("A", "&nope;") + END, "undefined entity"),
        (HEAD + page("A", "b"), "at or after the page 'A'"),
        (
            HEAD + page("A", "b").replace("  </page>\n", "") + page("B", "c") + "</page>" + END,
            "'A' .a page inside a page",
        ),
        ('<?xml version="1.0" encoding="klingon"?>' + HEAD + END, "not XML in UTF-8"),
        ("Just text.", "not the XML of a complete dump"),
    ],
)
def test_what_is_no_dump_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.xml").write_text(text)
    with pytest.raises(UserError, match=message):
        documents(tmp_path / "a.xml")


@pytest.mark.parametrize("suffix", ["bz2", "gz", "xz"])
def test_an_archive_that_is_none_is_one_line(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.xml.{suffix}"
    file.write_text(HEAD + page("A", "b") + END)
    with pytest.raises(UserError, match=rf"a\.xml\.{suffix}: cannot be read .*; download it again"):
        documents(file)


def test_a_folder_of_dumps(tmp_path: Path) -> None:
    names = ["x-pages-articles1.xml-p1p9.bz2", "x-pages-articles.xml", "x-index.txt.bz2", "md5.txt"]
    for name in names:
        (tmp_path / name).write_text("x")
    found = find(parse_source(f"dump:{tmp_path}"))
    assert [path.name for path in found.files] == [names[1], names[0]]


def test_a_missing_parser_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mwparserfromhell", None)
    (tmp_path / "a.xml").write_text(HEAD + END)
    with pytest.raises(UserError, match=r"not installed; pip install 'bert-jax\[dump\]'"):
        find(parse_source(f"dump:{tmp_path / 'a.xml'}"))
