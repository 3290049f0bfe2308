"""The rows of a text file, with their numbers; every error names the file and the row.

Files of tasks are read more strictly than text for pretraining: a row that cannot be read is an
error, because a label may belong to it.
"""

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import PurePath
from typing import NoReturn

from etils import epath

from bert_jax.data_pipeline.sources.enclosed_rows import QuoteError, enclosed_rows
from bert_jax.data_pipeline.sources.formats import COMPRESSED
from bert_jax.data_pipeline.sources.tab_rows import TAB, tab_rows
from bert_jax.data_pipeline.text.line_ends import split_lines
from bert_jax.errors import UserError, conversion, nearest
from bert_jax.finetune.tasks.class_names import cleaned
from bert_jax.storage.hub import check_not_hub
from bert_jax.storage.remote import storage_errors
from bert_jax.storage.versions import opened_once

Fields = list[str]
_ALIKE = 0.8  # share of equal characters of a misspelled name; "idx" and "id" have as many


def wrong_row(path: epath.PathLike, row: int, problem: str) -> NoReturn:
    """Raises the UserError of a row."""
    raise UserError(f"{path}: row {row:,}: {problem}")


def refuse_compressed(path: epath.PathLike) -> None:
    """Raises UserError for a file whose name says that it is compressed."""
    if PurePath(path).suffix.lower() in (*COMPRESSED, ".zip"):
        raise UserError(f"{path}: compressed; decompress it first")


def numbered_lines(path: epath.PathLike) -> Iterator[tuple[int, str]]:
    """Yields the number, from 1, and the text of each line, which ends with LF: CR LF and CR end
    lines, too.

    A byte-order mark at the start is skipped.

    Raises:
        UserError: the file cannot be read or changes meanwhile, or a line is not UTF-8 or has a NUL
            byte, or the file is compressed.
    """
    check_not_hub(path)
    refuse_compressed(path)
    row = 0
    with storage_errors(path), opened_once(path) as stream:
        for line in stream:
            try:
                text = line.decode("utf-8" if row else "utf-8-sig")
            except UnicodeDecodeError as error:
                before = split_lines(line[: error.start].decode("utf-8", "replace") + "\n")
                problem = f"not UTF-8 at byte {error.start + 1:,} (0x{line[error.start]:02x})"
                wrong_row(path, row + len(before), f"{problem}; convert it: {conversion(line)}")
            for one in split_lines(text):
                row += 1
                if "\0" in one:
                    wrong_row(path, row, "has a NUL byte; the file is damaged or is UTF-16")
                yield row, f"{one}\n"


def damage(text: str) -> str:
    """Returns what is wrong with a string of a JSON file, which can hold any; "" if nothing is."""
    if "\0" in text:
        return "has a NUL byte; the file is damaged"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "has half of a surrogate pair; the file is damaged"
    return ""


def delimited_rows(
    path: epath.PathLike, delimiter: str, *, quoted: bool
) -> Iterator[tuple[int, Fields]]:
    """Yields the first line's number, from 1, and the fields of each row; of a blank line
    [""], none if quoted.

    Args:
        quoted: a field in double quotes may have delimiters and line ends, as in a CSV file; else
            quotes are text, as in the files of GLUE.

    Raises:
        UserError: as `numbered_lines`, or a quote does not close or is followed by text.
    """
    if not quoted:
        for row, line in numbered_lines(path):
            yield row, line.removesuffix("\n").split(delimiter)
        return
    yield from _enclosed_rows(path, (line for _, line in numbered_lines(path)), delimiter)


def tab_separated_rows(path: epath.PathLike) -> Iterator[tuple[int, Fields]]:
    """Yields what `delimited_rows` does of a table of tabs, whose quotes are text unless its header
    is in quotes or a value needs them, see `tab_rows`."""
    lines = (line for _, line in numbered_lines(path))
    first = next(lines, None)
    if first is None:
        return
    given = chain([first], lines)
    if first.startswith('"'):
        yield from _enclosed_rows(path, given, TAB)
        return
    plain = (line.removesuffix("\n") for line in given)
    yield from tab_rows(plain, len(first.split(TAB)))


def _enclosed_rows(
    path: epath.PathLike, lines: Iterator[str], delimiter: str
) -> Iterator[tuple[int, Fields]]:
    try:
        yield from enclosed_rows(lines, delimiter)
    except QuoteError as error:
        advice = error.advice or "double a quote inside quotes"
        if delimiter != TAB and not error.advice:
            advice += ", or give a .tsv, whose quotes are text"
        wrong_row(path, error.row, f"a stray quote ({error.problem}); {advice}")


def titles_of(fields: Fields) -> list[str]:
    """Returns the names in a header, without white space and unseen characters around them."""
    return [cleaned(name) for name in fields]


def misspelled(names: Iterable[str], optional: Iterable[str]) -> tuple[str, str] | None:
    """Returns a name that is nearly one of those that may be missing, and that one; None if there
    is none. Without this, a damaged header reads as one that lacks them."""
    given = list(names)
    for wanted in optional:
        for name in given if wanted not in given else ():
            plain, own = (re.sub(r"[\W_]", "", text).casefold() for text in (name, wanted))
            if difflib.SequenceMatcher(None, plain, own).ratio() > _ALIKE:
                return name, wanted
    return None


def column_index(path: epath.PathLike, header: Sequence[str], name: str) -> int:
    """Returns the index of a column; UserError if the header has none or several of this name."""
    if header.count(name) > 1:
        raise UserError(f"{path}: {header.count(name)} columns are named {name!r}; rename one")
    if name not in header:
        raise UserError(f"{path}: no column {name!r}{nearest(name, header)}")
    return header.index(name)


def check_width(path: epath.PathLike, row: int, fields: Fields, width: int) -> None:
    """Raises UserError unless a row has `width` columns."""
    if len(fields) != width:
        few = "few" if len(fields) < width else "many"
        wrong_row(path, row, f"too {few} columns: {len(fields)} instead of {width}")


def number_of(text: str) -> float | None:
    """Returns the number that a text is in digits of ASCII; None if it is none or not finite."""
    plain = text.strip()
    if "_" in plain or not plain.isascii():  # Python takes 1_000 for 1000, and Arabic digits
        return None
    try:
        number = float(plain)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def score_of(path: epath.PathLike, row: int, text: str, low: float, high: float) -> float:
    """Returns a number from `low` to `high`; UserError for anything else."""
    score = number_of(text)
    if score is None or not low <= score <= high:
        limits = "" if high == float("inf") else f" from {low:g} to {high:g}"
        wrong_row(path, row, f"score {text[:60]!r} is not a number{limits}")
    return score
