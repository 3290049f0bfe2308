"""The faults in mutants.txt, how one is put into a file, and which tests should notice it first."""

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
LIST = TESTS / "mutants.txt"
_OWN = "test_mutants.py"  # says of a tree with a fault that the fault is not to be found in it
_NEVER = 1000  # imports


class MutantError(Exception):
    """The list cannot be read, or a fault of it cannot be put into its file."""


@dataclass(frozen=True)
class Fault:
    """Lines of a file, and what stands there instead."""

    name: str
    path: str
    kind: str
    old: tuple[str, ...]
    new: tuple[str, ...]
    why: str  # nobody could notice; empty: a test should

    @property
    def room(self) -> str:
        """The folder that the file lies in."""
        return str(Path(self.path).parent)

    @property
    def is_drawn(self) -> bool:
        return self.name.startswith("drawn")

    def put_into(self, text: str) -> str:
        """The text of the file with the fault.

        Raises:
            MutantError: its lines are not there, or more than once.
        """
        lines = text.splitlines()
        found = list(places(lines, self.old))
        if len(found) != 1:
            raise MutantError(
                f"{self.name}: its lines are in {self.path} {len(found)} times, not once; "
                f"give it the new ones in tests/{LIST.name}"
            )
        at, indent = found[0]
        lines[at : at + len(self.old)] = [indent + line if line else line for line in self.new]
        return "\n".join(lines) + "\n"


def places(lines: list[str], wanted: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Where lines stand, at any depth, and the spaces before them there."""
    for at, line in enumerate(lines):
        if not line.endswith(wanted[0]):
            continue
        indent = line.removesuffix(wanted[0])
        if not indent.strip() and lines[at : at + len(wanted)] == [
            indent + line if line else line for line in wanted
        ]:
            yield at, indent


def read(path: Path = LIST) -> list[Fault]:
    """All faults of a list.

    Raises:
        MutantError: it cannot be read.
    """
    faults: list[Fault] = []
    for entry in re.split(r"^@ ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        head, *lines = entry.splitlines()
        try:
            name, file, kind = head.split(" ", 2)
        except ValueError:
            raise MutantError(f"{path.name}: {head!r} is not a name, a file and a kind") from None
        by = {sign: tuple(line[1:] for line in lines if line[:1] == sign) for sign in "-+?"}
        if not by["-"] or any(line[:1] not in "-+?#" for line in lines):
            raise MutantError(f"{path.name}: {name} is not lines after -, + and ?")
        faults.append(Fault(name, file, kind, by["-"], by["+"], " ".join(by["?"]).strip()))
    twice = {fault.name for fault in faults if [f.name for f in faults].count(fault.name) > 1}
    if twice:
        raise MutantError(f"{path.name}: {min(twice)} is there twice")
    return faults


def ordered_tests(root: Path, path: str) -> tuple[list[str], list[str]]:
    """The test files of a room and the rest, those most likely to notice a fault first.

    A test belongs to the room of a file if it lies in the folder of tests that mirrors the room, or
    imports the file, itself or through a helper; where none does, those are taken that come
    nearest. Of a file that nothing imports, its package counts. In a room the tests in its folder
    come first, of these a test named after the file, then the one that imports least.
    """
    ranked = []
    for test in sorted((root / "tests").rglob("test_*.py")):
        if test.name != _OWN:
            direct = _imported_by_test(root, test)
            steps, other = _steps(root, direct, path), Path(path).stem not in test.stem
            elsewhere = test.parent.name not in Path(path).parts
            rank = (elsewhere, elsewhere * steps, other, steps, len(direct))
            ranked.append((rank, steps, str(test.relative_to(root))))
    ranked.sort()
    nearest = min(steps for _, steps, _ in ranked)
    package = str(Path(path).with_name("__init__.py"))
    if nearest == _NEVER and path != package:
        return ordered_tests(root, package)
    room = [name for rank, steps, name in ranked if not rank[0] or steps == nearest]
    return room, [name for _, _, name in ranked if name not in room]


def _steps(root: Path, direct: frozenset[str], path: str) -> int:
    """How many imports lead from a test to a file; _NEVER where none do."""
    seen, border, steps = set(direct), set(direct), 1
    while border:
        if path in border:
            return steps
        border = set().union(*(_imports(root, root / file) for file in border)) - seen
        seen |= border
        steps += 1
    return _NEVER


def _imported_by_test(root: Path, test: Path) -> frozenset[str]:
    """The product files that a test imports, itself or through helpers beside it."""
    files, border = {test}, [test]
    while border:
        helpers = {root / name for name in _imports(root, border.pop()) if name[:6] == "tests/"}
        border += helpers - files
        files |= helpers
    found = set().union(*(_imports(root, file) for file in files))
    return frozenset(name for name in found if name[:6] != "tests/")


@functools.cache
def _imports(root: Path, file: Path) -> frozenset[str]:
    """The files of the repository that a file imports, at its top or inside a function."""
    names: set[str] = set()
    package = ".".join(file.relative_to(root).parent.parts)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(filter(None, [package if node.level else "", node.module]))
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    found = set()
    for name in names:
        place = name.replace(".", "/")
        for there in (f"{place}.py", f"{place}/__init__.py", f"tests/support/{place}.py"):
            if (root / there).is_file():
                # Some packages lie beside bert_jax and are links in it.
                found.add(str((root / there).resolve().relative_to(root.resolve())))
    return frozenset(found)
