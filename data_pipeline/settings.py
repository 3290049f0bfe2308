"""Settings: frozen dataclasses whose annotations state the type and the valid values of a field."""

import dataclasses
import math
import reprlib
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from bert_jax.errors import UserError, nearest


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


@dataclasses.dataclass(frozen=True, eq=False)
class Meaning:
    """Names in other programs for the choices of a `Literal`, for messages: the choice that each
    means, "" for the name of something else that is spelled like a choice."""

    names: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Listed:
    """The names of which a text lists one or several, each once, with commas between."""

    names: tuple[str, ...]


Whole = Annotated[int, Within(0, 2**31 - 1)]
Words = Annotated[int, Within(1, 512)]
Share = Annotated[float, Within(0, 1)]
Inside = Annotated[float, Within(0, 1, without=(0, 1))]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of the settings of `config.data`, which are checked whenever one is created."""

    def __post_init__(self) -> None:
        """Raises UserError for a value of the wrong type or outside the valid ones."""
        for name, hint in typing.get_type_hints(type(self), include_extras=True).items():
            checked(getattr(self, name), hint, f"config.data.{name}")

    def values(self, cls: "type[Settings]") -> dict[str, Any]:
        """Returns the values of the fields of `cls`, this class or a base of it."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(cls)}


def checked(value: Any, hint: Any, where: str) -> Any:
    """Returns a value (an int as a float where a float is expected) if its annotation allows it.

    Args:
        hint: a class, a `Literal`, or `Annotated` with a `Within`, a `Meaning` of a `Literal`, a
            `Listed`, or a collection of names; values of other annotations are not checked.
        where: the setting, for the message.

    Raises:
        UserError: the value has another type, or is not one of the valid ones.
    """
    origin = typing.get_origin(hint)
    if origin is Annotated:
        base, valid = typing.get_args(hint)
        if isinstance(valid, Meaning):
            return _chosen(value, base, where, valid.names)
        typed = checked(value, base, where)
        if isinstance(valid, Listed):
            return _listed(typed, valid.names, where)
        if typed in valid:
            return typed
        if isinstance(valid, Within):
            is_finite = isinstance(typed, int) or math.isfinite(typed)
            wrong(value, f"{valid}{'' if is_finite else ', and finite'}", where)
        raise UserError(f"{where}={shown(value)}{nearest(value, valid)}")
    if origin is Literal:
        return _chosen(value, hint, where, {})
    if origin is not None or hint is Any:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**1000 else wrong(value, "float", where)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        wrong(value, hint.__name__, where)
    return value


def _chosen(value: Any, hint: Any, where: str, names: Mapping[str, str]) -> Any:
    """Returns a choice of a `Literal`; UserError, which says what was meant, for other values."""
    choices = typing.get_args(hint)
    if value not in choices:
        meant = names.get(str(value), str(value)[:80])
        raise UserError(f"{where}={shown(value)}{nearest(meant, choices)}")
    return value


def _listed(value: str, names: tuple[str, ...], where: str) -> str:
    """Returns a text that lists names; UserError for another name, or one that is there twice."""
    parts = [part.strip() for part in value.split(",")]
    if other := next((part for part in parts if part not in names), None):
        raise UserError(f"{where}={shown(value)}: {shown(other)} is none{nearest(other, names)}")
    if "" in parts or len({*parts}) < len(parts):
        valid = ", ".join(names)
        raise UserError(f"{where}={shown(value)} should list different names of {valid}")
    return value


def wrong(value: Any, wanted: str, where: str) -> typing.NoReturn:
    """Raises the UserError of a value that should be something else."""
    raise UserError(f"{where}={shown(value)} should be {wanted}")


def shown(value: Any) -> str:
    """Returns a value as one line for an error message, abbreviated in the middle if long."""
    text = reprlib.repr(value) if isinstance(value, Mapping | list | tuple) else repr(value)
    return text if len(text) <= 80 else f"{text[:60]}…{text[-15:]}"


def shown_name(name: str) -> str:
    """Returns a name from a file of another program, such as a tensor's, as `shown`, without
    quotes: it may hold any character."""
    return shown(name)[1:-1]
