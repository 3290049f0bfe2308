"""One rule of line ends for every reader, in files and inside values."""

import csv
import io
import json
from pathlib import Path

import pytest

from bert_jax.data_pipeline.sources import documents, find, parse_source, read
from bert_jax.data_pipeline.sources.document import SourceSpec
from bert_jax.data_pipeline.store_build.shard import cleaned, raw_hash
from bert_jax.finetune.tasks import conll, table

ENDS = pytest.mark.parametrize(
    "end", ["\n", "\r\n", "\r", "\r\r\n"], ids=["LF", "CRLF", "CR", "CRCRLF"]
)
# A form feed, a line separator and NEL are white space inside a line.
TEXT = ["One\x0c is here.", "Two\u2028 is here.", "", "Three\x85 is here."]
PARAGRAPHS = ["One is here.", "Two is here.", "Three is here."]


def quoted(text: str, end: str) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator=end)
    writer.writerows([["label", "text"], ["a", text]])
    return out.getvalue()


def written(kind: str, folder: Path, text: str, end: str) -> SourceSpec:
    """A source of this kind with the text: as a value, or as a whole file."""
    if kind == "documents":
        documents.write([text], folder, "text")
        return SourceSpec(kind, folder, kind)
    if kind in ("parquet", "arrow"):
        pa = pytest.importorskip("pyarrow")
        rows = pa.table({"text": [text]})
        path = folder / f"a.{kind}"
        if kind == "parquet":
            pytest.importorskip("pyarrow.parquet").write_table(rows, path)
        else:
            with pa.ipc.new_file(path, rows.schema) as writer:
                writer.write_table(rows)
        return parse_source(f"{kind}:{path}")
    block = f'<doc id="1" url="u" title="T">{end}{text}{end}</doc>{end}'
    name, data = {
        "jsonl": ("a.jsonl", json.dumps({"text": text}) + end),
        "csv": ("a.csv", quoted(text, end)),
        "wikiextractor": ("wiki_00", block),
        "wikiextractor --json": ("wiki_00", json.dumps({"title": "T", "text": text}) + end),
        "books": ("a.txt", text.replace(end, end * 2)),
        "lines": ("a.txt", text),
    }[kind]
    (folder / name).write_bytes(data.encode())
    return parse_source(f"{kind.split()[0]}:{folder / name}")


KINDS = "jsonl csv parquet arrow documents wikiextractor wikiextractor_--json books lines"


@pytest.mark.parametrize("kind", KINDS.split())
@ENDS
def test_a_text_has_the_same_paragraphs_in_every_kind(tmp_path: Path, kind: str, end: str) -> None:
    spec = written(kind.replace("_", " "), tmp_path, end.join(TEXT), end)
    found = [document for path in find(spec).files for document in read(spec, path)]
    text = "\n".join(cleaned(document, spec)[0] for document in found)
    assert text.split("\n") == PARAGRAPHS
    if kind not in ("books", "lines"):  # whose documents are parts of the text
        (document,) = found
        assert raw_hash(document.text) == raw_hash("\n".join(TEXT))  # so it is in the same split


@ENDS
def test_tables_and_tags_of_tasks(tmp_path: Path, end: str) -> None:
    rows = {
        "a.conll": end.join(["A B-X", "b O", "", "c O", ""]),
        "a.csv": quoted(end.join(TEXT), end),
        "a.tsv": end.join(["label\ttext", "a\tOne.", "b\tTwo.", ""]),
        "a.jsonl": json.dumps({"label": "a", "text": end.join(TEXT)}) + end,
    }
    for name, data in rows.items():
        (tmp_path / name).write_bytes(data.encode())
    sentences = conll.read_sentences(tmp_path / "a.conll").examples
    assert [(example.words, example.row) for example in sentences] == [(("A", "b"), 1), (("c",), 4)]
    columns = table.Columns(text="text", label="label")
    texts = {
        name: [example.texts for example in table.read_table(tmp_path / name, columns).examples]
        for name in ("a.csv", "a.tsv", "a.jsonl")
    }
    assert texts["a.tsv"] == [("One.",), ("Two.",)]
    assert texts["a.csv"] == texts["a.jsonl"] == [("\n".join(TEXT),)]
