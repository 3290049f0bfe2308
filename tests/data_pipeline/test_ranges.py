"""Ranges of files: every document and every byte is in exactly one, wherever a file is cut."""

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bert_jax.data_pipeline.sources import cutting, parse_source, ranges, read, read_range
from bert_jax.data_pipeline.sources import lines as lines_kind
from bert_jax.data_pipeline.sources.cutting import cut_file, line_end
from bert_jax.data_pipeline.sources.document import Document, Range
from bert_jax.data_pipeline.sources.reading import lines
from bert_jax.errors import UserError

# Ends of lines, blank lines of several kinds and lengths, a byte order mark, bytes of é.
PIECES = (
    "\n",
    "\r\n",
    "\r",
    "\n\n",
    "\r\n \t\r\n",
    "\n\u00a0\n",
    "\ufeff",
    "a\n",
    "a\n" * 7,
    "b" + " " * 9 + "\n",
    "b c",
    "é" * 9,
    " " * 9,
)


def check_tiles(parts: list[Range], size: int) -> None:
    """Every byte is in exactly one range."""
    stops = [size if part.stop is None else part.stop for part in parts]
    assert [part.start for part in parts] == [0, *stops[:-1]]
    assert stops[-1] == size
    assert [part.bytes for part in parts] == [
        stop - part.start for part, stop in zip(parts, stops, strict=True)
    ]


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits so small that a text of some lines has every case."""
    monkeypatch.setattr(lines_kind, "_ENDLESS", 3)
    monkeypatch.setattr(lines_kind, "_NEAR", 6)
    monkeypatch.setattr(lines_kind, "_PIECE", 2)
    monkeypatch.setattr(lines_kind, "_TAIL", 8)


@pytest.mark.usefixtures("small_ranges")
@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    text=st.lists(st.sampled_from(PIECES), max_size=60).map("".join),
    target=st.integers(1, 40),
    document_lines=st.integers(1, 3),
)
def test_a_file_of_lines_has_the_same_documents_wherever_it_is_cut(
    text: str, target: int, document_lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(text.encode())
    spec = parse_source(f"lines:{file},lines={document_lines}")
    with monkeypatch.context() as patched:
        patched.setattr(cutting, "RANGE_BYTES", target)
        parts = ranges(spec, file)
    check_tiles(parts, file.stat().st_size)
    assert [d for part in parts for d in read_range(spec, part)] == list(read(spec, file))


@settings(max_examples=200, deadline=None)
@given(text=st.lists(st.sampled_from(PIECES), max_size=60).map("".join), target=st.integers(1, 40))
def test_lines_of_ranges_are_the_lines_of_the_file(
    text: str, target: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("lines") / "a.jsonl"
    file.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cutting, "RANGE_BYTES", target)
        parts = list(cut_file(file, line_end))
    check_tiles(parts, file.stat().st_size)
    found = [line for part in parts for line in lines(file, part.start, part.stop)]
    assert found == list(lines(file))


def test_one_huge_text_without_blank_lines_is_many_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("".join(f"Sentence {n}.\n" for n in range(10_000)))
    monkeypatch.setattr(cutting, "RANGE_BYTES", 20_000)
    monkeypatch.setattr(lines_kind, "_NEAR", 1000)
    monkeypatch.setattr(lines_kind, "_PIECE", 1000)
    spec = parse_source(f"lines:{file},lines=10")
    parts = ranges(spec, file)
    assert len(parts) == 8
    assert max(part.bytes for part in parts[:-1]) < 20_200
    documents = [d for part in parts for d in read_range(spec, part)]
    assert documents == list(read(spec, file))
    assert len(documents) == 1000
    assert all(document.cut for document in documents)


def test_a_compressed_file_is_one_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.txt.gz"
    file.write_bytes(gzip.compress("".join(f"{n}\n\n" for n in range(999)).encode()))
    monkeypatch.setattr(cutting, "RANGE_BYTES", 100)
    assert ranges(parse_source(f"lines:{file}"), file) == [Range(file, bytes=file.stat().st_size)]


def test_a_byte_that_is_not_utf8_is_counted_from_the_start_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"one\n\ntwo\n\nthr\xe9e\n")
    spec = parse_source(f"lines:{file}")
    assert list(read_range(spec, Range(file, 0, 5))) == [Document("one", sentences_given=True)]
    with pytest.raises(UserError, match=r"not UTF-8 at byte 13 \(0xe9\)"):
        list(read_range(spec, Range(file, 10, 16)))
