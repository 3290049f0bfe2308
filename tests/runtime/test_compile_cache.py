"""Tests of the compilation cache: programs are reused, and damaged files do no harm."""

import os
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from corpus import small_config, small_store
from processes import Job, assert_same_bits, deep_config

from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.runtime import compile_cache
from bert_jax.storage.digested_files import DigestedFiles

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"), documents=60)


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """Returns an empty cache for the processes of a test; JAX has no other configured."""
    for name in list(os.environ):
        if name.startswith(("JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    return tmp_path / "cache"


def started(config, workdir: Path, folder: Path, *, processes: int = 1, **options) -> list[Counter]:
    """Returns the number of times that each process of a successful run printed each line."""
    program = (str(SUPPORT / "compiling_process.py"),)
    with Job(config, workdir, folder, processes=processes, program=program, **options) as job:
        assert job.codes() == [0] * processes
        assert "arning" not in job.said()
        return [Counter(process.said().splitlines()) for process in job.processes]


def kept(cache: Path) -> list[Path]:
    return sorted((cache / "compiled").glob("*/*"))


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


# Runs


@pytest.mark.slow
@pytest.mark.processes
def test_a_second_start_compiles_nothing_and_gives_the_same_bits(store, cache, tmp_path):
    config = small_config(store)
    (first,) = started(config, tmp_path / "first", tmp_path, devices=1)
    assert first["asked"] == first["kept"] == len(kept(cache)) > 0
    (second,) = started(config, tmp_path / "second", tmp_path, devices=1)
    assert second["asked"] == second["found"] == first["asked"]
    assert second["kept"] == second["numba"] == 0
    assert_same_bits(tmp_path / "first", tmp_path / "second")


@pytest.mark.nightly
@pytest.mark.processes
def test_two_processes_find_theirs_and_damage_is_compiled_again(store, cache, tmp_path):
    config = deep_config(store, steps=4)
    first = started(config, tmp_path / "first", tmp_path, processes=2, devices=2)
    assert [said["kept"] for said in first] == [said["asked"] for said in first]
    second = started(config, tmp_path / "second", tmp_path, processes=2, devices=2)
    assert [said["found"] for said in second] == [said["asked"] for said in second]
    assert min(said["found"] for said in second) > 0
    assert_same_bits(tmp_path / "first", tmp_path / "second")
    # Damage of every kind: programs are compiled again, and then kept again.
    for number, path in enumerate(kept(cache)):
        if number % 2:
            flip(path, path.stat().st_size * number // len(kept(cache)))
        else:
            path.write_bytes(path.read_bytes()[: 40 * number])
    third = started(config, tmp_path / "damaged", tmp_path, processes=2, devices=2)
    assert [said["kept"] for said in third] == [said["kept"] for said in first]
    assert_same_bits(tmp_path / "first", tmp_path / "damaged")
    off = {"JAX_ENABLE_COMPILATION_CACHE": "0"}
    third = started(config, tmp_path / "third", tmp_path, processes=2, devices=2, env=off)
    assert third[0]["asked"] == 0
    assert_same_bits(tmp_path / "first", tmp_path / "third")


SMALL = """
import os, sys
from bert_jax.runtime import compile_cache, log
log.configure_logging()
compile_cache.use()
import jax
folder = jax.config.jax_compilation_cache_dir
print("folder", folder)
sys.stdout.flush()
if "full" in sys.argv:
    def fail(*_):
        raise OSError(28, "full")
    compile_cache.DigestedFiles._make_room = fail
from jax import monitoring
found = []
monitoring.register_event_listener(lambda event, **_: found.append(event.endswith("cache_hits")))
for k in range(3):
    assert float(jax.jit(lambda x: x * 2 + k)(1.0)) == 2 + k
print("found", sum(found))
"""


def small(cache: Path, *words: str, **env: str) -> tuple[str, str]:
    """Runs three programs in a process; returns (JAX's cache folder, all other output)."""
    done = subprocess.run(
        [sys.executable, "-c", SMALL, *words],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = (done.stdout + done.stderr).splitlines()
    (found,) = [int(line.split()[1]) for line in lines if line.startswith("found ")]
    assert (found >= 3) == ("all found" in words), done.stdout
    (folder,) = [line.split()[1] for line in lines if line.startswith("folder ")]
    return folder, "\n".join(line for line in lines if not line.startswith(("folder ", "found ")))


@pytest.mark.processes
def test_a_damaged_program_is_compiled_and_kept_again(cache):
    small(cache)
    small(cache, "all found")
    whole = {path: path.read_bytes() for path in kept(cache)}
    for path in whole:
        flip(path, path.stat().st_size // 2)
    assert small(cache)[1] == ""  # what it computes is checked there
    assert {path: len(path.read_bytes()) for path in kept(cache)} == {
        path: len(content) for path, content in whole.items()
    }
    assert all(DigestedFiles(path.parent, print).get(path.stem) for path in whole)


@pytest.mark.slow
@pytest.mark.processes
def test_a_cache_that_cannot_be_used_is_one_line(cache):
    folder, said = small(cache)
    assert Path(folder).parent == cache / "compiled"
    assert said == ""
    assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
    count = len(kept(cache))
    assert count >= 3
    # A disk that is full after the start.
    for path in kept(cache):
        path.unlink()
    _, said = small(cache, "full")
    assert said.count("\n") == 0
    assert "full" in said
    assert kept(cache) == []
    # Programs that others may have written are not run.
    small(cache)
    (cache / "compiled").chmod(0o770)
    folder, said = small(cache)
    assert folder == "None"
    assert said.startswith("warning: ")
    assert said.count("\n") == 0
    assert "mode 700" in said
    # Something in the way.
    other = cache / "other"
    other.mkdir()
    (other / "compiled").write_text("")
    folder, said = small(cache, BERT_JAX_CACHE=str(other))
    assert folder == "None"
    assert said.count("\n") == 0
    assert "not cached" in said


@pytest.mark.slow
@pytest.mark.processes
def test_what_the_user_has_told_jax_wins(cache, tmp_path):
    folder, said = small(cache, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "theirs"))
    assert (folder, said) == (str(tmp_path / "theirs"), "")
    folder, said = small(cache, JAX_ENABLE_COMPILATION_CACHE="false")
    assert (folder, said) == ("None", "")
    assert not cache.exists()


def test_programs_for_other_threads_or_processors_are_others(monkeypatch):
    """JAX's key has neither; XLA for CPUs splits sums by the number of threads."""
    monkeypatch.setenv("PJRT_NPROC", "16")
    here = compile_cache._processor()
    assert here == compile_cache._processor()
    monkeypatch.setenv("PJRT_NPROC", "17")
    assert here != compile_cache._processor()
    monkeypatch.setenv("PJRT_NPROC", "16")
    text = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path: text(path).replace(" sse2", " sse2 new"))
    assert here != compile_cache._processor()
