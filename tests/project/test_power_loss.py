"""What is written is there, or is made again, whenever the power goes."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from etils import epath
from power_loss import NAMES, Names, watched

from bert_jax.checkpoint import orbax_io
from bert_jax.data_pipeline.plan import column_files as plan_files
from bert_jax.data_pipeline.sources import parse_source
from bert_jax.data_pipeline.store import staging
from bert_jax.data_pipeline.store.manifest import fetch_manifest
from bert_jax.data_pipeline.store.store import open_store
from bert_jax.data_pipeline.store_build import units
from bert_jax.data_pipeline.store_build.build import build_store
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.storage import atomic, remote

LETTERS = "abcdefghijklmnopqrstuvwxyz"
ENTRIES = [*SPECIAL_TOKENS, ".", *LETTERS, *(f"##{c}" for c in LETTERS)]
TOKENIZER = Tokenizer.from_vocab(ENTRIES)


def files_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# The layer itself --------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    (folder / "a").write_text("old")
    return folder


def written_in_place(path: Path) -> None:
    path.write_text("new")


def renamed_only(path: Path) -> None:
    path.with_name("temporary").write_text("new")
    path.with_name("temporary").replace(path)


def synced_and_renamed(path: Path) -> None:
    path.with_name("temporary").write_text("new")
    atomic.sync(path.with_name("temporary"))
    path.with_name("temporary").replace(path)


def published(path: Path) -> None:
    atomic.write_text(path, "new")


@pytest.mark.parametrize(
    ("write", "names", "found"),
    [
        (written_in_place, "all", b"old"),  # its last sync; a real disk may have anything
        (renamed_only, "all", b""),
        (renamed_only, "synced", b"old"),
        (synced_and_renamed, "all", b"new"),
        (synced_and_renamed, "synced", b"old"),
        (published, "all", b"new"),
        (published, "synced", b"new"),
    ],
)
def test_what_is_not_synced_is_lost(
    disk: Path, write: Callable[[Path], None], names: Names, found: bytes
) -> None:
    with watched(disk) as power:
        write(disk / "a")
    power.lose(names)
    assert (disk / "a").read_bytes() == found


def test_new_files_and_folders_are_lost_too(disk: Path) -> None:
    with watched(disk) as power:
        (disk / "b").write_text("new")
        (disk / "made").mkdir()
        (disk / "made/c").write_text("new")
        atomic.sync(disk / "made/c")
    power.lose("all")
    assert files_of(disk) == {"a": b"old", "b": b"", "made/c": b"new"}
    power.lose("synced")
    assert files_of(disk) == {"a": b"old"}


def test_the_power_goes_before_a_given_event(disk: Path) -> None:
    for cut, found in enumerate((b"old", b"old", b"old", b"new")):
        (disk / "a").write_text("old")
        with watched(disk, cut_before=cut) as power:
            published(disk / "a")  # a sync, a rename, a sync of the folder
        power.lose("synced")
        assert (disk / "a").read_bytes() == found


# Files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("cut", range(4))
def test_a_tokenizer_is_the_old_or_the_new_one(disk: Path, names: Names, cut: int) -> None:
    other = Tokenizer.from_vocab([*ENTRIES, "another"])
    TOKENIZER.save(disk / "tokenizer.json")
    with watched(disk, cut_before=cut) as power:
        other.save(disk / "tokenizer.json", overwrite=True)
    power.lose(names)
    found = Tokenizer.load(disk / "tokenizer.json").digest
    assert found in (TOKENIZER.digest, other.digest)
    assert cut < 3 or found == other.digest


def test_without_the_sync_a_tokenizer_would_be_lost(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "sync", lambda path: None)
    with watched(disk) as power:
        TOKENIZER.save(disk / "tokenizer.json")
    power.lose("all")
    assert (disk / "tokenizer.json").read_bytes() == b""


@pytest.mark.parametrize("names", NAMES)
def test_a_plan_is_right_or_made_again(disk: Path, names: Names) -> None:
    columns, values = {"a": np.dtype(np.int64)}, np.arange(1000)
    folder = disk / "plan-0"
    for cut in range(10):
        with watched(disk, cut_before=cut) as power:
            plan_files.keep(folder, columns, lambda put: put("a", values))
        power.lose(names)
        found = plan_files.find(folder, columns)
        assert found is None or np.array_equal(found["a"], values)
        made = plan_files.keep(folder, columns, lambda put: put("a", values))
        assert np.array_equal(made["a"], values)
        shutil.rmtree(folder)


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("cut", range(4))
def test_a_runs_config_is_the_old_or_the_new_one(disk: Path, names: Names, cut: int) -> None:
    remote.put(disk / "config.json", b"old")
    with watched(disk, cut_before=cut) as power:
        remote.put(disk / "config.json", b"new")
    power.lose(names)
    found = (disk / "config.json").read_bytes()
    assert found == b"new" if cut == 3 else found in (b"old", b"new")


@pytest.mark.parametrize("names", NAMES)
def test_a_checkpoint_that_was_written_stays(disk: Path, names: Names) -> None:
    items = {"params": {"a": np.arange(1000, dtype=np.float32)}}
    folder = epath.Path(disk) / "3"
    with watched(disk) as power:
        orbax_io.write(folder, items, {"about": 3})
    power.lose(names)
    found = orbax_io.read_arrays(folder, items)
    assert np.array_equal(found["params"]["a"], items["params"]["a"])
    for cut in range(4):
        with watched(disk, cut_before=cut) as power:
            orbax_io.replace_meta(folder, {"about": cut + 4})
        power.lose(names)
        about = json.loads((folder / "meta/metadata").read_text())["about"]
        assert about in (3, cut + 4)
    assert about == 7


# A copy of a store in a bucket --------------------------------------------------------------------


@pytest.fixture
def bucket(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that `staging` reads as if it lay in a bucket."""
    made(text, tmp_path / "bucket")

    def read_range(url: str, start: int, length: int) -> bytes:
        name = url.removeprefix("gs://bucket/")
        return (tmp_path / "bucket" / name).read_bytes()[start : start + length]

    def fetch(url: str) -> tuple[bytes, dict]:
        return fetch_manifest(tmp_path / "bucket")

    monkeypatch.setattr(staging, "read_range", read_range)
    monkeypatch.setattr(staging, "fetch_manifest", fetch)
    return tmp_path / "bucket"


