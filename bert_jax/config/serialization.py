"""Converts nested values to frozen dataclasses and back, and validates each key.

An unknown key, a value of the wrong type or a choice that does not exist is one clear line with the
nearest valid name.
"""

import dataclasses
import math
import reprlib
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from bert_jax.errors import UserError, nearest

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Within:
    """The valid range of a number, as in `Annotated[float, Within(0, 1)]`; never NaN or inf."""

    low: float
    high: float = math.inf
    without: tuple[float, ...] = ()  # excluded ends

    def __contains__(self, value: float) -> bool:
        inside = self.low <= value <= self.high and value not in self.without
        return inside and (isinstance(value, int) or math.isfinite(value))

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"above {self.low}" if self.without else f"{self.low} or more"
        ends = " or ".join(map(str, self.without))
        return f"from {self.low} to {self.high}" + (f", but not {ends}" if ends else "")


def from_dict(values: Mapping[str, Any], cls: type[T], where: str = "config") -> T:
    """Returns a frozen dataclass from nested mappings, validated key by key.

    Raises:
        UserError: an unknown key, a wrong type or an unknown choice; names the key with its path
            and the nearest valid name. A missing key takes its default.
    """
    if not isinstance(values, Mapping):
        _wrong(values, "keys", where)
    hints = typing.get_type_hints(cls, include_extras=True)
    unknown = sorted(set(values) - set(hints))
    if unknown:
        raise UserError(f"unknown key {where}.{unknown[0]}{nearest(unknown[0], hints)}")
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
    if origin is Annotated:
        base, allowed = typing.get_args(hint)
        number = _convert(value, base, where)
        return number if number in allowed else _wrong(value, str(allowed), where)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            value = dict(value.items()) if hasattr(value, "items") else _wrong(value, "keys", where)
        return from_dict(value, hint, where)  # type: ignore[arg-type]
    if origin in (types.UnionType, typing.Union):  # X | None, Annotated[X, …] | None
        (base,) = (h for h in typing.get_args(hint) if h is not types.NoneType)
        return None if value is None else _convert(value, base, where)
    if origin is tuple:
        item = typing.get_args(hint)[0]
        if not isinstance(value, tuple | list):
            _wrong(value, "a tuple", where)
        return tuple(_convert(v, item, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise UserError(f"{where}={shown(value)}{nearest(str(value)[:80], choices)}")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**1000 else _wrong(value, "float", where)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        _wrong(value, hint.__name__, where)
    return value


def _wrong(value: Any, wanted: str, where: str) -> typing.NoReturn:
    raise UserError(f"{where}={shown(value)} should be {wanted}")


def shown(value: Any) -> str:
    """Returns a value as one line for an error message, abbreviated in the middle if long."""
    text = reprlib.repr(value) if isinstance(value, Mapping | list | tuple) else repr(value)
    return text if len(text) <= 80 else f"{text[:60]}…{text[-15:]}"


def to_dict(config: Any) -> dict[str, Any]:
    """Returns nested plain dicts and lists, as written to `config.json`."""
    return typing.cast(dict[str, Any], _plain(dataclasses.asdict(config)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def flatten(values: Any, where: str = "") -> dict[str, Any]:
    """Returns `{"phases[0].steps": 10, ...}`: one entry per value, for diffs and golden files."""
    if isinstance(values, dict):
        items = [(f"{where}.{k}" if where else k, v) for k, v in values.items()]
    elif isinstance(values, list):
        items = [(f"{where}[{i}]", v) for i, v in enumerate(values)]
    else:
        return {where: values}
    return {path: v for key, value in items for path, v in flatten(value, key).items()}
