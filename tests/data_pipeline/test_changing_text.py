"""Text that changes while a store is built, or between its shards: it is what was hashed, or it is
refused. The same text with another status is no change."""

import dataclasses
import io
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gcs_emulator import Emulator, emulated

from bert_jax import cli
from bert_jax.data_pipeline.sources import cutting, find, parse_source
from bert_jax.data_pipeline.store_build import shard, units, vocabulary, working_folder
from bert_jax.data_pipeline.store_build.digests import FileDigests
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.errors import UserError
from bert_jax.storage import versions
from bert_jax.storage.local_copy import local_folder
from bert_jax.storage.versions import hashed, opened_once, version_of

TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, *"abcdefghijklmnopqrstuvwxyz", "."])
OLD, NEW = (f"{letter} {letter}.\n\n" * 400 for letter in "ab")


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "RANGE_BYTES", 500)
    monkeypatch.setattr(units, "_UNIT_BYTES", 500)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    TOKENIZER.save(tmp_path / "tokenizer.json")
    (tmp_path / "text").mkdir()
    file = tmp_path / "text" / "a.txt"
    file.write_text(OLD)
    hour_ago = time.time() - 3600
    os.utime(file, (hour_ago, hour_ago))
    time.sleep(0.05)  # more than a tick of the kernel's clock
    return file


def overwrite(file: Path) -> None:
    """In place, with the same size and time of modification."""
    before = file.stat()
    with file.open("r+") as stream:
        stream.write(NEW)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(file: Path) -> None:
    """By another file of the same size and time."""
    before = file.stat()
    made = file.with_suffix(".new")
    made.write_text(NEW)
    os.utime(made, ns=(before.st_atime_ns, before.st_mtime_ns))
    made.replace(file)


def lengthen(file: Path) -> None:
    with file.open("a") as stream:
        stream.write("More.\n\n")


def there_and_back(file: Path) -> None:
    replace(file)
    other = file.with_suffix(".old")
    other.write_text(OLD)
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.replace(file)


def chmod(file: Path) -> None:
    file.chmod(0o640)


def back_up(file: Path) -> None:
    (file.parent.parent / "backup").mkdir(exist_ok=True)
    (file.parent.parent / "backup" / "a.txt").hardlink_to(file)


