"""Rows that cannot be read: one line each, which says where and what to do."""

import json
import sys
from pathlib import Path

import prepared_dataset
import pyarrow as pa
import pyarrow.parquet
import pytest
from gcs_emulator import emulated
from row_files import write_arrow, write_csv, write_jsonl, write_parquet, write_saved, zstd

from bert_jax import cli
from bert_jax.data_pipeline.sources import check, cutting, find, parse_source, ranges, read_range
from bert_jax.data_pipeline.sources.document import Document
from bert_jax.errors import UserError

ROWS = [{"id": n, "text": f"Row {n}.", "none": None} for n in range(40)]


def documents(source: str) -> list[Document]:
    """Reads a source as a build does, range by range."""
    spec = parse_source(source)
    files = find(spec).files
    for file in files:
        check(spec, file)
    return [d for file in files for part in ranges(spec, file) for d in read_range(spec, part)]


def error_of(source: str) -> str:
    with pytest.raises(UserError) as caught:
        documents(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def prepared(folder: Path, **options) -> Path:
    prepared_dataset.write(
        folder / "wiki/1.0.0",
        {"train": [[{"id": 1, "text": "One."}] * 3, [{"id": 1, "text": "Two."}]], "test": [[]]},
        numbers=("id",),
        **options,
    )
    return folder / "wiki/1.0.0"


def files_of(folder: Path) -> dict[str, str]:
    """Kind -> the path of its rows."""
    write_jsonl(folder / "rows.jsonl", ROWS)
    write_csv(folder / "rows.csv", ROWS)
    write_parquet(folder / "rows.parquet", ROWS)
    write_arrow(folder / "rows.arrow", ROWS)
    prepared(folder)
    names = {kind: f"rows.{kind}" for kind in ("jsonl", "csv", "parquet", "arrow")}
    return {kind: str(folder / name) for kind, name in names.items()} | {"tfds": f"{folder}/wiki"}


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "arrow", "tfds"])
def test_a_missing_column_lists_those_that_are_there(kind: str, tmp_path: Path) -> None:
    path = files_of(tmp_path)[kind]
    shown = "id, text" if kind == "tfds" else "id, text, none"
    for options, name, flag in (
        (",text=body", "body", "text"),
        (",title=head", "head", "title"),
    ):
        message = error_of(f"{kind}:{path}{options}")
        assert f"no column {name!r}; its columns are {shown}; name one with ,{flag}=NAME" in message
        assert message.startswith(path)


@pytest.mark.parametrize(
    ("kind", "what"),
    [("jsonl", "int"), ("parquet", "int64"), ("arrow", "int64"), ("tfds", "Scalar(")],
)
def test_a_column_that_is_not_text_is_named(kind: str, what: str, tmp_path: Path) -> None:
    message = error_of(f"{kind}:{files_of(tmp_path)[kind]},text=id")
    assert f"column 'id' is of type {what}" in message
    assert "not text; name another" in message


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
def test_missing_texts_are_counted(kind: str, tmp_path: Path) -> None:
    rows = [{"text": None if n % 5 == 0 else f"row {n}."} for n in range(40)]
    {"jsonl": write_jsonl, "parquet": write_parquet, "arrow": write_arrow}[kind](
        tmp_path / f"rows.{kind}", rows
    )
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    command = ["data", "build", f"--source={kind}:{tmp_path}/rows.{kind}", "--workers=1"]
    command += [f"--tokenizer={tmp_path}/vocab.txt", f"--out={tmp_path}/store"]
    assert cli.main([*command, "--strict"]) == 1
    assert cli.main(command) == 0
    (source,) = json.loads((tmp_path / "store/manifest.json").read_text())["sources"]
    assert source["documents"] == 40
    assert source["dropped"]["documents"] == 8


