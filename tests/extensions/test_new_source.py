"""A new kind of source is one file of a user with one row, `users_modules.SUBTITLES`."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rows import without_users_rows
from users_modules import SUBTITLES, command, error, write

from bert_jax.data_pipeline.sources import guess_kind, parse_source
from bert_jax.data_pipeline.store_build import units
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.demo.pipeline import source_of
from bert_jax.errors import UserError
from bert_jax.extensions import modules
from bert_jax.storage.digest import file_digest

WORDS = ("river", "stone", "cloud", "green", "walks", "slowly", "house", "over", "under", "hill")
FILES = 24
# Each file is a shard, and takes a while.
SLOWLY = """
import time
from bert_jax.data_pipeline.store_build import units
units._UNIT_BYTES = 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "said").mkdir()
    for number in range(FILES):
        words = (WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(400))
        rows = enumerate(zip(*[words] * 8, strict=True), 1)
        shown = (f"{n}\n00:0{n % 9}:01,5 --> 00:09:00,0\n{' '.join(r)}.\n" for n, r in rows)
        (tmp_path / f"said/{number:02}.srt").write_text("\n".join(shown))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    Tokenizer.from_vocab([*special, ".", *WORDS], lowercase=False).save(tmp_path / "words.json")
    slow = SUBTITLES.replace("    yield", "    time.sleep(0.1)\n    yield")
    write(tmp_path, "toy.py", SLOWLY + slow)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(units, "_UNIT_BYTES", units._UNIT_BYTES)  # as before, afterwards
    return tmp_path


BUILD = ("data", "build", "--source=subtitles:said", "--tokenizer=words.json")


def contents(store: Path) -> dict[str, str]:
    files = (path for path in store.rglob("*") if path.is_file())
    return {path.relative_to(store).as_posix(): file_digest(path) for path in files}


def test_it_is_in_the_help_in_guesses_and_in_hints(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    code, said = command(capsys, "data", "build", "--module=toy.py", "--help")
    assert code == 0
    assert "python[,packages=NAME+NAME] (no path), subtitles; may be repeated" in said
    assert "subtitles" not in command(capsys, "data", "build", "--help")[1]
    assert guess_kind(folder / "said") == "books"
    with without_users_rows():
        modules.load("toy.py")
        assert guess_kind(folder / "said") == "subtitles"
        assert guess_kind(folder / "said/03.srt") == "subtitles"
        assert source_of("said").kind == "subtitles"
        with pytest.raises(UserError, match=r"'subtitle' is unknown; did you mean subtitles\?"):
            parse_source("subtitle:said")
        with pytest.raises(UserError, match="unknown option 'text'; valid: lang, name"):
            parse_source("subtitles:said,text=x")


def finished(folder: Path) -> int:
    """The number of shards that a build has finished."""
    summaries = (folder / ".store.building/shards").glob("*/summary.json")
    return sum(len(path.parent.name) == 64 for path in summaries)


@pytest.mark.slow
@pytest.mark.processes
def test_a_build_with_workers_is_killed_and_resumes_to_the_same_bytes(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    words = (*BUILD, "--module=toy.py")
    assert command(capsys, *words, "--workers=1", "--out=clean")[0] == 0
    killed = subprocess.Popen(
        [sys.executable, "-m", "bert_jax", *words, "--workers=2", "--out=store"],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    while not finished(folder):
        assert killed.poll() is None
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert 0 < finished(folder) < FILES

    line = error(capsys, *BUILD, "--out=store")
    assert "source kind 'subtitles' is unknown" in line
    known = f"--module=toy.py (sha256 {file_digest(folder / 'toy.py')[:12]}…)"
    assert line.endswith(f"store was built with {known}: add it")

    code, said = command(capsys, *words, "--workers=2", "--out=store")
    assert code == 0
    assert "resuming: " in said
    assert contents(folder / "store") == contents(folder / "clean")
    assert error(capsys, *BUILD, "--out=store").endswith(f"{known}: add it")


def test_a_changed_module_is_another_text(folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder, "toy.py", SUBTITLES)
    words = (*BUILD, "--module=toy.py", "--workers=1", "--out=store")
    assert command(capsys, *words)[0] == 0
    write(folder, "toy.py", SUBTITLES.replace("str.strip", "str.upper"))
    assert "--module=toy.py of source 'subtitles'; remove it" in error(capsys, *words)
    assert command(capsys, *words[:-1], "--out=other")[0] == 0
    assert contents(folder / "store") != contents(folder / "other")
