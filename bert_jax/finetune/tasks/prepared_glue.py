"""The tasks of GLUE as TensorFlow Datasets prepares them: `glue/sst2` and so on.

Its records are the rows of the original files in another order; `idx` is the place of a row, by
which they are sorted here, so that both forms give the same examples.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from etils import epath

from bert_jax.data_pipeline.sources.prepared import (
    FEATURES,
    INFO,
    check_split,
    check_value,
    files_of,
    find_newest,
    full_name,
    info_of,
    is_text,
    only_one,
    read_records,
    text_of,
)
from bert_jax.errors import UserError, nearest
from bert_jax.finetune.tasks.labeled_examples import Example, Examples
from bert_jax.finetune.tasks.rows import score_of, wrong_row
from bert_jax.storage.read_files import path_of
from bert_jax.storage.versions import unchanged

# Features of the texts, of the tasks whose original columns have other names.
_TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "mrpc": ("sentence1", "sentence2"),
    "mnli": ("premise", "hypothesis"),
}
_LABEL: Final = "label"
_NAMES: Final = "label.labels.txt"  # a file: without it, the names of labels are their numbers
_INDEX: Final = "idx"
_UNLABELLED: Final = -1  # of every record of a test split
_DIAGNOSTIC: Final = "diagnostic"  # a split of MNLI here, a dataset of its own there
_BUILD: Final = "prepare it again with tfds build"


def find_prepared(name: str, path: epath.PathLike, split: str) -> Path | None:
    """Returns the folder that has a prepared dataset, or None if there is none at or below a path.

    Raises:
        UserError: there are several, none of them the task's.
    """
    place = path_of(os.fspath(path))
    folders = find_newest(place)
    if not folders:
        return None
    return folders.get(_stored_as(name, split)[0]) or only_one(place, folders)


def read_prepared(
    name: str,
    folder: Path,
    split: str,
    *,
    kind: str,
    labels: tuple[str, ...],
    columns: tuple[str, ...],
) -> Examples:
    """Reads a split of a task from the folder of a prepared dataset.

    Args:
        split: by its name in the original files, such as "dev".
        columns: of the texts in the original files.

    Raises:
        UserError: the dataset is another one, has no such split, is not in array_record form or is
            damaged; a label is not of the task; the extra is not installed.
    """
    info = info_of(folder, () if kind == "regression" else (_NAMES,))
    configuration, stored = _stored_as(name, split)
    if full_name(info) != f"glue/{configuration}":
        raise UserError(
            f"{folder}: the dataset is {full_name(info)}; the {split} split of {name} is in "
            f"glue/{configuration}, give its folder"
        )
    check_split(folder, info, stored)
    texts = _TEXTS.get(name, columns)
    _check_features(folder, info, texts)
    names = () if kind == "regression" else _label_names(folder, info, labels)
    files = [folder / file for file in files_of(info, stored)]
    features = (*texts, _LABEL, _INDEX)
    where, found = f"{folder}: {stored}", []
    about = [folder / name for name in (INFO, FEATURES, *([_NAMES] if names else []))]
    with unchanged([*about, *files]):
        records = [*read_records(files, stored, features, 0, info.splits[stored].num_examples)]
    for row, record in enumerate(records, start=1):
        line = f"{where}: row {row:,}"
        index = str(check_value(line, record[_INDEX]))
        said = tuple(text_of(line, text, record[text]) for text in texts)
        target = _label(where, row, check_value(line, record[_LABEL]), names, labels)
        found.append(Example(index, said, target, row))
    found.sort(key=lambda example: int(example.id))
    return Examples(" + ".join(map(str, files)), kind, labels, tuple(found), {})


def _stored_as(name: str, split: str) -> tuple[str, str]:
    """Returns the configuration of GLUE that has a split of a task, and the split's name there."""
    if split == _DIAGNOSTIC:
        return "ax", "test"
    return name, split.replace("dev", "validation")


def _check_features(folder: Path, info: Any, texts: Sequence[str]) -> None:
    for name in (*texts, _LABEL, _INDEX):
        if name not in info.features:
            raise UserError(
                f"{folder}: no feature {name!r}{nearest(name, info.features)}; {_BUILD} "
                f"{full_name(info)}"
            )
        if is_text(info.features[name]) != (name in texts):
            wanted = "text" if name in texts else "a number"
            raise UserError(
                f"{folder}: feature {name!r} is {info.features[name]}, not {wanted}; {_BUILD} "
                f"{full_name(info)}"
            )


def _label_names(folder: Path, info: Any, labels: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names of a dataset's labels in the order of their numbers there."""
    names = tuple(getattr(info.features[_LABEL], "names", None) or ())
    if sorted(names) != sorted(labels):
        raise UserError(
            f"{folder}: its labels ({_NAMES}) are {', '.join(names) or 'numbers'}, not "
            f"{', '.join(labels)}; copy it again, or {_BUILD} {full_name(info)}"
        )
    return names


def _label(
    where: str, row: int, value: Any, names: tuple[str, ...], labels: tuple[str, ...]
) -> int | float | None:
    """Returns the id of a class in the order of `labels`, a score if there are no `names`, or None
    where the record has no label."""
    if value == _UNLABELLED:
        return None
    if not names:
        # The shortest decimal of the float32 is what the original file has: 3.8, not 3.7999999.
        return score_of(where, row, str(np.float32(value)), 0, 5)
    if not 0 <= value < len(names):
        wrong_row(where, row, f"label {value} is not one of 0 to {len(names) - 1}")
    return labels.index(names[value])
