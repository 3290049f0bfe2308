"""Dumps that end anywhere and pages of nothing but markup: an answer or one line, in seconds."""

import bz2
import gc
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_dump import END, HEAD, articles, multistream, page

from bert_jax import cli
from bert_jax.data_pipeline.sources import dump, find, parse_source, ranges, read_range
from bert_jax.data_pipeline.sources.document import Document
from bert_jax.data_pipeline.store_build.shard import cleaned
from bert_jax.data_pipeline.text import sentences
from bert_jax.data_pipeline.text.wikitext import UNKNOWN, plain_text
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.errors import UserError

CUTS = 200
SECONDS = 60
MEMORY = 1.5 * 2**30  # bytes
LONGEST = 2_000_000  # bytes of a page, as many as are read but for a few
DUMP = parse_source("dump:enwiki.xml")

# Dumps that end early ----------------------------------------------------------------------------


def read_all(file: Path) -> list[Document]:
    """The documents of a dump, as a build finds and reads them."""
    spec = parse_source(f"dump:{file}")
    (path,) = find(spec).files
    return [document for part in ranges(spec, path) for document in read_range(spec, part)]


def check_cuts(data: bytes, file: Path, cuts: list[int]) -> None:
    """Each is one line that names the file; the last byte of a dump may be a line end."""
    for cut in cuts:
        file.write_bytes(data[:cut])
        start = time.process_time()
        with pytest.raises(UserError, match=re.escape(f"{file}: ")) as caught:
            read_all(file)
        assert time.process_time() - start < SECONDS
        assert "\n" not in str(caught.value)
        assert str(caught.value).endswith(("; download it again", "; pass files with text")), cut


def cuts_of(data: bytes) -> list[int]:
    starts = [match.start() for match in dump._STREAM.finditer(data)]
    return [*starts, *random.Random(0).sample(range(1, len(data)), CUTS)]


