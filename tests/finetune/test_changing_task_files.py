"""A file of a task that changes while it is read is one line; another status of it is no change."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from test_prepared_glue import write_prepared

from bert_jax.errors import UserError
from bert_jax.finetune.tasks import conll, glue, prepared_glue, squad, table
from bert_jax.finetune.tasks.labeled_examples import Examples
from bert_jax.finetune.tasks.table import Columns
from bert_jax.storage import versions

SQUAD = (
    '{"data": [{"paragraphs": [{"context": "Ada lives.", "qas": [{"id": "1", "question": "Who?",'
    ' "answers": [{"text": "Ada", "answer_start": 0}]}]}]}]}'
)


def read_table(path: Path) -> Examples:
    return table.read_table(path, Columns("text", label="label"))


READERS: dict[str, tuple[str, Callable[[Path], Examples]]] = {
    "a.tsv": ("text\tlabel\nGood.\tyes\nBad.\tno\n", read_table),
    "a.csv": ("text,label\nGood.,yes\nBad.,no\n", read_table),
    "a.jsonl": ('{"text": "Good.", "label": "yes"}\n', read_table),
    "a.txt": ("Ada I-PER\nlives O\n", conll.read_sentences),
    "a.json": (SQUAD, squad.read_questions),
}  # fmt: skip


def overwrite(path: Path) -> None:
    """In place, with the same size and time of modification."""
    before = path.stat()
    data = path.read_bytes()
    path.write_bytes(data.replace(b"G", b"M").replace(b"A", b"O"))
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


def chmod(path: Path) -> None:
    path.chmod(0o640)


def at_first_read(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Calls `change` after the first bytes of a file were read."""
    readinto, changes = versions._Hashing.readinto, [change]

    def read(self: versions._Hashing, buffer: memoryview) -> int:
        count = readinto(self, buffer)
        while changes:
            changes.pop()()
        return count

    monkeypatch.setattr(versions._Hashing, "readinto", read)


@pytest.mark.parametrize("change", [overwrite, lengthen, chmod])
@pytest.mark.parametrize("name", READERS)
def test_a_file_that_changes_while_it_is_read(name, change, tmp_path, monkeypatch) -> None:
    text, read = READERS[name]
    path = tmp_path / name
    path.write_text(text)
    expected = read(path)
    at_first_read(monkeypatch, lambda: change(path))
    if change is chmod:
        assert read(path) == expected
        return
    with pytest.raises(UserError, match=rf"{name}: changed while it was in use"):
        read(path)


@pytest.mark.parametrize("change", [lengthen, chmod])
@pytest.mark.parametrize("which", ["glue-train.array_record-00001-of-00002", "features.json"])
def test_a_prepared_dataset_that_changes_while_it_is_read(
    which, change, tmp_path, monkeypatch
) -> None:
    folder, read_records = write_prepared(tmp_path, "rte"), prepared_glue.read_records

    def read(*arguments: object) -> object:
        yield from read_records(*arguments)  # type: ignore[arg-type]
        change(folder / which)

    monkeypatch.setattr(prepared_glue, "read_records", read)
    if change is chmod:
        assert glue.read_split("rte", folder, "train").examples
        return
    with pytest.raises(UserError, match="changed while it was in use"):
        glue.read_split("rte", folder, "train")
