"""Draws faults: small changes of syntax on lines of the product, chosen by a seed.

A line is drawn uniformly from all lines of all product files, then a kind of change, then one of
the changes of this kind that begin on it; a line without any is drawn again. The kinds: a
comparison's border or direction, + and -, an integer one more or one less, `and` and `or`, an
argument left out, a statement left out. The rule rejects what is equivalent by construction:
docstrings, annotations, decorators, imports and `if TYPE_CHECKING`; f-strings, what is printed or
logged, the text of an error, `__repr__` and `__str__`; `del` of a name. And what no test could
miss: an assignment to a name is not left out, since whatever reads the name would stop, nor is an
argument by position.
"""

import ast
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mutant_list import places

PACKAGES = ("bert_jax", "configs", "data_pipeline", "launch")
_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
}  # fmt: skip
_SIGNS: dict[type[ast.operator], tuple[str, str]] = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}
_SAID = {"print", "log", "debug", "info", "warning", "error", "exception", "TypeVar", "NamedTuple"}
_LEFT_OUT = ast.AugAssign | ast.Raise | ast.Continue | ast.Break


class Change(NamedTuple):
    """Bytes of a file from start to end, and what stands there instead."""

    start: int
    end: int
    new: str
    kind: str


class _File:
    """A product file and the changes that can be made in it."""

    def __init__(self, path: Path):
        self.text = path.read_text(encoding="utf-8")
        self._bytes = self.text.encode()
        lengths = map(len, self._bytes.splitlines(keepends=True))
        self._starts = [0, *itertools.accumulate(lengths)]
        self.lines = len(self._starts) - 1
        self.tree = ast.parse(self.text)
        self._changes: dict[int, list[Change]] = {}
        for change in sorted(set(self._below(self.tree, early=True))):
            self._changes.setdefault(self._line(change.start), []).append(change)

    def changes(self, line: int) -> list[Change]:
        """Those that begin on a line, from 0."""
        return [change for change in self._changes.get(line, []) if self._is_a_change(change)]

    def _is_a_change(self, change: Change) -> bool:
        try:
            return ast.dump(ast.parse(self.changed(change))) != ast.dump(self.tree)
        except SyntaxError:
            return False

    def changed(self, change: Change) -> str:
        """The file's text with a change."""
        new = change.new.encode()
        return (self._bytes[: change.start] + new + self._bytes[change.end :]).decode()

    def _line(self, at: int) -> int:
        return next(n for n, start in enumerate(self._starts[1:]) if at < start)

    def snippets(self, change: Change) -> tuple[list[str], list[str]]:
        """The lines of a change before and after, with as many lines above as make them unique."""
        first, last = self._line(change.start), self._line(change.end - 1)
        before, after = self.text.splitlines(), self.changed(change).splitlines()
        stop = last + 1 + len(after) - len(before)
        while True:
            old, new = before[first : last + 1], after[first:stop]
            cut = min(len(line) - len(line.lstrip()) for line in old if line.strip())
            old, new = [line[cut:] for line in old], [line[cut:] for line in new]
            if len(list(places(before, tuple(old)))) == 1:
                return old, new
            first -= 1

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _begin(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self._at(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.end_lineno, node.end_col_offset)

    def _between(
        self, a: ast.expr, b: ast.expr, words: tuple[str, str], kind: str
    ) -> Iterator[Change]:
        """The word between two operands replaced by another."""
        start, stop = self._end(a), self._begin(b)
        at = self._bytes[start:stop].find(words[0].encode())
        if at >= 0:
            yield Change(start + at, start + at + len(words[0]), words[1], kind)

    def _below(self, node: ast.AST, early: bool) -> Iterator[Change]:
        """All changes of what lies below a node.

        early: a `return` there is not the function's last statement.
        """
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _is_left_alone(child):
                    yield from self._of(child, early)
                    yield from self._below(child, not isinstance(child, ast.FunctionDef))

    def _of(self, node: ast.AST, early: bool) -> Iterator[Change]:
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for (a, b), op in zip(itertools.pairwise(operands), node.ops, strict=True):
                    yield from self._between(a, b, _COMPARISONS[type(op)], "comparison")
            case ast.BoolOp():
                words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                for a, b in itertools.pairwise(node.values):
                    yield from self._between(a, b, words, "and/or")
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                if not (_is_text(node.left) or _is_text(node.right)):
                    yield from self._between(node.left, node.right, _SIGNS[type(node.op)], "sign")
            case ast.UnaryOp(op=ast.USub()):
                yield Change(self._begin(node), self._begin(node.operand), "", "sign")
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                for other in (number - 1, number + 1):
                    yield Change(self._begin(node), self._end(node), str(other), "±1")
            case ast.Call():
                yield from self._arguments(node)
            case ast.stmt() if _can_be_left_out(node, early):
                yield Change(self._begin(node), self._end(node), "pass", "statement left out")
        if isinstance(node, ast.AugAssign) and type(node.op) in _SIGNS:
            yield from self._between(node.target, node.value, _SIGNS[type(node.op)], "sign")

    def _arguments(self, call: ast.Call) -> Iterator[Change]:
        """Each argument by keyword, left out with its comma."""
        given: list[ast.expr | ast.keyword] = sorted([*call.args, *call.keywords], key=self._begin)
        for i, one in enumerate(given):
            if not isinstance(one, ast.keyword):
                continue
            start = self._end(given[i - 1]) if i else self._begin(one)
            stop = self._begin(given[1]) if not i and len(given) > 1 else self._end(one)
            yield Change(start, stop, "", "argument left out")


def _is_left_alone(node: ast.AST) -> bool:
    """Whether nothing below a node is changed: see the rule above."""
    match node:
        case ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.FunctionDef(name="__repr__" | "__str__"):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in _SAID or name.endswith("Error")
    return False


def _is_text(node: ast.expr) -> bool:
    constant = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return constant or isinstance(node, ast.JoinedStr)


def _can_be_left_out(node: ast.stmt, early: bool) -> bool:
    match node:
        case ast.Expr(value=ast.Call()):
            return not _is_left_alone(node.value)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            return True
        case ast.Delete(targets=[ast.Subscript(), *_]):
            return True
        case ast.Return():
            return early
    return isinstance(node, _LEFT_OUT)


def draw(root: Path, seed: int, count: int) -> Iterator[str]:
    """Faults, line by line as they stand in the list."""
    paths = sorted(path for name in PACKAGES for path in (root / name).rglob("*.py"))
    files = {path: _File(path) for path in paths}
    lines = [(path, line) for path, file in files.items() for line in range(file.lines)]
    chance, number = random.Random(seed), 0
    chance.shuffle(lines)
    for path, line in lines:
        changes = files[path].changes(line)
        if not changes:
            continue
        number += 1
        kind = chance.choice(sorted({change.kind for change in changes}))
        change = chance.choice([change for change in changes if change.kind == kind])
        old, new = files[path].snippets(change)
        yield f"@ drawn-{number:02} {path.relative_to(root)} {kind}"
        yield from (f"-{line}" for line in old)
        yield from (f"+{line}" for line in new)
        yield ""
        if number == count:
            return
