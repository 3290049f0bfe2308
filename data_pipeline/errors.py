"""Errors caused by user input or storage, each reported in one line, and parts of such lines."""

import codecs
import difflib
import os
import re
from collections.abc import Iterable, Sequence
from typing import Final

OBJECT_PER_LINE: Final = "jq -c '.[]' OLD > NEW.jsonl"  # of a JSON array
_HUB_NAME: Final = re.compile(r"\w[\w.-]*(/[\w.-]+)?(@[\w./-]+)?")
_SIMILAR: Final = 0.6  # share of equal characters, as in difflib.get_close_matches


class OneLineError(Exception):
    """An error whose message says everything: a notebook shows it without a traceback."""

    def _render_traceback_(self) -> list[str]:
        """Called by IPython."""
        return [f"{type(self).__name__}: {self}"]


class UserError(OneLineError):
    """Bad input: one line with the problem, its location and the remedy.

    The command line prints the message and exits with status 1; no traceback.
    """


class StorageError(OneLineError):
    """A required file cannot be written or is damaged: one line with the problem, its location and
    the remedy. The command line exits with status 45.
    """


def conversion(text: bytes) -> str:
    """Returns how to convert text that is not UTF-8, for a message.

    Windows-1252 has all characters of Latin-1, and the quotation marks that real text has between
    0x80 and 0x9f, which Latin-1 would make control characters; iconv rejects bytes it does not
    have.
    """
    is_utf16 = text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    command = f"iconv -f {'UTF-16' if is_utf16 else 'CP1252'} -t UTF-8 OLD > NEW"
    return command if is_utf16 else f"{command} (of Western European text; else name its encoding)"


def refuse_array(path: object, first: str) -> None:
    """Raises UserError, which says how to convert it, if a file of JSON lines, by its first line,
    is one array."""
    if first.lstrip().startswith("["):
        raise UserError(f"{path}: a JSON array; write an object on each line: {OBJECT_PER_LINE}")


def count(number: int, what: str) -> str:
    """Formats a number of things: 1 step, 2,000 steps."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def nearest(name: str, valid: Iterable[str]) -> str:
    """Returns the end of an error message: the nearest valid name, or all valid names."""
    names = sorted(valid)
    near = nearest_name(name, names)
    return f"; did you mean {near}?" if near else f"; valid: {', '.join(names) or 'none'}"


def nearest_name(name: str, valid: Iterable[str]) -> str | None:
    """Returns the valid name that is most similar to a misspelled one; None if none is similar.

    Of dotted names the last parts must be similar: `optimizer.foo` does not mean `optimizer.b2`.
    """
    last = name.rpartition(".")[2]
    similar = [v for v in valid if _similarity(last, v.rpartition(".")[2]) >= _SIMILAR]
    return max(similar, key=lambda v: _similarity(name, v), default=None)


def _similarity(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a.lower(), b.lower()).ratio()


def import_hint(name: str) -> str:
    """Returns the end of an error message about a folder that is not there: how a model of this
    name on the Hugging Face hub is imported; "" if it cannot be such a name, or is below a folder
    that is there."""
    organization, slash, _ = name.partition("/")
    if not _HUB_NAME.fullmatch(name) or (slash and os.path.isdir(organization)):
        return ""
    return (
        "; if it is a model on the Hugging Face hub, type: bert-jax convert import "
        f"--from=hf:{name} --out=…"
    )


def first_few(names: Sequence[str], most: int) -> list[str]:
    """Returns the first names for a message, and "…" if there are more than `most`."""
    return [*names[:most], *(["…"] if len(names) > most else [])]