def test_invalid_lines_of_json_have_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "RANGE_BYTES", 100)
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"text": f"Row {n}."}) for n in range(40)]
    for bad, message in (
        ('{"text": "a', "not JSON (Unterminated string"),
        ("[" * 100_000, "nested too deeply"),
        ('["text"]', "not a JSON object, such as {…}; correct the line"),
        ('{"body": "a"}', "no column 'text'; its columns are body"),
        ('{"text": ["a"]}', "column 'text' is of type list, not text"),
    ):
        path.write_text("\n".join([*lines[:30], "", bad, *lines[30:]]))
        assert error_of(f"jsonl:{path}").startswith(f"{path}:32: {message}")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('3,"Say "no" to it."', "expected after '\"'; double a quote inside quotes"),
        ('3,"It never ends.', "unexpected end of data"),
        ('3, "One, two."', 'white space before the quote of "One; remove the white space'),
        ("3,One, two.", "3 values, but 2 columns; put a value that has ','"),
        ("3", "1 value, but 2 columns"),
    ],
)
def test_a_damaged_table_names_the_line(row: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f'id,text\n1,"Two\nlines."\n\n{row}\n')
    said = error_of(f"csv:{tmp_path}/rows.csv")
    assert said.startswith(f"{tmp_path}/rows.csv:5: ")
    assert message in said


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,id,text\nOne.,2,Three.\n")
    columns = [pa.array([word]) for word in ("One.", "Two.")]
    pyarrow.parquet.write_table(
        pa.Table.from_arrays(columns, ["text", "text"]), tmp_path / "rows.parquet"
    )
    for name in ("csv", "parquet"):
        said = error_of(f"{name}:{tmp_path}/rows.{name}")
        assert "2 columns are named 'text'; rename one" in said


