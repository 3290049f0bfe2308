"""Examples from any TSV, CSV, JSONL or Parquet file, or dataset on the hub, whose columns the user
names."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Final, NoReturn

from etils import epath

from bert_jax.data_pipeline.text.line_ends import unify_line_ends
from bert_jax.errors import OBJECT_PER_LINE, UserError, hub_hint, nearest, refuse_array
from bert_jax.finetune.tasks.class_names import ClassNames, cleaned, no_gold_label
from bert_jax.finetune.tasks.hub_rows import hub_rows, hub_titles
from bert_jax.finetune.tasks.labeled_examples import Example, Examples
from bert_jax.finetune.tasks.parquet_rows import PARQUET, parquet_rows, parquet_titles
from bert_jax.finetune.tasks.rows import (
    Fields,
    check_width,
    column_index,
    damage,
    delimited_rows,
    numbered_lines,
    refuse_compressed,
    score_of,
    tab_separated_rows,
    titles_of,
    wrong_row,
)
from bert_jax.storage import json_record
from bert_jax.storage.hub import is_hub
from bert_jax.storage.remote import open_path

_DELIMITERS: Final = {".tsv": "\t", ".txt": "\t", ".csv": ","}
JSONL: Final = (".jsonl", ".ndjson")
_BLANK = "blank row"


@dataclass(frozen=True)
class Columns:
    """Names of columns, or of keys in JSONL.

    Attributes:
        label: of a class; None for regression and for files without labels.
        score: of a number, for regression.
    """

    text: str
    pair: str | None = None
    label: str | None = None
    score: str | None = None

    @property
    def named(self) -> list[str]:
        """All columns that are read."""
        names = (self.text, self.pair, self.label, self.score)
        return [name for name in names if name is not None]


def read_table(
    path: epath.PathLike, columns: Columns, *, labels: Sequence[str] | None = None
) -> Examples:
    """Reads texts with a class or a score.

    Args:
        labels: names in the order of their ids; None takes those of the file, see `ClassNames.of`.

    Raises:
        UserError: as `read_rows`, or a row has a label outside `labels` or a score that is no
            number.
    """
    listed, dropped = read_rows(path, columns.named)
    if columns.label is not None:
        listed, dropped = with_gold_label(listed, dropped, columns.label, labels or ())
    classes = ClassNames(labels or ())
    if columns.label is not None and not labels:
        classes = ClassNames.of(values[columns.label] for _, values in listed)
    examples = tuple(
        _example(path, columns, classes, number, row, values)
        for number, (row, values) in enumerate(listed)
    )
    names = classes.names if columns.score is None else (columns.score,)
    kind = "classification" if columns.score is None else "regression"
    return Examples(str(path), kind, names, examples, dropped, classes.remarks)


def read_rows(
    path: epath.PathLike, names: Sequence[str], optional: Sequence[str] = ()
) -> tuple[list[tuple[int, dict[str, str]]], dict[str, int]]:
    """Reads some columns of a .tsv (or .txt), a .csv, a .jsonl or a .parquet file, or of a split of
    a dataset on the hub (hf:OWNER/NAME).

    The first row of a table names its columns. In a .csv, quotes enclose fields; in a .tsv they are
    text, unless a field needs them. The rows of a .parquet count from 1.

    Args:
        optional: further columns; "" where a table, or a line of JSON, has none, or null.

    Returns:
        The number of each row with its values by column, and reason -> number of rows left out.

    Raises:
        UserError: the file cannot be read, has no such column, or has a row with too few or too
            many columns, or a stray quote.
    """
    dropped: Counter[str] = Counter()
    suffix = PurePath(path).suffix.lower()
    if is_hub(path):
        listed = [*hub_rows(str(path), names, optional, _text)]
    elif suffix in JSONL:
        listed = [*_jsonl_rows(path, names, optional, dropped)]
    elif suffix in _DELIMITERS:
        listed = [*_table_rows(path, suffix, names, optional, dropped)]
    elif suffix == PARQUET:
        listed = [*parquet_rows(path, names, optional, _text)]
    else:
        _refuse_form(path, suffix)
    return listed, dict(dropped)


def with_gold_label(
    listed: Sequence[tuple[int, dict[str, str]]],
    dropped: Mapping[str, int],
    column: str,
    known: Sequence[str],
) -> tuple[list[tuple[int, dict[str, str]]], dict[str, int]]:
    """Returns what `read_rows` did without the rows that have no gold label, which are counted;
    known: all labels, if not those of the file."""
    missing = no_gold_label(known or (values[column] for _, values in listed))
    kept = [one for one in listed if cleaned(one[1][column]) not in missing]
    left = len(listed) - len(kept)
    return kept, {**dropped, **({"no gold label": left} if left else {})}


def files_in(folder: epath.Path, suffixes: Sequence[str]) -> list[epath.Path]:
    """Returns the files of a folder with one of these endings, in any case, in the order of their
    names; none that is hidden, such as those that a Mac writes beside others."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in suffixes and not path.name.startswith(".")
    )