def copy(file: Path) -> None:
    """As another host would see a copy: another inode, the same time of modification."""
    made = file.with_suffix(".copy")
    made.write_text(OLD)
    os.utime(made, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    made.replace(file)


CHANGES = [overwrite, replace, lengthen, Path.unlink]
HARMLESS = [chmod, back_up, copy, there_and_back]


def build(tmp_path: Path, name: str, *more: str) -> int:
    words = [f"--source=lines:{tmp_path}/text,lines=9", f"--tokenizer={tmp_path}/tokenizer.json"]
    return cli.main(["data", "build", *words, "--workers=1", f"--out={tmp_path}/{name}", *more])


def after(monkeypatch: pytest.MonkeyPatch, count: int, change: Callable[[], object]) -> list[int]:
    """Calls `change` once, after `count` units of text were read; returns a list of all reads."""
    reads, original = [], shard._write

    def write(*arguments: object) -> object:
        written = original(*arguments)  # type: ignore[arg-type]
        reads.append(len(reads))
        if len(reads) == count:
            change()
        return written

    monkeypatch.setattr(shard, "_write", write)
    return reads


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("count", [1, 3])
def test_text_that_changes_in_the_middle_of_a_build_is_one_line(
    change, count, text, tmp_path, monkeypatch, capsys
) -> None:
    reads = after(monkeypatch, count, lambda: change(text))
    assert build(tmp_path, "store") == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    wanted = "cannot be read" if change is Path.unlink else "changed while it was in use"
    assert line.startswith(f"error: {text}: {wanted}")
    assert len(reads) == count
    assert not (tmp_path / "store").exists()
    if text.exists():  # the next build has the new text alone
        assert build(tmp_path, "store") == 0
        monkeypatch.undo()
        monkeypatch.setattr(cutting, "RANGE_BYTES", 500)
        monkeypatch.setattr(units, "_UNIT_BYTES", 500)
        assert build(tmp_path, "again") == 0
        assert contents(tmp_path / "store") == contents(tmp_path / "again")


@pytest.mark.parametrize("change", HARMLESS)
def test_the_same_text_with_another_status_is_built(
    change, text, tmp_path, monkeypatch, capsys
) -> None:
    assert build(tmp_path, "expected") == 0
    reads = after(monkeypatch, 2, lambda: change(text))
    capsys.readouterr()
    assert build(tmp_path, "store") == 0
    assert f"{text}: its status changed" in capsys.readouterr().out
    whole = len(planned(tmp_path))
    assert len(reads) == whole + 1  # what was read while it changed is read again
    assert contents(tmp_path / "store") == contents(tmp_path / "expected")


def train(tmp_path: Path, kind: str) -> int:
    words = [f"--source={kind}:{tmp_path}/text", "--vocab_size=100"]
    return cli.main(["data", "tokenizer", *words, f"--out={tmp_path}/trained.json", "--overwrite"])


def while_read(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Calls `change` once, after the first document that a tokenizer is trained on."""
    original, done = vocabulary.cleaned, []

    def cleaned(*arguments: object) -> object:
        if not done:
            done.append(change())
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(vocabulary, "cleaned", cleaned)


@pytest.mark.parametrize("kind", ["lines", "books"])
@pytest.mark.parametrize("change", CHANGES[:3])
def test_text_that_changes_while_a_tokenizer_is_trained_is_one_line(
    kind, change, text, tmp_path, monkeypatch, capsys
) -> None:
    while_read(monkeypatch, lambda: change(text))
    assert train(tmp_path, kind) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert line.startswith(f"error: {text}: changed while it was in use")
    assert not (tmp_path / "trained.json").exists()


@pytest.mark.parametrize("change", HARMLESS)
def test_a_tokenizer_is_trained_on_the_same_text_with_another_status(
    change, text, tmp_path, monkeypatch
) -> None:
    while_read(monkeypatch, lambda: change(text))
    assert train(tmp_path, "lines") == 0
    trained = (tmp_path / "trained.json").read_bytes()
    assert train(tmp_path, "lines") == 0
    assert (tmp_path / "trained.json").read_bytes() == trained


def planned(tmp_path: Path) -> list[units.Unit]:
    source = parse_source(f"lines:{tmp_path}/text,lines=9")
    digests = FileDigests(tmp_path / "nowhere")
    return units.plan_units([source], [find(source)], TOKENIZER, tmp_path, digests).units


def test_a_file_whose_status_never_rests_is_not_read_for_ever(text, tmp_path, monkeypatch) -> None:
    unit, *_ = planned(tmp_path)
    modes, write = itertools.cycle([0o600, 0o640]), shard._write

    def restless(*arguments: object) -> object:
        text.chmod(next(modes))
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(shard, "_write", restless)
    with pytest.raises(UserError, match="changed while it was in use"):
        shard.build_shard(unit, lambda count: None)


@pytest.mark.parametrize("change", [overwrite, replace])
def test_other_text_between_two_shards_is_noticed(change, text, tmp_path, capsys) -> None:
    assert build(tmp_path, "store", "--shard=1/2") == 0
    change(text)
    capsys.readouterr()
    for flag in ("--shard=2/2", "--merge"):
        assert build(tmp_path, "store", flag) == 1
        assert "built from other text or settings: text of source" in capsys.readouterr().err


@pytest.mark.parametrize("change", HARMLESS)
def test_another_status_between_two_shards_is_read_once(
    change, text, tmp_path, capsys, monkeypatch
) -> None:
    assert build(tmp_path, "store", "--shard=1/2") == 0
    change(text)
    time.sleep(0.05)
    capsys.readouterr()
    read, open_bytes = [], versions.open_bytes
    monkeypatch.setattr(versions, "open_bytes", lambda path: read.append(path) or open_bytes(path))
    assert build(tmp_path, "store", "--shard=2/2") == 0
    assert f"{text}: its status changed" in capsys.readouterr().out
    assert build(tmp_path, "store", "--merge") == 0
    assert read == [text]


def test_digests_of_an_earlier_version_are_computed_once(text, tmp_path, monkeypatch) -> None:
    info = text.stat()
    record = {str(text): [info.st_size, info.st_mtime_ns, "0" * 64]}  # whatever it says
    (tmp_path / "digests.json").write_text(json.dumps(record))
    digests = FileDigests(tmp_path)
    assert digests.of(text).digest == hashed(text).digest
    digests.save()
    monkeypatch.setattr("bert_jax.data_pipeline.store_build.digests.hashed", None)
    assert FileDigests(tmp_path).of(text).version == version_of(text)


@pytest.mark.parametrize("broken", ["[]", "{", '{"a": 1}', '{"a": []}', '{"a": ["x", "y", "z"]}'])
def test_damaged_digests_are_none(broken, text, tmp_path) -> None:
    (tmp_path / "digests.json").write_text(broken)
    assert FileDigests(tmp_path).of(text).digest == hashed(text).digest


def test_a_file_that_grows_while_it_is_hashed_is_one_line(text, monkeypatch) -> None:
    digest = versions.hashlib.file_digest
    monkeypatch.setattr(
        versions.hashlib, "file_digest", lambda *given: lengthen(text) or digest(*given)
    )
    with pytest.raises(UserError, match=r"a\.txt: changed while it was in use"):
        hashed(text)


def test_a_description_of_a_dataset_is_watched_too(tmp_path, monkeypatch) -> None:
    """A prepared dataset's number of records in each file decides what is read."""
    pa = pytest.importorskip("pyarrow")
    saved = tmp_path / "saved"
    saved.mkdir()
    table = pa.table({"text": [f"some words {n}." for n in range(20)]})
    with pa.OSFile(f"{saved}/data.arrow", "wb") as file, pa.ipc.new_stream(file, table.schema) as w:
        w.write_table(table)
    state = saved / "state.json"
    state.write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    source = parse_source(f"arrow:{saved}")
    tokenizer = tmp_path / "tokenizer.json"
    TOKENIZER.save(tokenizer)
    digests = FileDigests(tmp_path / "nowhere")
    unit, *_ = units.plan_units([source], [find(source)], TOKENIZER, tmp_path, digests).units
    assert [file.path.name for file in unit.files] == ["data.arrow", "state.json"]
    working_folder.claim(tmp_path / "work")
    state.write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}], "a": 1}))
    with pytest.raises(UserError, match=r"state\.json: changed while it was in use"):
        shard.build_shard(unit, lambda count: None)


