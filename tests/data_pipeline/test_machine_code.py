"""The cache of compiled loops: no file in it can crash a program or change its results."""

import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_jax.data_pipeline.random import numba_jit
from bert_jax.data_pipeline.random.numba_jit import compiled
from bert_jax.storage.digested_files import DigestedFiles, own_folder


def triple(x):
    return 3 * x


def use_files(files: Callable[[], DigestedFiles | None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses another cache in this thread only.

    A run of an earlier test may still be compiling its loops in a thread (`Batches.compile_ahead`);
    they would be one more file in the folder of a test here, or a line on its stderr.
    """
    thread, usual = threading.get_ident(), numba_jit._files()
    monkeypatch.setattr(
        numba_jit, "_files", lambda: files() if threading.get_ident() == thread else usual
    )


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The cache folder for machine code in a test."""
    made = own_folder(tmp_path / "numba", "version")
    files = DigestedFiles(made, pytest.fail)
    use_files(lambda: files, monkeypatch)
    return made


def hits(x: object = 2) -> int:
    """Whether a new start finds the code of `triple`, whose result is right in any case."""
    dispatcher = compiled(triple)
    assert dispatcher(x) == 3 * x
    return sum(dispatcher.stats.cache_hits.values())


def test_code_is_found_for_every_type_it_was_compiled_for(folder):
    assert [hits(2), hits(2.0), hits(2), hits(2.0)] == [0, 0, 1, 1]
    assert len(list(folder.iterdir())) == 2


def spoils() -> dict[str, Callable[[bytes], bytes]]:
    return {
        "empty": lambda data: b"",
        "cut": lambda data: data[: len(data) // 2],
        "flipped": lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
        "zeroed": lambda data: data[:2000] + bytes(1024) + data[3024:],
        "something else": lambda data: b"not ours",
    }


@pytest.mark.parametrize("spoil", spoils().values(), ids=spoils())
def test_damaged_code_is_compiled_again(spoil, folder):
    assert hits() == 0
    (file,) = folder.iterdir()
    file.write_bytes(spoil(file.read_bytes()))
    assert (hits(), hits()) == (0, 1)


def test_what_does_not_fit_behind_a_good_digest_is_compiled_again(folder):
    assert hits() == 0
    (file,) = folder.iterdir()
    numba_jit._files().put(file.stem, b"no pickle")
    assert (hits(), hits()) == (0, 1)


@pytest.fixture
def roots(tmp_path, monkeypatch) -> list[Path]:
    """The three candidate cache folders, all below `tmp_path`; none is chosen yet."""
    places = [tmp_path / "user", tmp_path / "package" / "__pycache__", tmp_path / "cache"]
    use_files(numba_jit._files.__wrapped__, monkeypatch)
    monkeypatch.setattr(numba_jit.numba.config, "CACHE_DIR", str(places[0]))
    monkeypatch.setattr(numba_jit, "_PACKAGE", places[1].parent)
    monkeypatch.setenv("BERT_JAX_CACHE", str(places[2]))
    return places


def test_the_first_usable_folder_is_this_users_alone(roots, capfd):
    assert numba_jit._files()
    (made,) = (roots[0] / "numba").iterdir()
    assert made.stat().st_mode & 0o777 == 0o700
    assert (roots[0] / "numba").stat().st_mode & 0o777 == 0o700
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_can_write_to_is_passed_over_with_a_line(mode, roots, capfd):
    numba_jit._files()
    (roots[0] / "numba").chmod(mode)
    files = numba_jit._files()
    assert files is not None
    assert files._path.parent == roots[1] / "numba"
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"warning: {roots[0] / 'numba'}: ")
    assert "mode 700" in line


def test_folders_of_another_user_are_not_used(roots, capfd, monkeypatch):
    numba_jit._files()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert numba_jit._files() is None
    *each, last = capfd.readouterr().err.splitlines()
    assert len(each) == len(roots)
    assert "every start compiles again" in last
    assert hits() == hits() == 0  # in memory


def test_without_a_writable_folder_code_is_compiled_in_memory(roots, capfd):
    for root in roots:
        root.parent.mkdir(exist_ok=True)
        root.write_text("not a folder")
    assert numba_jit._files() is None
    (line,) = capfd.readouterr().err.splitlines()
    assert all(str(root) in line for root in roots)


def test_code_depends_on_its_file_and_on_what_that_imports(tmp_path, monkeypatch):
    monkeypatch.setattr(numba_jit, "_TOP", tmp_path / "package")
    monkeypatch.setattr(numba_jit, "_PREFIX", "package")
    (tmp_path / "package" / "below").mkdir(parents=True)
    loops, draws, other = (
        tmp_path / "package" / name for name in ("loops.py", "below/draws.py", "other.py")
    )
    loops.write_text("from package.below import draws\nimport package.loops, os\n")

    def state(text: str, of: Path) -> bytes:
        of.write_text(text)
        numba_jit._read.cache_clear()
        return numba_jit._digest(loops)

    first = state("KEY = 1\n", draws)
    assert state("import package.loops\n", other) == first
    assert state("KEY = 2\n", draws) != first
    assert state("KEY = 1\n", draws) == first
    assert state(loops.read_text() + "X = 1\n", loops) != first
    numba_jit._read.cache_clear()


def test_code_depends_on_what_is_imported_from_beside_it(tmp_path, monkeypatch):
    """As a user's module with a helper: absolute and relative, not what is installed."""
    for name in ("helper", "within"):
        (tmp_path / f"{name}.py").write_text("LIMIT = 1\n")
    loops = tmp_path / "loops.py"
    loops.write_text("import numba\nfrom helper import LIMIT\nfrom . import within\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("helper")
    seen = set()
    for name in ("helper", "within"):
        for limit in (1, 7):
            (tmp_path / f"{name}.py").write_text(f"LIMIT = {limit}\n")
            numba_jit._read.cache_clear()
            seen.add(numba_jit._digest(loops))
    assert len(seen) == 3
    files = numba_jit._read(loops)[1]
    assert {path.name for path in files} == {"helper.py", "within.py"}
    numba_jit._read.cache_clear()
    del sys.modules["helper"]


def test_code_depends_on_what_is_imported_in_a_branch(tmp_path, monkeypatch):
    monkeypatch.setattr(numba_jit, "_TOP", tmp_path)
    (tmp_path / "helper.py").write_text("LIMIT = 1\n")
    loops = tmp_path / "loops.py"
    loops.write_text("try:\n  if True:\n    from . import helper\nexcept OSError: pass\n")
    numba_jit._read.cache_clear()
    assert [path.name for path in numba_jit._read(loops)[1]] == ["helper.py"]
    numba_jit._read.cache_clear()


MODULE = """
import json
from pathlib import Path
import numpy as np
from bert_jax.data_pipeline.random.numba_jit import compiled
import tables

def read():
    return json.loads(Path(__file__).with_name("values.json").read_text())

NUMBER, TABLE, NESTED = read()["number"], np.array(read()["table"]), (1, tuple(read()["tuple"]))

@compiled
def inner(k):
    return TABLE[k] + NESTED[1][0]

@compiled
def outer(k):
    return NUMBER * inner(k) + tables.LIMIT
"""
TABLES = """
import json
from pathlib import Path
LIMIT = json.loads(Path(__file__).with_name("values.json").read_text())["limit"]
"""


def test_code_depends_on_the_values_of_globals(folder, tmp_path, monkeypatch):
    """They may come from a file that the sources do not contain: a table of a user's masking."""
    (tmp_path / "values_loops.py").write_text(MODULE)
    (tmp_path / "tables.py").write_text(TABLES)
    monkeypatch.syspath_prepend(tmp_path)

    def run(**changed: object) -> tuple[int, int]:
        values = {"number": 10, "table": [1, 2], "tuple": [0], "limit": 0} | changed
        (tmp_path / "values.json").write_text(json.dumps(values))
        for name in ("tables", "values_loops"):
            sys.modules.pop(name, None)
        outer = importlib.import_module("values_loops").outer
        return outer(1), outer.stats.cache_hits.total()

    assert run() == (20, 0)
    assert run() == (20, 1)
    assert run(number=100) == (200, 0)
    assert run(table=[1, 3]) == (30, 0)
    assert run(tuple=[5]) == (70, 0)
    assert run(limit=7) == (27, 0)
    assert run() == (20, 1)
    for name in ("tables", "values_loops"):
        del sys.modules[name]


def test_closures_are_not_kept(folder):
    """Their behavior does not depend on their source alone."""
    for factor in (2, 3):

        def scaled(x):
            return x * factor  # noqa: B023

        assert compiled(scaled)(5) == 5 * factor


def quadruple(x):
    return 4 * x


def test_a_closure_over_compiled_functions_is_found_for_each_of_them(folder):
    """Also by a process that finds both, whose machine code must not have the same names."""

    def apply(inner, x):
        @compiled
        def applied(x):
            return inner(x) + 1

        return applied(x), sum(applied.stats.cache_hits.values())

    for expected in ([(7, 0), (9, 0)], [(7, 1), (9, 1)]):
        assert [apply(compiled(function), 2) for function in (triple, quadruple)] == expected


PROCESS = """
import sys
from bert_jax.data_pipeline.random.counter_rng import permute
import numpy as np
print(permute(np.uint64(7), np.arange(5), 5).tolist(), permute.stats.cache_hits.total())
"""


@pytest.mark.slow
@pytest.mark.processes
def test_processes_share_a_folder_and_survive_its_damage(tmp_path):
    """Two processes at once; a third with all files damaged; a fourth that finds all files."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def start() -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-c", PROCESS],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ends(process: subprocess.Popen) -> tuple[int, str, str]:
        out, err = process.communicate(timeout=120)
        return process.returncode, out.strip(), err

    racing = [ends(process) for process in (start(), start())]
    order = racing[0][1].rpartition(" ")[0]
    assert [(code, err) for code, _, err in racing] == [(0, ""), (0, "")]
    kept = [path for path in tmp_path.glob("numba/*/*") if path.is_file()]
    assert kept
    for number, path in enumerate(kept):
        data = path.read_bytes()
        path.write_bytes(list(spoils().values())[number % len(spoils())](data))
    assert ends(start()) == (0, f"{order} 0", "")
    assert ends(start()) == (0, f"{order} 1", "")


def test_without_a_home_folder_code_is_kept_elsewhere_or_in_memory(monkeypatch):
    for name in ("BERT_JAX_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", _no_home)
    assert numba_jit._PACKAGE / "__pycache__" in list(numba_jit._roots())


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")