def read_titles(path: epath.PathLike) -> list[str]:
    """Returns the names of the columns of a file that `read_rows` reads, of a .jsonl the keys that
    any of its rows has; UserError if it is empty, or as there."""
    suffix = PurePath(path).suffix.lower()
    if is_hub(path):
        return hub_titles(str(path))
    if suffix == PARQUET:
        return parquet_titles(path)
    if suffix in _DELIMITERS:
        _, first = next(_fields(path, suffix), (0, []))
        if not first:
            raise UserError(f"{path}: empty")
        return titles_of(first)
    if suffix not in JSONL:
        _refuse_form(path, suffix)
    titles = dict[str, None]()
    for row, line in numbered_lines(path):
        if not line.strip():
            continue
        if not titles:
            refuse_array(path, line)
        try:
            titles |= dict.fromkeys(json_record.parse_object(line))
        except ValueError as error:
            wrong_row(path, row, str(error))
    if not titles:
        raise UserError(f"{path}: empty")
    return list(titles)


def _refuse_form(path: epath.PathLike, suffix: str) -> NoReturn:
    refuse_compressed(path)
    array = f"; of a JSON array: {OBJECT_PER_LINE}" if suffix == ".json" else ""
    problem = f"not a .tsv, .csv, .jsonl or .parquet file; rename it to say its format{array}"
    missing = f"no such file or folder{hub_hint(str(path), 'dataset') or '; check the path'}"
    raise UserError(f"{path}: {problem if open_path(path).exists() else missing}")


def _fields(path: epath.PathLike, suffix: str) -> Iterator[tuple[int, Fields]]:
    is_of_commas = suffix == ".csv"
    return delimited_rows(path, ",", quoted=True) if is_of_commas else tab_separated_rows(path)


def _other_delimiter(suffix: str, first: Fields, names: Sequence[str]) -> str:
    """Returns a message if a header has one of the columns with another delimiter; else ""."""
    own = _DELIMITERS[suffix]
    for other, name in ((",", "commas"), ("\t", "tabs"), (";", "semicolons")):
        titles = [title.strip('"') for title in titles_of(own.join(first).split(other))]
        if other != own and any(name in titles for name in names):
            wanted = "commas" if own == "," else "tabs"
            rename = {",": "rename it to .csv", "\t": "rename it to .tsv"}
            remedy = rename.get(other, f"write {wanted}, as for {suffix}")
            return f"its columns are separated by {name}, not by {wanted}; {remedy}"
    return ""


def _table_rows(
    path: epath.PathLike,
    suffix: str,
    names: Sequence[str],
    optional: Sequence[str],
    dropped: Counter[str],
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the number of each row and the values of the named columns."""
    rows = _fields(path, suffix)
    _, first = next(rows, (0, None))
    if first is None:
        raise UserError(f"{path}: empty")
    titles = titles_of(first)
    if not any(name in titles for name in names):
        if problem := _other_delimiter(suffix, first, names):
            raise UserError(f"{path}: {problem}")
        header = f"no column {names[0]!r}{nearest(names[0], titles)}"
        raise UserError(f"{path}: {header}; if the first line is not a header, add one")
    there = [name for name in optional if name in titles]
    indices = {name: column_index(path, titles, name) for name in (*names, *there)}
    missing = dict.fromkeys(set(optional) - set(there), "")
    blank = list[int]()  # rows of a table of one column, which are texts unless they are the last
    for row, fields in rows:
        if fields in ([], [""]) and len(titles) > 1:
            dropped[_BLANK] += 1
            continue
        if not fields:
            blank.append(row)
            continue
        yield from ((before, {**missing, titles[0]: ""}) for before in blank)
        blank.clear()
        check_width(path, row, fields, len(titles))
        yield row, {**missing, **{name: fields[i] for name, i in indices.items()}}
    if blank:
        dropped[_BLANK] += len(blank)


def _jsonl_rows(
    path: epath.PathLike, names: Sequence[str], optional: Sequence[str], dropped: Counter[str]
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the number of each line and the values of the named keys, as text."""
    for row, line in numbered_lines(path):
        if not line.strip():
            dropped[_BLANK] += 1
            continue
        try:
            values = json_record.parse_object(line)
        except ValueError as error:
            if row == 1 + dropped[_BLANK]:
                refuse_array(path, line)
            wrong_row(path, row, str(error))
        for name in names:
            if name not in values:
                wrong_row(path, row, f"no key {name!r}{nearest(name, values)}")
        given = {name: values[name] for name in names}
        given |= {name: "" if (own := values.get(name)) is None else own for name in optional}
        yield row, {name: _text(path, row, name, value) for name, value in given.items()}


def _text(path: epath.PathLike, row: int, name: str, value: Any) -> str:
    if isinstance(value, str):
        if problem := damage(value):
            wrong_row(path, row, f"{name!r} {problem}")
        return unify_line_ends(value)
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)
    if isinstance(value, Decimal) and value.is_finite():  # of Parquet
        return f"{value:f}"
    said = json.dumps(value, default=str)[:60]
    wrong_row(path, row, f"{name!r} should be text or a number, not {said}")


def _example(
    path: epath.PathLike,
    columns: Columns,
    classes: ClassNames,
    number: int,
    row: int,
    values: dict[str, str],
) -> Example:
    texts = tuple(values[name] for name in (columns.text, columns.pair) if name is not None)
    target: int | float | None = None
    if columns.label is not None:
        name = cleaned(values[columns.label])
        if not name:
            wrong_row(path, row, f"no label in column {columns.label!r}")
        target = classes.find(name)
        if target is None:
            known = ", ".join(classes.names)[:200]
            wrong_row(path, row, f"label {name[:60]!r} is not one of {known}")
    elif columns.score is not None:
        target = score_of(path, row, values[columns.score], -math.inf, math.inf)
    return Example(str(number), texts, target, row)
