"""Rows of a registry that only one test has."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bert_jax.extensions import modules
from bert_jax.extensions import registry as registry_module
from bert_jax.extensions.registry import Registry


@contextmanager
def with_row(registry: Registry[Any], name: str, row: Any) -> Iterator[None]:
    registry.add(name, row)
    try:
        yield
    finally:
        del registry._rows[name], registry._modules[name]


@contextmanager
def without_users_rows() -> Iterator[None]:
    """Afterwards, registries have the rows that they had, and no module of a user was executed."""
    before = [
        (registry, dict(registry._rows), dict(registry._modules))
        for registry in registry_module._registries.values()
    ]
    try:
        yield
    finally:
        for registry, rows, added in before:
            registry._rows, registry._modules = rows, added
        modules._executed.clear()
