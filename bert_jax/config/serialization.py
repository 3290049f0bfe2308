"""Converts nested values to frozen dataclasses and back, and validates each key.

An unknown key, a value of the wrong type or a choice that does not exist is one clear line with the
nearest valid name.
"""

import copy
import dataclasses
import os
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from bert_jax.config.unknown_keys import key_hint, translation
from bert_jax.data_pipeline.settings import checked, wrong
from bert_jax.errors import UserError, nearest

T = TypeVar("T")


def from_dict(values: Mapping[str, Any], cls: type[T], where: str = "config") -> T:
    """Returns a frozen dataclass from nested mappings, validated key by key.

    Raises:
        UserError: an unknown key, a wrong type or an unknown choice; names the key with its path
            and the nearest valid name. A missing key takes its default.
    """
    if not isinstance(values, Mapping):
        wrong(values, "keys", where)
    hints = typing.get_type_hints(cls, include_extras=True)
    unknown = sorted(map(str, set(values) - set(hints)))
    if unknown:
        hint = translation(unknown[0]) or nearest(unknown[0], hints)
        raise UserError(f"unknown key {where}.{unknown[0]}{hint}")
    return cls(**{k: _convert(v, hints[k], f"{where}.{k}") for k, v in values.items()})


def completed(values: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """Nested values with the defaults of keys that they lack: an earlier version wrote them."""
    full = {**to_dict(cls()), **values}
    for name, hint in typing.get_type_hints(cls).items():
        several = typing.get_origin(hint) is tuple
        part: type = typing.get_args(hint)[0] if several else hint
        if dataclasses.is_dataclass(part):
            value = full[name]
            full[name] = (
                [completed(item, part) for item in value] if several else completed(value, part)
            )
    return full


def _convert(value: Any, hint: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return from_dict(value, hint, where)  # type: ignore[arg-type]
    if origin in (types.UnionType, typing.Union):  # X | None, Annotated[X, …] | None
        (base,) = (h for h in typing.get_args(hint) if h is not types.NoneType)
        return None if value is None else _convert(value, base, where)
    if origin is tuple:
        item = typing.get_args(hint)[0]
        if not isinstance(value, tuple | list):
            wrong(value, "a list", where)
        return tuple(_convert(v, item, f"{where}[{i}]") for i, v in enumerate(value))
    return checked(value, hint, where)


def to_dict(config: Any) -> dict[str, Any]:
    """Returns nested plain dicts and lists, as written to `config.json`."""
    return typing.cast(dict[str, Any], plain(dataclasses.asdict(config)))


def plain(value: Any) -> Any:
    """Returns nested mappings (also of ml_collections) and sequences as dicts and lists."""
    if hasattr(value, "items"):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def flatten(values: Any, where: str = "") -> dict[str, Any]:
    """Returns `{"phases[0].steps": 10, ...}`: one entry per value, for diffs and golden files."""
    if isinstance(values, dict):
        items = [(f"{where}.{k}" if where else k, v) for k, v in values.items()]
    elif isinstance(values, list):
        items = [(f"{where}[{i}]", v) for i, v in enumerate(values)]
    else:
        return {where: values}
    return {path: v for key, value in items for path, v in flatten(value, key).items()}


def updated(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested values with some replaced, by their keys in `flatten(values)`.

    Raises:
        UserError: a key is not one of these; names the nearest.
    """
    new, known = copy.deepcopy(dict(values)), flatten(values)
    for key, value in changes.items():
        if key not in known:
            raise UserError(f"unknown key config.{key}{key_hint(key, known)}")
        *path, last = (int(p) if p.isdigit() else p for p in re.findall(r"[^.\[\]]+", key))
        place: Any = new
        for part in path:
            place = place[part]
        place[last] = os.fspath(value) if isinstance(value, os.PathLike) else value
    return new
