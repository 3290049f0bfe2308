"""Leftovers of an interrupted build are verified before reuse; foreign files are not touched."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from full_disk import fill_disk

from bert_jax import cli
from bert_jax.data_pipeline.sources import parse_source
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.store_build import build, units, working_folder
from bert_jax.data_pipeline.store_build.build import build_store
from bert_jax.data_pipeline.store_build.shard_files import Unit
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.errors import UserError

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, ".", *LETTERS, *(f"##{c}" for c in LETTERS)])
FILES = 3


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of six documents; one shard per file."""
    monkeypatch.setattr(units, "_UNIT_BYTES", 1)
    folder = tmp_path / "text"
    folder.mkdir()
    for file in range(FILES):
        documents = (f"doc {LETTERS[file * 6 + i]}.\nmore {LETTERS[i]}." for i in range(6))
        (folder / f"{file}.txt").write_text("\n\n".join(documents))
    return folder


def made(text: Path, out: Path) -> TokenStore:
    return build_store([parse_source(f"lines:{text}")], TOKENIZER, out, workers=1, progress=False)


def bytes_of(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def interrupted(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a build that was stopped before its last shard."""
    shard, calls = build.build_shard, []

    def stopped(unit: Unit, report: Callable[[int], None]) -> None:
        calls.append(unit)
        if len(calls) == FILES:
            raise KeyboardInterrupt
        shard(unit, report)

    with monkeypatch.context() as patched:
        patched.setattr(build, "build_shard", stopped)
        with pytest.raises(KeyboardInterrupt):
            made(text, tmp_path / "store")
    assert len(list((tmp_path / ".store.building/shards").iterdir())) == FILES - 1
    return tmp_path / ".store.building"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def recount(summary: Path) -> None:
    """Changes the number of dropped documents, which no array records."""
    values = json.loads(summary.read_text())
    summary.write_text(json.dumps({**values, "dropped_documents": 7}))


def nest(summary: Path) -> None:
    summary.write_text("[" * 100_000)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


ARRAYS = ("tokens", "sentences", "documents", "hashes")
DAMAGES = [
    *((name, damage) for name in ARRAYS for damage in (flip, zero, cut, empty, Path.unlink)),
    *(("summary.json", damage) for damage in (flip, zero, cut, empty, Path.unlink, recount, nest)),
    ("tokens", make_folder),
    ("summary.json", make_folder),
]


@pytest.mark.parametrize(
    ("name", "damage"), DAMAGES, ids=[f"{name}-{damage.__name__}" for name, damage in DAMAGES]
)
def test_a_damaged_leftover_shard_is_built_again(
    text: Path,
    interrupted: Path,
    tmp_path: Path,
    name: str,
    damage: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    shard = sorted((interrupted / "shards").iterdir())[0]
    damage(shard / name)
    made(text, tmp_path / "store")
    line, *_ = capsys.readouterr().err.splitlines()  # the rest is about the text
    assert str(shard) in line
    assert "built again" in line
    made(text, tmp_path / "clean")
    assert bytes_of(tmp_path / "store") == bytes_of(tmp_path / "clean")


def test_a_shard_of_other_text_under_this_name_is_built_again(
    text: Path, interrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = sorted((interrupted / "shards").iterdir())
    shutil.rmtree(one)
    shutil.copytree(other, one)
    made(text, tmp_path / "store")
    assert "built from other text" in capsys.readouterr().err
    made(text, tmp_path / "clean")
    assert bytes_of(tmp_path / "store") == bytes_of(tmp_path / "clean")


def test_sound_shards_are_used_whatever_the_clock_says(
    text: Path, interrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    shard = build.build_shard

    def counted(unit: Unit, report: Callable[[int], None]) -> None:
        built.append(unit.ranges[0].path.name)
        shard(unit, report)

    monkeypatch.setattr(build, "build_shard", counted)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    for number, path in enumerate([*interrupted.rglob("*"), *text.iterdir()]):
        moment = 4e9 if number % 2 else 1.0  # the year 2096, and 1970
        os.utime(path, (moment, moment))
    made(text, tmp_path / "store")
    assert built == [f"{FILES - 1}.txt"]
    assert not interrupted.exists()


# Foreign files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_working_folder_of_others_is_refused_untouched(
    text: Path, tmp_path: Path, kind: str
) -> None:
    work, theirs = tmp_path / ".store.building", tmp_path / "theirs"
    for folder in ("store", "shards/a.part"):
        (theirs / folder).mkdir(parents=True)
        (theirs / folder / "thesis.tex").write_text("years of work")
    if kind == "folder":
        theirs.rename(work)
    elif kind == "link":
        work.symlink_to(theirs)
    else:
        work.write_text("a file")
    before = bytes_of(tmp_path)
    with pytest.raises(UserError, match=r"\.store\.building: .* was not created by bert-jax"):
        made(text, tmp_path / "store")
    assert bytes_of(tmp_path) == before


def put_folder(out: Path) -> None:
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")


def put_link_to_nothing(out: Path) -> None:
    out.symlink_to("nowhere")


def put_file(out: Path) -> None:
    out.write_text("a file")


@pytest.mark.parametrize("put", [put_folder, put_link_to_nothing, put_file])
def test_an_out_of_others_is_refused_untouched(
    text: Path, tmp_path: Path, put: Callable[[Path], None]
) -> None:
    put(tmp_path / "store")
    before, names = bytes_of(tmp_path), sorted(os.listdir(tmp_path))
    with pytest.raises(UserError, match=r"(exists and is not a|a file, but a) token store"):
        made(text, tmp_path / "store")
    assert bytes_of(tmp_path) == before
    assert sorted(os.listdir(tmp_path)) == names


def test_empty_folders_are_free(text: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / ".store.building").mkdir()
    made(text, tmp_path / "store")
    assert sorted(os.listdir(tmp_path)) == ["store", "text"]


def test_a_working_folder_left_beside_a_finished_store_goes(text: Path, tmp_path: Path) -> None:
    made(text, tmp_path / "store")
    working_folder.claim(tmp_path / ".store.building")
    made(text, tmp_path / "store")
    assert sorted(os.listdir(tmp_path)) == ["store", "text"]


# Full disks --------------------------------------------------------------------------------------


def command(text: Path, tmp_path: Path) -> int:
    TOKENIZER.save(tmp_path / "tokenizer.json")
    words = [f"--source=lines:{text}", f"--tokenizer={tmp_path}/tokenizer.json", "--workers=1"]
    return cli.main(["data", "build", *words, f"--out={tmp_path}/store"])


@pytest.mark.parametrize(
    ("place", "after"),
    [("write", n) for n in (0, 3, 9, 30)] + [("fsync", n) for n in (0, 5, 30)] + [("rename", 0)],
)
def test_a_full_disk_is_one_line_and_the_build_resumes(
    text: Path,
    tmp_path: Path,
    place: Literal["write", "fsync", "rename"],
    after: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        failures = fill_disk(patched, tmp_path / ".store.building", place, after)
        code = command(text, tmp_path)
    assert failures
    assert code == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert "No space left on device" in line
    assert "run the same command again" in line
    assert not (tmp_path / "store").exists()
    assert not list((tmp_path / ".store.building").glob("shards/*.part"))
    assert command(text, tmp_path) == 0
    made(text, tmp_path / "clean")
    assert bytes_of(tmp_path / "store") == bytes_of(tmp_path / "clean")


@pytest.mark.parametrize("place", ["write", "fsync", "rename"])
def test_a_tokenizer_on_a_full_disk_leaves_the_old_file(
    text: Path,
    tmp_path: Path,
    place: Literal["write", "fsync", "rename"],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "vocabulary"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(TOKENIZER.json)
    out = folder / "tokenizer.json"
    fill_disk(monkeypatch, folder, place)
    words = [f"--source=lines:{text}", "--vocab_size=100", f"--out={out}", "--overwrite"]
    assert cli.main(["data", "tokenizer", *words]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert f"{out}: cannot be written (No space left on device)" in line
    assert out.read_bytes() == TOKENIZER.json
    assert os.listdir(folder) == ["tokenizer.json"]


def test_a_tokenizer_is_trained_with_no_room_for_temporary_files(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    words = [f"--source=lines:{text}", "--vocab_size=100", f"--out={tmp_path}/tokenizer.json"]
    assert cli.main(["data", "tokenizer", *words]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert "No space left on device" in line
    assert "TMPDIR" in line


LIMITED = """
import resource, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
from bert_jax import cli
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.processes
def test_a_build_that_the_system_refuses_to_write_resumes(text: Path, tmp_path: Path) -> None:
    """Runs with a file size limit in a separate process, for the operating system's own errors."""
    (text / "9.txt").write_text("\n\n".join(f"doc {c} {d}." for c in LETTERS for d in LETTERS))
    TOKENIZER.save(tmp_path / "tokenizer.json")
    words = [f"--source=lines:{text}", f"--tokenizer={tmp_path}/tokenizer.json", "--workers=2"]
    command = ["data", "build", *words, f"--out={tmp_path}/store"]
    ended = []
    for limit in (0, 300, 2_000, 5_000, 20_000, 10_000_000):
        done = subprocess.run(
            [sys.executable, "-c", LIMITED, str(limit), *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            # Else Python keeps the cut-off bytecode of modules, and no later process starts.
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        ended.append(done.returncode)
        assert "Traceback" not in done.stderr, (limit, done.stderr)
        if done.returncode:
            assert "File too large" in done.stderr.splitlines()[-1], (limit, done.stderr)
    assert ended[-1] == 0
    assert set(ended[:3]) == {1}
    made(text, tmp_path / "clean")
    assert bytes_of(tmp_path / "store/train") == bytes_of(tmp_path / "clean/train")
