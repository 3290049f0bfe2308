"""A disk that is full, a real one: every command that writes ends with one line and loses nothing.

Each command has its output on a small tmpfs of which only so much is free. Where nothing may be
mounted these are skipped; limits of the size of files, which need no mount, are in the tests of
each command.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest
from corpus import small_store
from processes import Job, deep_config

from bert_jax.cli import main
from bert_jax.exit_codes import DONE, FAILED, STORAGE

pytestmark = pytest.mark.slow

SIZE = 24 << 20
FREE = (0, 64 << 10)  # bytes
RUN = (
    "--config=tiny", "--config.model.vocab_size=100",
    "--config.model.pad_vocab_to_multiple_of=4", "--config.phases[0].batch_size=8",
    "--config.phases[0].steps=4", "--config.checkpoint.every_steps=2",
    "--config.checkpoint.write_attempts=1", "--config.evaluation.batches=1",
)  # fmt: skip


class SmallDisk:
    """A tmpfs; `leave` fills it up to so many bytes."""

    def __init__(self, folder: Path):
        self.folder, self._filler = folder, folder / "filler"

    def leave(self, free: int) -> None:
        self._filler.unlink(missing_ok=True)
        room = os.statvfs(self.folder)
        with self._filler.open("wb") as file:
            file.truncate(0)
            os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_bsize - free)

    def empty(self) -> None:
        self._filler.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def disk(tmp_path_factory) -> Iterator[SmallDisk]:
    folder = tmp_path_factory.mktemp("disk")
    words = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no `mount` here")
    if done.returncode:
        pytest.skip(f"no disk can be mounted here ({done.stderr.strip()})")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def command(capsys) -> Callable[..., tuple[int, str]]:
    """Runs a command: exit code and standard error."""
    jax.devices()  # as in a program that has used it: `pretrain` starts it as a job only once

    def run(*words: str) -> tuple[int, str]:
        code = main(list(words))
        return code, capsys.readouterr().err

    return run


@pytest.fixture
def inputs(tmp_path, command) -> Path:
    """Text to build from, a store, and a run that is finished."""
    lines = (f"the number {i} is one of many numbers, {i * i} is another." for i in range(4000))
    (tmp_path / "text.txt").write_text("\n".join(lines))
    small_store(tmp_path / "store", documents=60)
    tokenizer, run = f"--out={tmp_path}/tokenizer.json", f"--workdir={tmp_path}/run"
    source = f"--source=lines:{tmp_path}/text.txt"
    code, said = command("data", "tokenizer", source, "--vocab_size=300", tokenizer)
    assert code == DONE, said
    code, said = command("pretrain", *RUN, f"--config.data.store={tmp_path}/store", run)
    assert code == DONE, said
    return tmp_path


COMMANDS = {
    "data tokenizer": (
        "--source=lines:{inputs}/text.txt", "--vocab_size=300", "--out={out}", "--overwrite",
    ),
    "data build": (
        "--source=lines:{inputs}/text.txt", "--tokenizer={inputs}/tokenizer.json", "--out={out}",
        "--workers=1",
    ),
    "pretrain": (*RUN, "--config.data.store={inputs}/store", "--workdir={out}"),
    "convert export": ("--workdir={inputs}/run", "--out={out}"),
}  # fmt: skip


def content(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def test_a_full_disk_is_one_line_and_the_same_command_works_when_there_is_room(
    disk, inputs, command
):
    for name, pattern in COMMANDS.items():
        out = disk.folder / name.replace(" ", "_")
        words = [*name.split(), *(word.format(inputs=inputs, out=out) for word in pattern)]

        def fails(free: int, words: list[str] = words) -> bool:
            disk.leave(free)
            code, said = command(*words)
            errors = [line for line in said.splitlines() if line.startswith("error: ")]
            assert len(errors) == (code != DONE), (words, free, said)
            assert code in (DONE, FAILED, STORAGE), (words, free, code)
            assert not errors or "No space left" in errors[0], (words, free, said)
            assert "Traceback" not in said, (words, free)
            return code != DONE

        ended = [fails(free) for free in FREE]
        assert ended[0], name
        disk.empty()
        code, said = command(*words)
        assert code == DONE, (words, said)
        if name in ("data tokenizer", "convert export"):  # these replace what is there
            made = content(out)
            assert fails(0), name
            assert content(out) == made, name
    disk.empty()


@pytest.mark.processes
def test_a_job_with_a_host_whose_disk_is_full_ends_before_its_first_step(disk, tmp_path):
    """On any backend: each process looks, and the line names the host."""
    disk.empty()
    config = deep_config(small_store(tmp_path / "store"))
    env_of = {1: {"BERT_JAX_CACHE": str(disk.folder)}}
    with Job(config, tmp_path / "run", tmp_path, processes=2, env_of=env_of) as job:
        assert job.codes() == [FAILED, FAILED]
        assert f"host-1 (process 1): {disk.folder}: 0.0 GB free, 1.1 needed" in job.said()
