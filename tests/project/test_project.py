"""Rules that the whole source tree keeps."""

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from every_file import for_every

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bert_jax", "configs", "data_pipeline", "launch")
SOURCES = sorted(
    path for folder in (*PACKAGES, "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")
)
# From the lowest to the highest: a file imports from its own room and from those before it.
GROUND = (
    "bert_jax/exit_codes", "bert_jax/errors", "bert_jax/hardware", "bert_jax/storage",
    "bert_jax/extensions",
)  # fmt: skip
ROOMS = (
    *GROUND,
    "data_pipeline/settings", "data_pipeline/folders", "data_pipeline/random",
    "data_pipeline/tokenizer", "data_pipeline/store", "data_pipeline/text",
    "data_pipeline/sources", "data_pipeline/store_build", "data_pipeline/pairing",
    "data_pipeline/masking", "data_pipeline/plan", "data_pipeline", "data_pipeline/analysis",
    "data_pipeline/export",
    "launch", "launch/local", "launch/gke", "launch/sky", "launch/slurm", "launch/tpu",
    "launch/tpu/agent",
    "bert_jax/config", "configs", "configs/ablations", "bert_jax/runtime", "bert_jax/parallel",
    "bert_jax/distributed", "bert_jax/ops", "bert_jax/ops/attention", "bert_jax/model",
    "bert_jax/objectives", "bert_jax/metrics", "bert_jax/workdir", "bert_jax/checkpoint",
    "bert_jax/convert/tensorflow", "bert_jax/convert/layouts", "bert_jax/convert/folders",
    "bert_jax/convert", "bert_jax/optimizers", "bert_jax/training", "bert_jax/reporting",
    "bert_jax/publish",
    "bert_jax/aot/hlo", "bert_jax/aot/cost", "bert_jax/aot", "bert_jax/finetune/tasks",
    "bert_jax/finetune", "bert_jax/ablation", "bert_jax/api", "bert_jax/demo",
    "bert_jax/commands", "bert_jax/cli", "bert_jax",
)  # fmt: skip
# Rooms, with all that is in them, that know nothing of one another.
SIBLINGS = (
    ("data_pipeline", "launch"),
    ("launch/local", "launch/gke", "launch/sky", "launch/slurm", "launch/tpu"),
)
MODULES = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in PACKAGES]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def statements_of(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Every import of a file, at its top or inside a function."""
    nodes = ast.walk(tree_of(path))
    return tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


def imports_of(path: Path) -> Iterator[str]:
    """Every module a file imports; relative names resolved."""
    package = path.relative_to(ROOT).parent.parts
    for node in statements_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            above = package[: len(package) - node.level + 1] if node.level else ()
            yield ".".join((*above, *filter(None, [node.module])))


@for_every(SOURCES)
def test_a_file_has_at_most_500_lines_and_a_telling_name(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    assert lines <= 500, f"{name_of(path)} has {lines} lines; split it by what it does"
    if lines > 300 and path in MODULES:
        assert "\n# Over 300 lines: " in text, f"{name_of(path)}: say why it is not split"
    assert path.stem not in {"utils", "util", "helpers", "misc", "common"}, "name what it does"


def test_every_test_file_has_a_name_of_its_own() -> None:
    """pytest cannot collect two files of one name together, and a run of one folder hides it."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.processes
def test_files_of_the_repository_have_plain_names() -> None:
    """A slip in a shell leaves a file of any name, which `git add .` takes along."""
    words = ["git", "ls-files", "-z"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert [name for name in listed.split("\0") if not re.fullmatch(r"[\w./-]*", name)] == []


@for_every([path for path in SOURCES if path.relative_to(ROOT).parts[0] == "tests"])
def test_a_test_imports_tests_of_its_own_folder_alone(path: Path) -> None:
    """pytest finds others only after it has collected their folder; what is shared is support."""
    tests = [name for name in imports_of(path) if name.startswith("test_")]
    assert not [name for name in tests if not path.with_name(f"{name}.py").exists()]


def room_of(path: Path) -> str:
    name = str(path.relative_to(ROOT).with_suffix(""))
    return name if name in ROOMS else str(Path(name).parent)


def files_imported_by(path: Path) -> Iterator[Path]:
    """The product's files that a file imports; a package's names stand for the whole package."""
    for node in statements_of(path):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("bert_jax.")]
        elif (node.module or "").startswith("bert_jax"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            module = ROOT.joinpath(*name.split("."))
            places = (module, module.parent)  # of a module, or of a name in one
            files = (file for at in places for file in (at.with_suffix(".py"), at / "__init__.py"))
            yield next(file for file in files if file.exists()).resolve()


@for_every(MODULES)
def test_imports_lead_from_higher_rooms_to_lower(path: Path) -> None:
    rank = ROOMS.index(room_of(path))
    for imported in files_imported_by(path):
        other = ROOMS.index(room_of(imported))
        assert other <= rank, f"{name_of(path)} imports {name_of(imported)}, which is above it"


@for_every(MODULES)
def test_siblings_do_not_import_one_another(path: Path) -> None:
    for rooms in SIBLINGS:
        mine = [room for room in rooms if is_in(path, room)]
        others = [room for room in rooms if mine and room not in mine]
        for imported in files_imported_by(path):
            found = [room for room in others if is_in(imported, room)]
            assert not found, f"{name_of(path)} imports {name_of(imported)}; {mine[0]} is apart"


def is_in(path: Path, room: str) -> bool:
    """Whether a file is a room's, or is the room."""
    return f"{path.relative_to(ROOT).with_suffix('')}/".startswith(f"{room}/")


def test_no_files_import_one_another() -> None:
    left = {path: set(files_imported_by(path)) - {path} for path in MODULES}
    while free := [path for path, imported in left.items() if not imported & left.keys()]:
        for path in free:
            del left[path]
    assert not left, f"a circle of imports among {sorted(map(name_of, left))}"


@for_every(MODULES)
def test_docstrings_are_sentences(path: Path) -> None:
    """They say what a thing is or does, in a noun phrase or with a verb."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in (node for node in ast.walk(tree_of(path)) if isinstance(node, documented)):
        first = (ast.get_docstring(node) or "").partition(" ")[0]
        assert first not in ("What", "Of", "Where", "Whether", "How", "Which", "As"), (
            f"{name_of(path)}: a docstring begins with {first}"
        )


@for_every(MODULES)
def test_libraries_are_imported_where_they_may_be(path: Path) -> None:
    roots = {name.split(".")[0] for name in imports_of(path)}
    if path.relative_to(ROOT).parts[0] != "bert_jax" or room_of(path) in GROUND:
        assert not roots & {"jax", "flax", "optax"}, name_of(path)
    if name_of(path) != "bert_jax/checkpoint/orbax_io.py":
        assert "orbax" not in roots, f"{name_of(path)} imports orbax, which orbax_io.py wraps"


def test_the_top_of_bert_jax_has_at_most_six_modules() -> None:
    assert len(list((ROOT / "bert_jax").glob("*.py"))) <= 6


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


def test_every_supported_python_has_its_run_of_ci() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    job = workflow["jobs"]["run"]
    assert job["steps"][-1] == {"run": ".ci/run"}
    setup = (ROOT / "setup.py").read_text("utf-8")
    supported = re.findall(r'"Programming Language :: Python :: (.*)"', setup)
    assert job["strategy"]["matrix"]["python"] == supported


@pytest.mark.parametrize("lock", ["core", "dev", "docs", "torch", "peer", "tensorflow"])
def test_a_lock_is_exact_and_names_no_place(lock: str) -> None:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    requirements = [line for line in lines if line]
    assert all(line.count("==") == 1 for line in requirements), "every line is name==version"
    assert not [line for line in requirements if "/" in line or "+" in line or line[0] == "-"]


def test_the_larger_locks_hold_the_smaller() -> None:
    core, dev, docs, torch = (
        {
            line.split("#")[0].strip()
            for line in (ROOT / "requirements" / f"{lock}.txt").read_text("utf-8").splitlines()
        }
        for lock in ("core", "dev", "docs", "torch")
    )
    assert core < dev < torch
    assert core < docs < torch


@pytest.mark.processes
def test_the_command_line_starts_without_heavy_imports() -> None:
    """Every `--help` answers at once: what computes is imported by the command that needs it."""
    heavy = ["jax", "flax", "optax", "orbax", "numpy", "numba", "tokenizers", "matplotlib", "torch"]
    script = f"""
import sys
from bert_jax import cli
for name in ("", *cli.COMMANDS):
    assert cli.main([*name.split(), "--help"]) == 0
    assert not [found for found in {heavy!r} if found in sys.modules], name
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@for_every(MODULES)
def test_an_objective_is_named_in_its_own_file_alone(path: Path) -> None:
    """So that a new one is one new file: nothing compares names of objectives."""
    if not name_of(path).startswith(("bert_jax/objectives/", "data_pipeline/pairing/", "configs/")):
        texts = (
            node.value
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        assert not [text for text in texts if re.match(r"(mlm|nsp|sop|sbo)($|/)", text)]


@for_every(MODULES)
def test_a_function_has_at_most_60_lines(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= 60, f"{node.name} of {name_of(path)} has {lines} lines; split it"


# Words of our own that the field has other words for, and names that were given up.
RETIRED_WORDS = re.compile(
    r"\b(anew|nobody|whoever|dearest|so many|so often|(go|goes|went|going) on (from|with|at|by))\b",
    re.IGNORECASE,
)
RETIRED_NAMES = {
    "Program", "make_program", "make_batches", "Stretch", "Totals", "StepReport", "Pulse", "Stops",
    "Ending", "Watch", "Peers", "Guest", "Met", "Saved", "sealed", "patiently", "in_a_line",
    "saying", "is_away", "may_pass", "decayed", "unlatch", "Refused", "Tried", "Held", "Notes",
    "suits",
}  # fmt: skip


@for_every(MODULES)
def test_the_field_has_a_word_for_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = RETIRED_WORDS.search(text)
    assert not found, f"{name_of(path)} says {found[0]!r}"
    named = {
        node.name
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    assert not named & RETIRED_NAMES, name_of(path)


@pytest.mark.slow
@pytest.mark.processes
def test_tests_that_would_begin_too_late_are_skipped() -> None:
    """As `.ci/run` asks on a slow machine; the last lines say how many."""
    own = f"{__file__}::test_every_test_file_has_a_name_of_its_own"
    words = [sys.executable, "-m", "pytest", "--minutes=0", "-rs", own]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "SKIPPED [1] tests/conftest.py" in done.stdout
    assert "not begun within 0 minutes on this machine" in done.stdout
