"""Every kind of file that is read, damaged: one clear line, or the content that it has now.

A child process reads the damaged files of a kind, so that a signal ends it and not the tests; its
memory and its time have limits. By default a few damages of each kind, 200 in `make nightly`.
"""

import contextlib
import multiprocessing
import os
import random
import resource
import shutil
import sys
import traceback
from pathlib import Path

import fork_server
import pytest
from damage import damage
from file_kinds import KINDS

from bert_jax.errors import StorageError, UserError

FEW, MANY = 12, 200
LIMIT = 300  # seconds; only ever waited out by a broken reader
MOST_MEMORY = 3 << 29  # bytes, 1.5 GiB


def address_space() -> int:
    """Bytes of this process's address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def wrong(kind: str, folder: Path, whole: str) -> str:
    """What is wrong with the end of a reader; "" where nothing is."""
    try:
        found = KINDS[kind].read(folder)
    except (UserError, StorageError) as error:
        return f"several lines: {error}" if "\n" in str(error) else ""
    except BaseException:
        return traceback.format_exc()
    return "read as other content" if KINDS[kind].has_digest and found not in ("", whole) else ""


def read_damaged(kind: str, count: int, folder: Path) -> None:
    """What the child does; says in `log` what it is about to read, and what went wrong."""
    os.environ["BERT_JAX_CACHE"] = str(folder / "cache")
    original = folder / "whole"
    original.mkdir()
    KINDS[kind].write(original)
    whole = KINDS[kind].read(original)  # libraries are loaded now
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (address_space() + MOST_MEMORY, -1))
    files = sorted(path.relative_to(original) for path in original.rglob("*") if path.is_file())
    draw = random.Random(f"damaged {kind}")
    with (folder / "log").open("w", buffering=1) as log:
        for number in range(count):
            copy = folder / "copy"
            shutil.copytree(original, copy)
            done = damage([copy / file for file in files], draw)
            log.write(f"? {number}: {done}\n")
            if problem := wrong(kind, copy, whole):
                log.write(f"! {number}: {done}: {problem}\n")
            shutil.rmtree(copy)
        log.write("done\n")


def problems(kind: str, count: int, folder: Path) -> str:
    """What was wrong with a reader of damaged files."""
    process = multiprocessing.get_context("forkserver").Process(
        target=read_damaged, args=(kind, count, folder)
    )
    process.start()
    process.join(LIMIT)
    if process.exitcode is None:
        process.kill()
        process.join()
    file = folder / "log"
    log = file.read_text(errors="replace") if file.exists() else "the whole files were not read"
    if process.exitcode == 0 and log.endswith("done\n") and "\n! " not in log:
        return ""
    said = [line for line in log.splitlines() if not line.startswith("? ")]
    last = [line for line in log.splitlines() if line.startswith("? ")][-1:]
    return "\n".join([f"exit code {process.exitcode} after {last}", *said])


@pytest.fixture(autouse=True, scope="module")
def _preloaded() -> None:
    fork_server.preload("file_kinds")


def check(kind: str, count: int, folder: Path) -> None:
    if kind == "pytorch":
        pytest.importorskip("torch")
    found = problems(kind, count, folder)
    assert not found, found


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    check(kind, FEW, tmp_path)


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_files_are_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    check(kind, MANY, tmp_path)


if __name__ == "__main__":  # KIND FOLDER [COUNT]
    read_damaged(sys.argv[1], int((*sys.argv, "200")[3]), Path(sys.argv[2]))
    print((Path(sys.argv[2]) / "log").read_text())
