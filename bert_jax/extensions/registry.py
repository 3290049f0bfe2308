"""Tables of rows by name: the kinds of masking, sources, optimizers and tasks that a user can name.

A row of the project is written as "module:NAME" and imported when it is used, so that a table needs
none of the packages that its rows need. A module of the user adds its rows with `Registry.add`;
what a run or a store was made with records which module that was.
"""

import importlib
import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar, cast

from bert_jax.errors import UserError
from bert_jax.extensions.modules import Module, execute, module_of, repeat

Row = TypeVar("Row")
_registries: "Final[dict[str, Registry[Any]]]" = {}  # by `what`


class Registry(Mapping[str, Row]):
    """Rows by name, in the order in which messages and help list them.

    Args:
        what: a row is, for messages: "kind of masking".
        row_class: of every row, "module:NAME"; imported when a user adds one.
        rows: the project's own, "module:NAME" by name.
        key: of the setting of a run that names a row: "data.masking"; "" if none does.
        reserved: other names that no row may have.
    """

    def __init__(
        self,
        what: str,
        row_class: str,
        rows: Mapping[str, str],
        key: str = "",
        reserved: Collection[str] = (),
    ) -> None:
        self.what, self.key = what, key
        self._row_class, self._reserved = row_class, reserved
        self._rows = dict[str, Any](rows)
        self._modules = dict[str, Module]()  # of the rows that users added
        _registries[what] = self

    __hash__ = object.__hash__  # of `Annotated[str, REGISTRY] | None`

    def __getitem__(self, name: str) -> Row:
        row = self._rows[name]
        if isinstance(row, str):
            row = self._rows[name] = _imported(row)
        return cast(Row, row)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def add(self, name: str, row: Row) -> None:
        """Adds a row of a user's module, which may be executed again.

        Raises:
            UserError: another one, or the project, has a row of this name, it is none of letters,
                digits and "_", or the row is of another class.
        """
        if not isinstance(row, _imported(self._row_class)):
            kind = f"the class {row.__name__}" if isinstance(row, type) else type(row).__name__
            wanted = self._row_class.replace(":", ".")
            raise UserError(f"{self.what} {name!r}: add an instance of {wanted}, not {kind}")
        if not (isinstance(name, str) and re.fullmatch(r"\w+", name)):
            raise UserError(f"{self.what} {name!r}: give a name of letters, digits and '_' only")
        module = self._modules.get(name)
        caller = module_of(inspect.stack(0)[1].frame)
        is_same = module and (module.path == caller.path or module.data == caller.data)
        if name in self._reserved or (name in self._rows and not is_same):
            of = f" in {module.path}" if module and module.path else ""
            raise UserError(f"{self.what} {name!r} exists{of}; give yours another name")
        self._rows[name], self._modules[name] = row, caller

    def module_of(self, name: str) -> Module | None:
        """Returns the user's module that added a row; None for the project's own."""
        return self._modules.get(name)


def _imported(name: str) -> Any:
    """Returns what "module:NAME" names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def added() -> list[Module]:
    """Returns the user's modules that added rows."""
    modules = (m for registry in _registries.values() for m in registry._modules.values())
    return list(dict.fromkeys(modules))


def repeat_all(modules: Iterable[Module]) -> None:
    """Adds the rows of some modules in a worker process, unless they are there."""
    for module in modules:
        if module not in added():
            repeat(module)
        if module not in added() and module.path:  # another one, or a newer file, was imported
            execute(module)


def used_rows(settings: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns the record of the users' rows that settings name.

    settings: of a run, by key: "data.masking", also of a phase: "phases[0].masking".
    """
    used = []
    for registry in filter(lambda each: each.key, _registries.values()):
        last = registry.key.rpartition(".")[2]
        keys = re.compile(rf"{re.escape(registry.key)}|phases\[\d+\]\.{re.escape(last)}")
        names = [value for key, value in settings.items() if value and keys.fullmatch(key)]
        for name in dict.fromkeys(names):
            if module := registry.module_of(name):
                about = {"key": registry.key, "what": registry.what, "row": name}
                used.append({**about, "module": module.name, "sha256": module.sha256})
    return used


def check_rows(rows: Iterable[Mapping[str, str]]) -> None:
    """Raises UserError, which names the modules, if rows that a run was made with are missing or
    those of another file.

    rows: the run's record of them, see `used_rows`.
    """
    missing, others = [], []
    for row in rows:
        registry = next((each for each in _registries.values() if each.key == row["key"]), None)
        module = registry.module_of(row["row"]) if registry else None
        if module and module.sha256 == row["sha256"]:
            continue
        name = f"--module={row['module']} (sha256 {row['sha256'][:12]}…)"
        words = f"{name if row['module'] else 'Python'}, which defines {row['what']} {row['row']!r}"
        if module:
            others.append(f"{words}, not with {module.path or 'this'} ({module.sha256[:12]}…)")
        else:
            missing.append(words)
    if missing:
        again = "give it again" if len(missing) == 1 else "give them again"
        raise UserError(f"this run was made with {', and '.join(missing)}; {again}")
    if others:
        raise UserError(
            f"this run was made with {', and '.join(others)}; put the old file back: a changed one "
            "needs a new run"
        )