# Objects -----------------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    with emulated(monkeypatch, "bucket") as emulator:
        yield emulator


@pytest.mark.parametrize("new", [NEW, OLD])
def test_an_object_that_is_overwritten_in_the_middle_of_a_build(
    new, server, text, tmp_path, monkeypatch, capsys
) -> None:
    server.write("bucket", "text/a.txt", OLD.encode())
    reads = after(monkeypatch, 2, lambda: server.write("bucket", "text/a.txt", new.encode()))
    words = [
        "--source=lines:gs://bucket/text,lines=9", f"--tokenizer={tmp_path}/tokenizer.json",
        f"--out={tmp_path}/store", "--workers=1",
    ]  # fmt: skip
    code, said = cli.main(["data", "build", *words]), capsys.readouterr()
    if new == NEW:
        assert code == 1
        assert "error: gs://bucket/text/a.txt: changed while it was in use" in said.err
        assert len(reads) == 2
    else:
        assert code == 0
        assert "gs://bucket/text/a.txt: its status changed" in said.out


def test_an_object_that_is_overwritten_while_it_is_copied_is_not_kept(
    server, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    from bert_jax.storage import local_copy
    from bert_jax.storage.read_files import path_of

    server.write("bucket", "a.arrow", OLD.encode())
    path, opened = path_of("gs://bucket/a.arrow"), local_copy.open_bytes

    def opens(found: Path) -> io.BufferedReader:
        server.write("bucket", "a.arrow", NEW.encode())
        return opened(found)

    monkeypatch.setattr(local_copy, "open_bytes", opens)
    with pytest.raises(UserError, match=r"a\.arrow: changed while it was in use"):
        local_folder([path])
    monkeypatch.setattr(local_copy, "open_bytes", opened)
    assert (local_folder([path]) / "a.arrow").read_bytes() == NEW.encode()


# Files that are read once ------------------------------------------------------------------------


@pytest.mark.parametrize("change", [*CHANGES[:3], *HARMLESS])
def test_a_file_that_is_read_once(change, text) -> None:
    def read() -> bytes:
        with opened_once(text) as stream:
            start = stream.read(1)
            change(text)
            return start + stream.read()

    if change in HARMLESS:
        assert read().decode() == OLD
    else:
        with pytest.raises(UserError, match="changed while it was in use"):
            read()


def test_a_hashed_file_has_the_version_that_was_hashed(text) -> None:
    file = hashed(text)
    assert file.checked() is file
    chmod(text)
    again = file.checked()
    assert (again.digest, again.version) == (file.digest, version_of(text))
    assert dataclasses.replace(again, version=file.version) == file
