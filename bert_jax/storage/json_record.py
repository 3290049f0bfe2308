"""Reads JSON records, and checks that they have the form that their readers rely on.

A form is a type, a test of a value, or of these: `[FORM]`, a list of any length; `(FORM, FORM)`, a
list of that many; `{str: FORM}`, a mapping; `{"key": FORM}`, a mapping that has these keys, and
others; with a "?" behind its name a key may be missing.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from etils import epath

from bert_jax.storage.read_files import read_bytes
from bert_jax.storage.reader_errors import JSON_ERRORS, one_line
from bert_jax.storage.regular_file import RECORD

Form = Any
_MOST_COUNT: Final = 2**53  # larger numbers are not exact in JSON
_MOST: Final = 1e300


def count(value: Any) -> bool:
    """Returns whether a value is a whole number that can count things."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_COUNT


def number(value: Any) -> bool:
    """Returns whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MOST


def text(value: Any) -> bool:
    """Returns whether a value is text that can be encoded, which a half of a surrogate pair
    cannot."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def file_name(value: Any) -> bool:
    """Returns whether a value names a file in the same folder."""
    return text(value) and value.isprintable() and "/" not in value and value not in ("", ".", "..")


def has_form(value: Any, form: Form) -> bool:
    """Returns whether a JSON value has a form, see the module docstring."""
    return not _differing(value, form, ".")


def _differing(value: Any, form: Form, where: str) -> str:
    """Returns the first place where a value has not the form; "" if it has."""
    if isinstance(form, list | tuple):
        if not isinstance(value, list) or (isinstance(form, tuple) and len(value) != len(form)):
            return where
        forms = form if isinstance(form, tuple) else form * len(value)
        places = (
            _differing(v, f, f"{where}[{i}]")
            for i, (v, f) in enumerate(zip(value, forms, strict=True))
        )
    elif isinstance(form, Mapping):
        if not isinstance(value, dict) or not all(map(text, value)):
            return where
        parts = [(name, form[str]) for name in value] if str in form else form.items()
        places = (_differing_key(value, name, part, where) for name, part in parts)
    elif isinstance(form, type):
        fits = isinstance(value, form) and (form in (bool, object) or not isinstance(value, bool))
        return "" if fits else where
    else:
        return "" if form(value) else where
    return next(filter(None, places), "")


def _differing_key(value: Mapping[str, Any], name: str, form: Form, where: str) -> str:
    key = name if name in value else name.removesuffix("?")
    if key in value:
        return _differing(value[key], form, f"{where}.{ascii(key)[1:-1][:40]}")
    return "" if name.endswith("?") else f"{where}.{key}"


class _RepeatedKeyError(ValueError):
    """An object has a key twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise _RepeatedKeyError(f"has the key {ascii(repeated)[:40]} twice")
    return found


def parse(data: bytes | str, form: Form = object, *, unique: bool = False) -> Any:
    """Returns a JSON value.

    Args:
        data: text, or its bytes in UTF-8 without a byte order mark.
        unique: an object has no key twice.

    Raises:
        ValueError: it is not JSON, is nested too deeply, has another form, or a key twice.
    """
    try:
        hook = _unique if unique else None
        value = json.loads(data if isinstance(data, str) else data.decode(), object_pairs_hook=hook)
    except _RepeatedKeyError:
        raise
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except JSON_ERRORS as error:
        raise ValueError(f"not JSON ({one_line(error)})") from None
    if place := _differing(value, form, "."):
        what = place.strip(".") or "its value"
        raise ValueError(f"{what} is missing or not as it was written")
    return value


def parse_object(line: bytes | str) -> dict[str, Any]:
    """Returns the JSON object on a line, without a repeated key; ValueError if it is none."""
    if not isinstance(value := parse(line, unique=True), dict):
        raise ValueError("not a JSON object, such as {…}")
    return value


def read_json(path: epath.PathLike, form: Form = object, limit: int = RECORD) -> Any:
    """Returns the JSON value in a file, local or in a bucket; ValueError as `parse`, and the errors
    of its storage."""
    return parse(read_bytes(path, limit), form)


def read_if_there(path: epath.PathLike, form: Form = object) -> Any:
    """Returns what `read` does, None if there is no such file; raises as `read`."""
    try:
        return read_json(path, form)
    except (FileNotFoundError, NotADirectoryError):
        return None


def holds(path: epath.PathLike, form: Form) -> bool:
    """Returns whether a file is JSON of a form; raises the errors of its storage."""
    try:
        read_json(path, form)
    except ValueError:
        return False
    return True
