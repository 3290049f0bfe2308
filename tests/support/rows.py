"""Rows of a registry that only one test has."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bert_jax.extensions.registry import Registry


@contextmanager
def with_row(registry: Registry[Any], name: str, row: Any) -> Iterator[None]:
    registry.add(name, row)
    try:
        yield
    finally:
        del registry._rows[name]