@pytest.mark.slow
@pytest.mark.parametrize("names", NAMES)
def test_a_staged_copy_is_complete_or_copied_again(
    bucket: Path, disk: Path, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERT_JAX_CACHE", str(disk))
    folder = disk / "stores" / open_store(bucket).manifest["digest"]
    for cut in (0, 5, 15, 16, 17, 18, 19, 20, 21, None):
        with watched(disk, cut_before=cut) as power:
            folder = staging.stage("gs://bucket")
        power.lose(names)
        if (folder / "manifest.json").exists():  # then nothing looks at the rest but `verify`
            open_store(folder)
        staging.stage("gs://bucket")
        assert files_of(folder) == files_of(bucket)
        shutil.rmtree(disk / "stores")


# The build ---------------------------------------------------------------------------------------


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files, a shard each."""
    monkeypatch.setattr(units, "_UNIT_BYTES", 1)
    (tmp_path / "text").mkdir()
    for name in "ab":
        documents = (f"doc {c}.\nmore {name}." for c in LETTERS[:6])
        (tmp_path / f"text/{name}.txt").write_text("\n\n".join(documents))
    return tmp_path / "text"


def made(text: Path, out: Path) -> None:
    source = parse_source(f"lines:{text}")
    build_store([source], TOKENIZER, out, workers=1, progress=False)


def events_of_a_build(text: Path, disk: Path) -> int:
    with watched(disk) as power:
        made(text, disk / "store")
    shutil.rmtree(disk / "store")
    return power.events


def check_build(text: Path, disk: Path, clean: dict[str, bytes], cut: int, names: Names) -> None:
    """A store that is there after the power went is complete, and the next build makes it."""
    with watched(disk, cut_before=cut) as power:
        made(text, disk / "store")
    power.lose(names)
    if os.path.lexists(disk / "store"):
        open_store(disk / "store")
    made(text, disk / "store")
    assert files_of(disk / "store") == clean, (cut, names)
    assert sorted(os.listdir(disk)) == ["a", "store"], (cut, names)
    shutil.rmtree(disk / "store")


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize(
    "every", [13, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_a_build_survives_the_loss_of_power(
    text: Path, disk: Path, tmp_path: Path, names: Names, every: int
) -> None:
    made(text, tmp_path / "clean")
    clean = files_of(tmp_path / "clean")
    events = events_of_a_build(text, disk)
    assert events > 30
    for cut in range(0, events + 1, every):
        check_build(text, disk, clean, cut, names)


def test_without_the_syncs_a_build_would_lose_its_store(
    text: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layer would have found what was wrong: a complete folder of empty files."""
    monkeypatch.setattr(atomic, "sync", lambda path: None)
    with watched(disk) as power:
        made(text, disk / "store")
    power.lose("all")
    assert set(files_of(disk / "store").values()) == {b""}
