"""What happens to checkpoints: each fault, on a disk and in a bucket, and what becomes of the run.

A row of `DAMAGES`, `UNREADABLE` or `UNWRITABLE` is a fault; `where` names the places that have it.
"""

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_places import Bucket, Disk, Place, restored, save
from runs import all_steps, complete_steps, list_quarantined
from saving_process import STEPS, keeping

from bert_jax.checkpoint import orbax_io
from bert_jax.checkpoint.catalog import DamagedError
from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.errors import StorageError
from bert_jax.storage import retry
from bert_jax.workdir.layout import Workdir


@dataclasses.dataclass(frozen=True)
class Damage:
    """A fault of the checkpoint of step 12.

    said: of the reason. bad: the name of the damaged checkpoint. left: the step that is restored.
    slow: in a bucket.
    """

    do: Callable[[Any], object]
    said: str
    where: str = "disk"
    bad: str = "12"
    left: int = 7
    slow: bool = True


def one_bit(place: Place) -> None:
    """Flips one bit in the stored arrays of the parameters."""
    name = place.arrays("params")[-1]
    data = bytearray(place.read(name))
    data[len(data) // 2] ^= 1
    place.write(name, bytes(data))


def half(place: Place) -> None:
    name = place.arrays("opt")[-1]
    data = place.read(name)
    place.write(name, data[: len(data) // 2])


def emptied(place: Place) -> None:
    for name in place.arrays("opt"):
        place.write(name, b"")


def lost(item: str) -> Callable[[Place], None]:
    def lose(place: Place) -> None:
        for name in place.arrays(item):
            place.delete(name)

    return lose


def rewritten(**values: object) -> Callable[[Place], None]:
    def rewrite(place: Place) -> None:
        name = f"{NEWEST}/meta/metadata"
        place.write(name, json.dumps({**json.loads(place.read(name)), **values}).encode())

    return rewrite


def pipe(name: str) -> Callable[[Disk], None]:
    """Opening it for reading would block: it has no writer."""

    def make(place: Disk) -> None:
        file = place.path / NEWEST / name
        file.unlink()
        os.mkfifo(file)

    return make


def cut_folder(place: Disk, *, file: bool) -> None:
    shutil.rmtree(place.path / NEWEST)
    if file:
        (place.path / NEWEST).write_text("")
    else:
        (place.path / NEWEST).mkdir()


NEWEST = "checkpoints/12"
BOTH = "disk bucket"
DAMAGES = {
    "one bit": Damage(one_bit, "arrays", BOTH, slow=False),
    "truncated": Damage(half, "arrays"),
    "emptied": Damage(emptied, "arrays", BOTH),
    "missing data": Damage(lost("params"), "arrays", BOTH),
    "missing item": Damage(lambda disk: shutil.rmtree(disk.path / NEWEST / "opt"), "opt"),
    "empty folder": Damage(lambda disk: cut_folder(disk, file=False), "an empty folder"),
    "a file": Damage(lambda disk: cut_folder(disk, file=True), "not a folder"),
    "no marker": Damage(
        lambda place: place.delete(f"{NEWEST}/commit_success.txt"), "no commit_success.txt", BOTH,
        slow=False,
    ),
    "no meta": Damage(lambda place: place.delete(f"{NEWEST}/meta/metadata"), "no meta", BOTH),
    "not JSON": Damage(lambda place: place.write(f"{NEWEST}/meta/metadata", b"{"), "is not JSON"),
    "lacks all": Damage(
        lambda place: place.write(f"{NEWEST}/meta/metadata", b"{}"), "has no format_version"
    ),
    "format": Damage(
        rewritten(format_version=9), "it has format 9, this program reads format 3"
    ),
    "phase": Damage(rewritten(phase=1), "differs from what was written"),
    "a pipe": Damage(pipe("meta/metadata"), "meta/metadata in it is not a regular"),
    "a pipe of Orbax": Damage(pipe("params/_METADATA"), "is not a regular file"),
    "number": Damage(
        lambda disk: shutil.copytree(disk.path / NEWEST, disk.path / "checkpoints/13"),
        "it is of step 12", bad="13", left=12,
    ),
}  # fmt: skip


def cases(where: str, names: dict[str, bool]) -> Iterator[Any]:
    """The rows of a place; slow where True, and in a bucket only with its client."""
    for name, slow in names.items():
        marks = [pytest.mark.slow] * (slow and where == "bucket")
        yield pytest.param(where, name, marks=marks, id=f"{where}-{name}")


ROWS = [
    case
    for where in ("disk", "bucket")
    for case in cases(
        where, {name: row.slow for name, row in DAMAGES.items() if where in row.where.split()}
    )
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workdir with three checkpoints, on a disk."""
    workdir = tmp_path_factory.mktemp("saved")
    three_saves(str(workdir))
    return workdir


@pytest.fixture
def place(request: pytest.FixtureRequest, saved: Path, tmp_path: Path) -> Place:
    """A place with these checkpoints."""
    if request.param == "disk":
        return Disk(shutil.copytree(saved, tmp_path / "run"))
    bucket = Bucket(request.getfixturevalue("server"))
    three_saves(bucket.run)
    return bucket


def three_saves(run: str) -> None:
    checkpoints = RunCheckpoints(Workdir.open(run), keeping(9))
    for step in STEPS:
        save(checkpoints, step)
    checkpoints.close()


def quarantined(run: str) -> dict[str, str]:
    return {one.folder: one.reason for one in list_quarantined(run)}


@pytest.mark.parametrize(("place", "damage"), ROWS, indirect=["place"])
def test_what_is_damaged_is_named_and_moved_and_the_one_before_is_used(
    place: Place, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = DAMAGES[damage]
    row.do(place)
    run, before = place.run, place.names()
    said = rf"checkpoints/{row.bad}: damaged: .*{row.said}.*nothing was changed"
    with pytest.raises(StorageError, match=said):
        restored(run, strict=True)
    assert (quarantined(run), place.names()) == ({}, before)
    assert restored(run) == row.left
    assert row.said in quarantined(run)[row.bad]
    assert not any(name.startswith(f"checkpoints/{row.bad}/") for name in place.names())
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert line.startswith("warning: ")
    assert row.said in line
    assert line.endswith(f"moved to {run}/quarantine/{row.bad}")
    assert out == ""
    assert restored(run) == row.left  # and again, without a word
    assert capsys.readouterr() == ("", "")
    save(RunCheckpoints(Workdir.open(run), keeping(9)), int(row.bad))  # the name is free again


@pytest.mark.parametrize("place", ["disk", "bucket"], indirect=True)
def test_what_a_killed_process_left_is_removed_and_what_was_complete_stays(place: Place) -> None:
    place.delete(f"{NEWEST}/commit_success.txt")
    for step in (7, 12):
        place.write(f"checkpoints/{step}.unfinished", b"")
    RunCheckpoints(Workdir.open(place.run), keeping(9))
    assert all_steps(place.run) == complete_steps(place.run) == [3, 7]
    assert not any("unfinished" in name for name in place.names())


@contextlib.contextmanager
def denied_reads(place: Disk, error: Exception) -> Iterator[None]:
    def fail(*arguments: object) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orbax_io, "read_arrays", fail)
        yield


@contextlib.contextmanager
def refused(place: Bucket, names: str, status: int) -> Iterator[None]:
    faults = place.server.faults
    faults.fail_names, faults.fail_status, faults.fail_every = names, status, 1
    yield
    faults.fail_every = 0


PERMISSION = PermissionError(13, "Permission denied")
UNAVAILABLE = ValueError("UNAVAILABLE: try again")
# The fault, and attempts to read in spite of it.
UNREADABLE: dict[str, dict[str, tuple[Callable[[Any], Any], int | None]]] = {
    "disk": {
        "permission": (lambda disk: denied_reads(disk, PERMISSION), None),
        "unavailable": (lambda disk: denied_reads(disk, UNAVAILABLE), None),
    },
    "bucket": {
        f"{name}-{status}": (
            lambda bucket, name=name, status=status: refused(bucket, name, status),
            3 if status == 507 else 0,
        )
        for name in ("12/params", "12/opt/manifest.ocdbt", "12/meta/metadata")
        for status in (403, 507)
    },
}
_FAST = {"12/params-403", "12/meta/metadata-507"}


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        case
        for where, rows in UNREADABLE.items()
        for case in cases(where, {name: name not in _FAST for name in rows})
    ],
    indirect=["place"],
)
def test_a_storage_that_cannot_be_read_damages_nothing(
    place: Place,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(retry, "sleep", lambda seconds: None)
    unreadable, attempts = UNREADABLE[place.where][fault]
    before = place.names()
    said = r"12: cannot be read \(.*nothing was changed"
    with unreadable(place), pytest.raises(StorageError, match=said) as caught:
        restored(place.run)
    assert not isinstance(caught.value, DamagedError)
    assert "\n" not in str(caught.value)
    lines = capsys.readouterr().err.splitlines()
    assert attempts is None or len(lines) == attempts
    assert all("attempt" in line for line in lines)
    assert (place.names(), quarantined(place.run)) == (before, {})
    assert restored(place.run) == 12


@contextlib.contextmanager
def file_for_folder(place: Disk) -> Iterator[None]:
    folder, away = place.path / "checkpoints", place.path / "away"
    folder.rename(away)
    folder.write_text("")
    yield
    folder.unlink()
    away.rename(folder)


@contextlib.contextmanager
def refused_writes(place: Bucket, status: int) -> Iterator[None]:
    place.server.faults.refuse_writes = status
    yield
    place.server.faults.refuse_writes = 0


UNWRITABLE: dict[str, dict[str, Callable[[Any], Any]]] = {
    "disk": {"a file": file_for_folder},
    "bucket": {
        "403": lambda bucket: refused_writes(bucket, 403),
        "507": lambda bucket: refused_writes(bucket, 507),
    },
}


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        case
        for where, rows in UNWRITABLE.items()
        for case in cases(where, dict.fromkeys(rows, False))
    ],
    indirect=["place"],
)
def test_what_cannot_be_written_ends_the_run_and_loses_nothing(
    place: Place,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(retry, "sleep", lambda seconds: None)
    told: list[tuple[Any, ...]] = []
    checkpoints = RunCheckpoints(
        Workdir.open(place.run),
        keeping(9, attempts=3),
        record_event=lambda *event: told.append(event),
    )
    said = r"20: cannot be written after 3 .*checkpoint is step 12"
    with UNWRITABLE[place.where][fault](place):
        with pytest.raises(StorageError, match=said):
            save(checkpoints, 20)
        checkpoints.close()  # it has been said once
    ((kind, step, details),) = told
    assert (kind, step) == ("save_failed", 20)
    assert details["reason"]
    assert capsys.readouterr().err.count("warning: ") == 2
    assert restored(place.run) == 12
    save(RunCheckpoints(Workdir.open(place.run), keeping(9)), 20)
    assert restored(place.run) == 20