def names(mark: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """Both dumps; the larger one is not for every run of the tests."""
    large = pytest.param("pages-articles-fragment", marks=mark)
    return pytest.mark.parametrize("name", ["table-markup", large])


@names(pytest.mark.nightly)
def test_a_real_dump_cut_anywhere_is_one_line(name: str, real_data: Path, tmp_path: Path) -> None:
    data = (real_data / f"wikipedia/enwiki-{name}.xml.bz2").read_bytes()
    check_cuts(data, tmp_path / "a.xml.bz2", cuts_of(data))
    text = bz2.decompress(data).rstrip()
    check_cuts(text, tmp_path / "a.xml", random.Random(1).sample(range(1, len(text)), CUTS))


@names(pytest.mark.slow)
def test_real_pages_in_streams_cut_at_every_stream(
    name: str, real_data: Path, tmp_path: Path
) -> None:
    text = bz2.decompress((real_data / f"wikipedia/enwiki-{name}.xml.bz2").read_bytes()).decode()
    head, *pages = re.split(r"(?=<page>)", text.rpartition("</mediawiki>")[0])
    parts = [head, *("".join(pages[i : i + 10]) for i in range(0, len(pages), 10)), END]
    data = b"".join(bz2.compress(part.encode()) for part in parts)
    starts = [match.start() for match in dump._STREAM.finditer(data)]
    assert len(starts) == len(parts) > 2
    (tmp_path / "whole.xml.bz2").write_bytes(data)
    assert len(read_all(tmp_path / "whole.xml.bz2")) > 0
    check_cuts(data, tmp_path / "a.xml.bz2", starts)


def test_a_build_of_a_dump_that_ends_early_says_so_and_can_be_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, data = tmp_path / "a.xml.bz2", multistream(articles(60))
    Tokenizer.from_vocab([*SPECIAL_TOKENS, "a"]).save(tmp_path / "tokenizer.json")
    flags = [f"--source=dump:{file}", f"--tokenizer={tmp_path}/tokenizer.json", "--workers=1"]
    file.write_bytes(data[:-9])
    assert cli.main(["data", "build", *flags, f"--out={tmp_path}/store"]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert str(file) in line
    assert line.endswith("; download it again")
    file.write_bytes(data)
    assert cli.main(["data", "build", *flags, f"--out={tmp_path}/store"]) == 0


# Pages of nothing but markup ---------------------------------------------------------------------


def pages(length: int) -> dict[str, str]:
    """Pages of about `length` bytes."""

    def repeated(unit: str) -> str:
        return unit * (length // len(unit.encode()))

    units = {
        "templates": "{{a|",
        "tables": "{|\n",
        "links": "[[a|b ",
        "addresses": "[http://",
        "references": "<ref>",
        "bold": "<b>",
        "attributes": "<b a=",
        "comments": "<!--",
        "crossing marks": "}}]]{{a|[[b|",
        "lists": "*",
        "list lines": "*\n",
        "entities": "&amp;",
        "sentences": '"A b." ',
        "apostrophes": "a'",
        "bold and italics": "'''''a'''b",
        "variants": "-{zh-cn:a;",
        "variants in variants": "-{",
        "headings": "== a",
        "tags without an end": "<ref a",
        "switches": "__A_",
        "sections": "Section::::",
        "quotation marks of CJK": "「 、",
        "parentheses of CJK": "（；",
    }
    return {name: repeated(unit) for name, unit in units.items()} | {
        "files": repeated("File:") + "|",
        "parentheses": repeated("(") + "x.",
        "quotation marks": repeated('"') + "x.",
        "escaped entities": "&" + repeated("amp;"),
        "escaped numbers": "&" + repeated("#38;"),
        "gaps": f"a{repeated(';')}x ;)",
        "commas": repeated(", ") + "x",
        "spaces": f"a{repeated(' ')}x . y",
        "lines": repeated("\n") + "x",
    }


NESTED = {"{{a|": "}}", "{{{": "}}}", "[[a|": "]]", "<ul>": "</ul>", "{|\n|": "\n|}"}


PAGES = pages(400_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_one_kind_of_markup_takes_seconds(name: str) -> None:
    """As wikitext, and where its marks get past the reader of wikitext."""
    document = Document(PAGES[name], plain_text=lambda text: plain_text(text, language="en"))
    start = time.process_time()
    for text in (cleaned(document, DUMP)[0], cleaned(Document(PAGES[name]), DUMP)[0]):
        sentences.split(text, "en")
    assert time.process_time() - start < 3


@pytest.mark.parametrize("mark", [*NESTED, "'''"])
def test_1000_nested_marks_are_an_answer(mark: str) -> None:
    text = plain_text(f"Text. {mark * 1000}x{NESTED.get(mark, mark) * 1000}", language="en")
    assert text[1].keys() <= {"too_much_markup", f"{UNKNOWN}a"}


COMMAND = """
import resource, sys
from bert_jax import cli
code = cli.main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_maxrss * 1024, used.ru_utime + used.ru_stime)
sys.exit(code)
"""


@pytest.mark.nightly
@pytest.mark.processes
def test_a_dump_of_such_pages_takes_little_memory(tmp_path: Path) -> None:
    nested = {mark: mark * 1000 + "x" + close * 1000 for mark, close in NESTED.items()}
    made = [page(escape(name), escape(text)) for name, text in (pages(LONGEST) | nested).items()]
    file = tmp_path / "a.xml"
    file.write_text(HEAD + "".join([*made, *articles(60)]) + END)
    Tokenizer.from_vocab([*SPECIAL_TOKENS, "a"]).save(tmp_path / "tokenizer.json")
    words = [
        f"--source=dump:{file}",
        f"--tokenizer={tmp_path}/tokenizer.json",
        "--workers=1",
        "--dedup=near",
    ]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "data", "build", *words, f"--out={tmp_path}/store"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    (source,) = json.loads((tmp_path / "store/manifest.json").read_text())["sources"]
    assert source["documents"] == len(made) + 60
    memory, seconds = map(float, done.stdout.split()[-2:])
    print(f"{memory / 2**20:.0f} MiB, {seconds:.0f} s")
    assert memory < MEMORY
    assert seconds < SECONDS


def escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


# A shard's memory --------------------------------------------------------------------------------


def test_the_walk_leaves_no_reference_cycles() -> None:
    """Python's search for cycles is paused while a shard is built, so they would stay."""
    texts = [
        "A {{convert|5|km}} [[link|of {{lang|fr|b}}]] <b>c</b>.<ref>d</ref> ''e'' [http://f g].",
        "{| class=x\n| a\n|}\n== See also ==\n* b\n[[File:A.jpg|thumb|[[c]]]] {{unknown|d}}",
        "{{a|" * 1000 + "}}" * 1000,
        "{{a|" * 50_000,
    ]
    documents = [Document(t, plain_text=lambda t: plain_text(t, language="en")) for t in texts]
    was_enabled = gc.isenabled()
    sentences.split(
        cleaned(documents[0], DUMP)[0], "en"
    )  # what is imported leaves cycles of its own
    gc.collect()
    gc.disable()
    try:
        for document in documents:
            sentences.split(cleaned(document, DUMP)[0], "en")
        assert gc.collect() == 0
    finally:
        if was_enabled:
            gc.enable()