def test_a_table_without_a_header(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('1;One.\n2;"A, b; c."\n')
    source = f"csv:{tmp_path}/rows.csv,columns=label"
    assert [d.text for d in documents(f"{source}+text")] == ["One.", "A, b; c."]
    assert "no column 'text'; its columns are label" in error_of(source)
    assert "3 names in columns=, but 2 columns; name them all" in error_of(f"{source}+text+x")


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_damaged_files_are_one_line(kind: str, tmp_path: Path) -> None:
    path = Path(files_of(tmp_path)[kind])
    data = path.read_bytes()
    for content in (data[: len(data) // 2], b"nothing of the kind " * 99, data[:100]):
        path.write_bytes(content)
        assert error_of(f"{kind}:{path}").startswith(f"{path}: cannot be read ")


def test_archives_that_are_none_or_end_early(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.zst"
    data = zstd("".join(f"{json.dumps(row)}\n" for row in ROWS).encode())
    for content, reason in ((data[:-30], "Truncated"), (b'{"text": "a"}', "decompress")):
        path.write_bytes(content)
        message = error_of(f"jsonl:{path}")
        assert message.startswith(f"{path}: cannot be read (")
        assert reason in message
        assert message.endswith("; copy it again")
    (tmp_path / "rows.csv").write_bytes(data)
    assert "rename it to NAME.zst" in error_of(f"csv:{tmp_path}/rows.csv")


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_file_without_rows_has_no_documents(kind: str, tmp_path: Path) -> None:
    table = pa.table({"text": pa.array([], pa.string())})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    with pa.ipc.new_stream(tmp_path / "rows.arrow", table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    spec = parse_source(f"{kind}:{tmp_path}/rows.{kind}")
    assert documents(f"{kind}:{tmp_path}/rows.{kind}") == []
    assert len(ranges(spec, spec.path)) == 1


def test_splits_of_a_saved_dataset(tmp_path: Path) -> None:
    (tmp_path / "splits").mkdir()
    write_saved(tmp_path / "splits/train", ROWS)
    write_saved(tmp_path / "splits/validation", ROWS[:4])
    (tmp_path / "splits/dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    source = f"arrow:{tmp_path}/splits"
    assert len(documents(f"{source},split=validation")) == 4
    assert "no split 'valid'; did you mean validation?" in error_of(f"{source},split=valid")
    assert "has no splits; leave out split=test" in error_of(f"{source}/train,split=test")
    (tmp_path / "splits/train/state.json").write_text("{")
    assert "state.json: damaged (" in error_of(source)


def test_a_prepared_dataset_that_cannot_be_read(tmp_path: Path) -> None:
    folder, source = prepared(tmp_path), f"tfds:{tmp_path}/wiki"
    assert "no split 'training'; did you mean train?" in error_of(f"{source},split=training")
    assert "split 'test' is empty" in error_of(f"{source},split=test")
    assert "no prepared dataset there (dataset_info.json)" in error_of(f"tfds:{tmp_path}/none")
    shard = folder / "wiki-train.array_record-00000-of-00002"
    data = shard.read_bytes()
    shard.write_bytes(data[: len(data) // 2])
    assert f"{shard}: cannot be read (RuntimeError); copy the dataset again" in error_of(source)
    shard.write_bytes(b"none")
    assert f"{shard}: cannot be read (ArrayRecord file should be" in error_of(source)
    other = prepared(tmp_path / "other")
    (other / "features.json").write_text("{}")
    assert "features.json is damaged" in error_of(f"tfds:{other}")


def test_another_form_of_a_prepared_dataset_says_how_to_prepare_it(tmp_path: Path) -> None:
    prepared(tmp_path, file_format="tfrecord")
    message = error_of(f"tfds:{tmp_path}/wiki")
    assert "prepared as tfrecord, which needs TensorFlow" in message
    assert "tfds build wiki --file_format=array_record" in message


def test_names_of_prepared_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for config in ("de", "en"):
        rows = [[{"text": config}]]
        prepared_dataset.write(tmp_path / f"wiki/{config}/1.0.0", {"train": rows})
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    for name in ("wiki/en", "wiki/en:1.0.0", f"{tmp_path}/wiki/en"):
        assert [d.text for d in documents(f"tfds:{name}")] == ["en"]
    assert "has 2 configurations (de, en); add the one to read" in error_of("tfds:wiki")
    assert parse_source("tfds:wiki", "gs://b/tfds").path.as_uri() == "gs://b/tfds/wiki"


@pytest.mark.parametrize(
    ("source", "package", "extra"),
    [
        ("parquet:rows.parquet", "pyarrow", "arrow"),
        ("arrow:rows.arrow", "pyarrow", "arrow"),
        ("jsonl:rows.jsonl.zst", "pyarrow", "arrow"),
        ("tfds:wiki", "tensorflow_datasets", "tfds"),
    ],
)
def test_a_missing_extra_says_how_to_install_it(
    source: str, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files_of(tmp_path)
    (tmp_path / "rows.jsonl.zst").write_bytes(zstd(b"{}"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    message = error_of(source)
    assert f"need {package}, which is not installed; pip install 'bert-jax[{extra}]'" in message


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "arrow", "tfds"])
def test_a_bucket_without_permission_is_one_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with emulated(monkeypatch, "secret") as server:
        server.faults.denied = frozenset({"secret"})
        message = error_of(f"{kind}:gs://secret/rows.{kind}")
    assert "cannot be read (no permission)" in message


TABS = {
    "quotes are text": (
        'id\ttext\n1\tWell.\n2\t"Oh, well.\n3\tSo it ended."\n',
        ["Well.", '"Oh, well.', 'So it ended."'],
    ),
    "a whole value in quotes is text": ('id\ttext\n1\t"Oh, well."\n', ['"Oh, well."']),
    "commas are text": ("text\nWell, well, well.\n", ["Well, well, well."]),
    "as pandas writes": (
        'id\ttext\n1\t"He said ""no""."\n2\t"Two\n\nlines."\n3\t"A\ttab."\n',
        ['He said "no".', "Two\n\nlines.", "A\ttab."],
    ),
    "a header in quotes": ('"id"\t"text"\n"1"\t"Oh, well."\n', ["Oh, well."]),
    "blank lines": ("id\ttext\n\n1\tWell.\n\n2\tSo.\n", ["Well.", "So."]),
    "quotes at the end": ('id\ttext\n1\t"Oh', ['"Oh']),
}


@pytest.mark.parametrize("form", TABS)
def test_quotes_of_a_table_of_tabs(form: str, tmp_path: Path) -> None:
    content, texts = TABS[form]
    (tmp_path / "rows.tsv").write_text(content)
    assert [d.text for d in documents(f"csv:{tmp_path}/rows.tsv")] == texts


def test_tabs_separate_the_columns_of_a_tsv_without_a_header(tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_text('0\tWell, well.\n1\t"Oh\n')
    spec = f"csv:{tmp_path}/rows.tsv,columns=label+text"
    assert [d.text for d in documents(spec)] == ["Well, well.", '"Oh']


def test_a_row_of_a_tsv_with_too_many_values_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_text("id\ttext\n1\tWell.\n2\tA\ttab.\n")
    with pytest.raises(UserError, match=r"rows\.tsv:3: 3 values, but 2 columns"):
        documents(f"csv:{tmp_path}/rows.tsv")
