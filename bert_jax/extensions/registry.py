"""Tables of rows by name: the kinds of masking, sources, optimizers and tasks that a user can name.

A row of the project is written as "module:NAME" and imported when it is used, so that a table needs
none of the packages that its rows need. A module of the user adds its rows with `Registry.add`.
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

from bert_jax.errors import UserError

Row = TypeVar("Row")


class Registry(Mapping[str, Row]):
    """Rows by name, in the order in which messages and help list them.

    Args:
        what: a row is, for messages: "kind of masking".
        rows: the project's own, "module:NAME" by name.
    """

    def __init__(self, what: str, rows: Mapping[str, str]) -> None:
        self.what = what
        self._own, self._rows = frozenset(rows), dict[str, Any](rows)

    def __getitem__(self, name: str) -> Row:
        row = self._rows[name]
        if isinstance(row, str):
            module, _, attribute = row.partition(":")
            row = self._rows[name] = getattr(importlib.import_module(module), attribute)
        return cast(Row, row)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def add(self, name: str, row: Row) -> None:
        """Adds a row of a user's module; UserError if the project has one of this name."""
        if name in self._own:
            raise UserError(f"{self.what} {name!r} exists; give yours another name")
        self._rows[name] = row
