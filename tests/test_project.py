"""Rules that the whole source tree keeps."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("bert_jax", "configs", "data_pipeline", "launch")
SOURCES = sorted(
    path for folder in (*PACKAGES, "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")
)
MODULES = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in PACKAGES]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports_of(path: Path) -> Iterator[str]:
    """Every module a file imports, at its top or inside a function; relative names resolved."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            yield ".".join((*above, *filter(None, [node.module])))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_file_has_at_most_500_lines_and_a_telling_name(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 500, f"{name_of(path)} has {lines} lines; split it by what it does"
    assert path.stem not in {"utils", "util", "helpers", "misc", "common"}, "name what it does"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_follow_the_layers(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    names = set(imports_of(path))
    roots = {name.split(".")[0] for name in names}
    if package != "bert_jax":
        ours = {name for name in names if name.split(".")[0] == "bert_jax"}
        assert all(f"{name}.".startswith(f"bert_jax.{package}.") for name in ours), sorted(ours)
        assert not roots & {"jax", "flax", "optax"}, name_of(path)
    if name_of(path) != "bert_jax/checkpoint/orbax_io.py":
        assert "orbax" not in roots, f"{name_of(path)} imports orbax, which orbax_io.py wraps"


def test_setup_lists_every_package() -> None:
    setup = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    (listed,) = (
        ast.literal_eval(node.value)
        for node in ast.walk(setup)
        if isinstance(node, ast.keyword) and node.arg == "packages"
    )
    on_disk = {
        ".".join(path.relative_to(ROOT).parent.parts).removeprefix("bert_jax.") for path in MODULES
    }
    on_disk = {name if name == "bert_jax" else f"bert_jax.{name}" for name in on_disk}
    assert set(listed) == on_disk
    assert listed == sorted(listed)


@pytest.mark.parametrize("lock", ["core", "dev", "torch", "peer"])
def test_a_lock_is_exact_and_names_no_place(lock: str) -> None:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    requirements = [line for line in lines if line]
    assert all(line.count("==") == 1 for line in requirements), "every line is name==version"
    assert not [line for line in requirements if "/" in line or "+" in line or line[0] == "-"]


def test_the_larger_locks_hold_the_smaller() -> None:
    core, dev, torch = (
        {
            line.split("#")[0].strip()
            for line in (ROOT / "requirements" / f"{lock}.txt").read_text("utf-8").splitlines()
        }
        for lock in ("core", "dev", "torch")
    )
    assert core < dev < torch


@pytest.mark.processes
def test_the_command_line_starts_without_heavy_imports() -> None:
    """`bert-jax --help` answers at once: what computes is imported by the command that needs it."""
    heavy = ["jax", "flax", "optax", "orbax", "numpy", "numba", "tokenizers", "matplotlib", "torch"]
    script = f"import sys, bert_jax.cli; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
