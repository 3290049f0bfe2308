"""Errors that are reported in one line, their exit codes, and parts of such lines."""

import codecs
import difflib
import errno
import os
import re
from collections.abc import Iterable, Sequence
from typing import Final

from bert_jax.exit_codes import FAILED, LOST, NUMBERS, STOPPED, STORAGE, USAGE

OBJECT_PER_LINE: Final = "jq -c '.[]' OLD > NEW.jsonl"  # of a JSON array
_HUB_NAMES: Final = {
    # OWNER/NAME, or one of the first models, such as bert-base-uncased, which have no owner.
    "model": re.compile(
        r"(?!.*\.(json|txt|model|zip)$)(\w[\w.-]*/[\w.-]+|[\w-]*bert[\w.]*-[\w.-]+)(@[\w./-]+)?"
    ),
    "dataset": re.compile(
        r"(?!.*\.(txt|tsv|csv|jsonl?|parquet|arrow|xml|gz|bz2|xz|zst|zip)$)"
        r"\w[\w.-]*(/[\w.-]+){1,2}(:[\w.-]+)?(@[\w./-]+)?"
    ),
}
_PREFIX: Final = 3  # characters that a name is known by
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


class UsageError(Exception):
    """The command line cannot be parsed."""


class StoppedError(OneLineError):
    """The run was asked to stop and has saved a checkpoint; the same command resumes from it."""


class LostError(Exception):
    """Another process is gone or does not answer; the message names its host."""


class NumbersError(OneLineError):
    """Too many steps in a row had a loss or a gradient that is not finite."""


_CODES: dict[type[BaseException], int] = {
    UserError: FAILED,
    UsageError: USAGE,
    StoppedError: STOPPED,
    LostError: LOST,
    NumbersError: NUMBERS,
    StorageError: STORAGE,
}


# Errors of a full or broken disk.
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
# Errors of a path that the user gave.
_NAME = {
    errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR,
}  # fmt: skip


def code_of(error: BaseException) -> int | None:
    """Returns the exit code of an error that is reported in one line; None for all others."""
    if isinstance(error, OSError) and error.errno in _DISK:
        return STORAGE
    if isinstance(error, OSError) and error.errno in _NAME and error.filename:
        return FAILED
    if _is_out_of_memory(error):
        return FAILED
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)


def line_of(error: BaseException) -> str:
    """Returns the one-line message of an error that has an exit code."""
    if isinstance(error, OSError) and error.errno in _DISK | _NAME:
        name = str(error.filename)
        name = name if len(name) <= 200 else f"{name[:60]}…{name[-60:]}"
        where = f"{name}: " if error.filename else ""
        retry = "; run the same command again to resume once the storage works"
        hint = retry if error.errno in _DISK else ""
        return f"{where}{error.strerror}{hint}"
    if _is_out_of_memory(error):
        details = " ".join(str(error).split())[:200]
        return (
            f"out of memory ({details}); use a smaller batch or model, more "
            "micro_batches (--config.phases[0].micro_batches=2), or --config.compute.remat=full"
        )
    return str(error)


def _is_out_of_memory(error: BaseException) -> bool:
    """Returns whether Python, NumPy or XLA ran out of memory; XLA's by name, so JAX is not
    imported."""
    of_xla = type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")
    return isinstance(error, MemoryError) or (of_xla and "RESOURCE_EXHAUSTED" in str(error))


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
    Those with the same last part come first, then those of the same section, of these such as begin
    with what was typed.
    """
    section, _, last = name.rpartition(".")

    def rank(valid_name: str) -> tuple[bool, bool, bool, float]:
        its_section, _, its_last = valid_name.rpartition(".")
        begins = len(last) >= _PREFIX and its_last.lower().startswith(last.lower())
        is_near = bool(section) and its_section == section
        is_similar = _similarity(last, its_last) >= _SIMILAR
        if not is_similar and not (begins and is_near):
            return False, False, False, 0.0
        return its_last == last, is_near, is_near and begins, _similarity(name, valid_name)

    best = max(valid, key=rank, default=None)
    return best if best is not None and rank(best)[-1] else None


def _similarity(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a.lower(), b.lower()).ratio()


def hub_hint(name: str, kind: str = "model") -> str:
    """Returns the end of an error message about a folder that is not there: the model, or dataset,
    of this name on the Hugging Face hub; "" if it cannot be such a name, or is below a folder that
    is there."""
    organization = name.partition("/")[0]
    if not _HUB_NAMES[kind].fullmatch(name) or os.path.isdir(organization):
        return ""
    return f"; did you mean hf:{name}, a {kind} on the Hugging Face hub?"


def first_few(names: Sequence[str], most: int) -> list[str]:
    """Returns the first names for a message, and "…" if there are more than `most`."""
    return [*names[:most], *(["…"] if len(names) > most else [])]
