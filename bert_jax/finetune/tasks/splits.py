"""The training and the held-out examples of a task: the files of a folder, or a part of a file."""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from etils import epath

from bert_jax.config.task_settings import TaskConfig
from bert_jax.data_pipeline.random.counter_rng import MIXING, permute, stream_key
from bert_jax.errors import UserError, count, nearest
from bert_jax.finetune.tasks.labeled_examples import Examples
from bert_jax.storage.hub import is_hub
from bert_jax.storage.regular_file import check_not_special
from bert_jax.storage.remote import open_path

# split -> alternatives, each one file or several that follow one another
Files = Mapping[str, tuple[tuple[str, ...], ...]]
TABLES: Final = (".tsv", ".csv", ".jsonl", ".parquet")  # by the ends of their names
_DOWNLOAD: Final = "download its files, and give their folder"
_HELD_OUT: Final = 10  # one example of ten, where no file of held-out examples is given


def split_files(
    task: str, folder: epath.PathLike, files: Files, split: str
) -> list[epath.Path] | None:
    """Returns the first alternative of which all files exist, or None; UserError for a split that
    the task does not have."""
    if split not in files:
        raise UserError(f"{task} has no split {split!r}{nearest(split, files)}")
    alternatives = ([open_path(folder) / name for name in names] for names in files[split])
    return next((paths for paths in alternatives if all(path.exists() for path in paths)), None)


def find_split(task: str, folder: epath.PathLike, files: Files, split: str) -> list[epath.Path]:
    """Returns the first alternative of which all files exist; UserError if there is none."""
    if paths := split_files(task, folder, files, split):
        return paths
    if is_hub(folder):
        columns = "--config.task.name=classification --config.task.text=COLUMN"
        raise UserError(
            f"{folder}: {task} has files of its own form; {_DOWNLOAD}, or train on the rows: "
            f"{columns}"
        )
    wanted = ", or ".join(" and ".join(names) for names in files[split])
    if not open_path(folder).is_dir():
        check_not_special(folder)
        raise UserError(f"{folder}: no such folder; give the one that has {wanted}")
    raise UserError(f"{folder}: no {split} split: {wanted} must be there")


def find_file(task: str, path: epath.PathLike, files: Files, split: str) -> epath.Path:
    """Returns a file, or that of a split in a folder; UserError if the folder has none, or for a
    dataset on the hub where a task has no tables."""
    found = open_path(path)
    names = [name for several in files.get(split, ()) for name in several]
    if is_hub(path) and names and not any(name.endswith(TABLES) for name in names):
        raise UserError(f"{path}: {task} reads no datasets of the hub; {_DOWNLOAD}")
    return find_split(task, found, files, split)[0] if found.is_dir() else found


def find_files(task: TaskConfig, files: Files) -> tuple[epath.Path, epath.Path | None]:
    """Returns the file of the training examples, and that of the held-out ones; None if these are a
    part of the first."""
    train = find_file(task.name, task.data, files, "train")
    if not task.held_out and not open_path(task.data).is_dir():
        return train, None
    return train, find_file(task.name, task.held_out or task.data, files, "dev")


def same_text(*texts: str) -> tuple[str, ...]:
    """Returns what equal texts have in common: they may differ in white space and in case."""
    return tuple(" ".join(text.lower().split()) for text in texts)


def divided(
    examples: Examples, groups: Sequence[Hashable] | None = None
) -> tuple[Examples, Examples]:
    """Splits the examples of a file: a tenth, drawn at random but always the same, is held out.

    groups: of each example; those of one group stay together. By default, each is a group.
    """
    keys = list(range(len(examples.examples)) if groups is None else groups)
    ids = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    if len(ids) < 2:
        found = count(len(keys), "example")
        if len(keys) > 1:
            found += " of one text, which are held out together"
        raise UserError(
            f"{examples.path}: {found}; give more, or the held-out ones as config.task.held_out"
        )
    order = permute(stream_key(0, 0, 0, MIXING), np.arange(len(ids)), len(ids))
    is_held_out = np.zeros(len(ids), bool)
    is_held_out[order[: max(1, len(ids) // _HELD_OUT)]] = True

    def part(chosen: bool) -> Examples:
        listed: Any = tuple(
            example
            for key, example in zip(keys, examples.examples, strict=True)
            if is_held_out[ids[key]] == chosen
        )
        return dataclasses.replace(examples, examples=listed)

    return part(False), part(True)
