"""The nine tasks of GLUE from their original files, in the forms in which they are distributed, or
as TensorFlow Datasets prepares them (`prepared_glue.py`).

Ids of labels are those of GLUE and of transformers' models; where google-research/bert orders the
labels of MNLI otherwise, the names in an export's `id2label` say which is which. All files are
separated by tabs, and their quotes are text.
"""

# Over 300 lines: the table of nine tasks, and the one reader of the files that it describes.

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from etils import epath

from bert_jax.errors import UserError, nearest
from bert_jax.finetune.tasks import prepared_glue
from bert_jax.finetune.tasks.class_names import cleaned
from bert_jax.finetune.tasks.labeled_examples import Example, Examples
from bert_jax.finetune.tasks.rows import (
    Fields,
    check_width,
    column_index,
    delimited_rows,
    misspelled,
    numbered_lines,
    score_of,
    titles_of,
    wrong_row,
)
from bert_jax.finetune.tasks.splits import Files, find_split, split_files
from bert_jax.storage.remote import open_path

_TRAIN_DEV_TEST: Final[Files] = {name: ((f"{name}.tsv",),) for name in ("train", "dev", "test")}
_STS_COLUMNS: Final = (
    "genre", "filename", "year", "old_index", "score", "sentence1", "sentence2"
)  # fmt: skip
_MRPC_COLUMNS: Final = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
_MRPC_ORIGINAL: Final = "msr_paraphrase_train.txt"
_DEV_IDS: Final = ("dev_ids.tsv", "mrpc_dev_ids.tsv")
_ID_COLUMNS: Final = ("index", "id", "idx")


@dataclass(frozen=True)
class Task:
    """A task of GLUE: the form of its files, and its metrics.

    Attributes:
        labels: names in the order of their ids; of a regression, the name of the score.
        values: of the labels in the files; empty where they are the names.
        texts: columns of the text and of the second text.
        label: column of the label or score. A file that lacks it has no labels, and then no other
            columns than the texts, an id and `further`.
        further: columns of GLUE's files without labels.
        metrics: names in `metrics.py`, the most important first.
        files: of each split, see `splits.Files`.
        columns: file -> its columns, where it has no header.
        uneven: files without a header whose rows may have further columns.
        drops: values of the label whose rows are left out -> the reason.
        broken: whether rows with another number of columns are left out; else they are an error.
    """

    labels: tuple[str, ...]
    texts: tuple[str, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    values: tuple[str, ...] = ()
    label: str = "label"
    further: tuple[str, ...] = ()
    kind: str = "classification"
    files: Files = field(default_factory=lambda: _TRAIN_DEV_TEST)
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    uneven: frozenset[str] = frozenset()
    drops: Mapping[str, str] = field(default_factory=dict)
    broken: bool = False


_COLA_COLUMNS: Final = ("source", "label", "mark", "sentence")
_ENTAILMENT: Final = ("entailment", "not_entailment")

TASKS: Final[Mapping[str, Task]] = {
    "cola": Task(
        labels=("unacceptable", "acceptable"),
        values=("0", "1"),
        texts=("sentence",),
        metrics=("matthews", "accuracy"),
        files={
            "train": (("train.tsv",), ("in_domain_train.tsv",)),
            "dev": (("dev.tsv",), ("in_domain_dev.tsv", "out_of_domain_dev.tsv")),
            "test": (("test.tsv",),),
        },
        columns=dict.fromkeys(
            (
                "train.tsv", "dev.tsv",
                "in_domain_train.tsv", "in_domain_dev.tsv", "out_of_domain_dev.tsv",
            ),
            _COLA_COLUMNS,
        ),
    ),
    "sst2": Task(labels=("negative", "positive"), values=("0", "1"), texts=("sentence",)),
    "mrpc": Task(
        labels=("not_equivalent", "equivalent"),
        values=("0", "1"),
        texts=("#1 String", "#2 String"),
        label="Quality",
        further=("#1 ID", "#2 ID"),
        metrics=("f1", "accuracy"),
        files={
            "train": (("train.tsv",), (_MRPC_ORIGINAL,)),
            "dev": (("dev.tsv",), (_MRPC_ORIGINAL,)),
            "test": (("test.tsv",), ("msr_paraphrase_test.txt",)),
        },
    ),
    "stsb": Task(
        labels=("score",),
        texts=("sentence1", "sentence2"),
        label="score",
        further=("genre", "filename", "year", "old_index", "source1", "source2"),
        metrics=("pearson", "spearman"),
        kind="regression",
        files={split: ((f"{split}.tsv",), (f"sts-{split}.csv",)) for split in _TRAIN_DEV_TEST},
        columns={f"sts-{split}.csv": _STS_COLUMNS for split in _TRAIN_DEV_TEST},
        uneven=frozenset(f"sts-{split}.csv" for split in _TRAIN_DEV_TEST),
    ),
    "qqp": Task(
        labels=("not_duplicate", "duplicate"),
        values=("0", "1"),
        texts=("question1", "question2"),
        label="is_duplicate",
        metrics=("f1", "accuracy"),
        broken=True,
    ),
    "mnli": Task(
        labels=("entailment", "neutral", "contradiction"),
        texts=("sentence1", "sentence2"),
        label="gold_label",
        further=(
            "promptID", "pairID", "genre", "sentence1_parse", "sentence2_parse",
            "sentence1_binary_parse", "sentence2_binary_parse",
        ),
        files={
            "train": (("train.tsv",),),
            **{
                f"{split}_{kind}": ((f"{split}_{kind}.tsv",),)
                for split in ("dev", "test")
                for kind in ("matched", "mismatched")
            },
            "diagnostic": (("diagnostic.tsv",),),
        },
        drops={"-": 'gold_label is "-"'},
    ),
    "qnli": Task(labels=_ENTAILMENT, texts=("question", "sentence")),
    "rte": Task(labels=_ENTAILMENT, texts=("sentence1", "sentence2")),
    "wnli": Task(
        labels=("not_entailment", "entailment"),
        values=("0", "1"),
        texts=("sentence1", "sentence2"),
    ),
}  # fmt: skip
_BLANK: Final = "blank row"
_BROKEN: Final = "broken row"


def task_of(name: str) -> Task:
    """Returns a task by name; UserError for an unknown one."""
    if name not in TASKS:
        raise UserError(f"{name!r} is not a task of GLUE{nearest(name, TASKS)}")
    return TASKS[name]


def read_split(name: str, folder: epath.PathLike, split: str) -> Examples:
    """Reads a split of a task from the folder that has its files, or else a prepared dataset.

    Args:
        split: "train", "dev" or "test"; for mnli "dev_matched", "dev_mismatched", "test_matched",
            "test_mismatched" and "diagnostic" (AX).

    Raises:
        UserError: no such task, split or file; a row has too few or too many columns, or a label
            that is not of the task; the file is not UTF-8 or has a NUL byte. Of a prepared dataset,
            see `prepared_glue.read_prepared`.
    """
    task = task_of(name)
    there = split_files(name, folder, task.files, split)
    if not there and (prepared := prepared_glue.find_prepared(name, folder, split)):
        return prepared_glue.read_prepared(
            name, prepared, split, kind=task.kind, labels=task.labels, columns=task.texts
        )
    paths = find_split(name, open_path(folder), task.files, split)
    dropped: Counter[str] = Counter()
    examples: list[Example] = []
    for path in paths:
        examples.extend(_read_file(task, path, split, len(examples), dropped))
    where = " + ".join(map(str, paths))
    return Examples(where, task.kind, task.labels, tuple(examples), dict(dropped))


def dev_splits(name: str) -> list[str]:
    """Returns the splits of a task that a run evaluates: of mnli two."""
    return [split for split in task_of(name).files if split.startswith("dev")]


def dev_ends(name: str) -> list[str]:
    """Returns the ends of the names of metrics for each of `dev_splits`: "" and "_mismatched"."""
    return ["", *(split.removeprefix("dev") for split in dev_splits(name)[1:])]


def read_dev(name: str, folder: epath.PathLike) -> Examples:
    """Reads all that a run evaluates, one split after the other; raises as `read`."""
    found = [read_split(name, folder, split) for split in dev_splits(name)]
    if len(found) == 1:
        return found[0]
    dropped = sum((Counter(split.dropped) for split in found), Counter())
    return dataclasses.replace(
        found[0],
        path=" + ".join(split.path for split in found),
        examples=tuple(one for split in found for one in split.examples),
        dropped=dict(dropped),
        parts={end: len(split.examples) for end, split in zip(dev_ends(name), found, strict=True)},
    )


def _read_file(
    task: Task, path: epath.Path, split: str, first_id: int, dropped: Counter[str]
) -> Iterator[Example]:
    """Yields the examples of one file; counts the rows that are not among them.

    first_id: of the first row, where the file has no column of ids.
    """
    rows = delimited_rows(path, "\t", quoted=False)
    header = task.columns.get(path.name) or _header(path, rows)
    wanted = (*task.texts, task.label)
    if not any(name in header for name in wanted):
        raise UserError(
            f"{path}: the first line is not a header: it has none of the columns "
            f"{', '.join(wanted)}; add GLUE's header"
        )
    texts = [column_index(path, header, name) for name in task.texts]
    label, id_column = _label_column(task, path, header), _id_column(path, header)
    belongs = _dev_rows(path, header) if path.name == _MRPC_ORIGINAL else None
    for row, fields in rows:
        if reason := _reason_to_drop(task, path, row, fields, len(header), label):
            dropped[reason] += 1
            continue
        if belongs is not None and (tuple(fields[1:3]) in belongs) != (split == "dev"):
            dropped["in the train split" if split == "dev" else "in the dev split"] += 1
            continue
        name = str(first_id) if id_column is None else fields[id_column]
        first_id += 1
        target = None if label is None else _label(task, path, row, fields[label])
        yield Example(name, tuple(fields[i] for i in texts), target, row)


def _header(path: epath.Path, rows: Iterator[tuple[int, Fields]]) -> tuple[str, ...]:
    _, fields = next(rows, (0, None))
    if fields is None:
        raise UserError(f"{path}: empty; it should start with a header")
    return tuple(titles_of(fields))


def _label_column(task: Task, path: epath.Path, header: Sequence[str]) -> int | None:
    """Returns the index of the column of the label; None in a file without labels, whose columns
    are all known: else a damaged name would make a file one without labels."""
    if task.label in header:
        return column_index(path, header, task.label)
    known = (*task.texts, *_ID_COLUMNS, *task.further)
    other = next((name for name in header if name not in known), None)
    if other is not None:  # "" is a name, too
        raise UserError(
            f"{path}: no column {task.label!r}, but an unknown column {other!r}; rename it to "
            f"{task.label}, or remove it if the file has no labels"
        )
    return None


def _id_column(path: epath.Path, header: Sequence[str]) -> int | None:
    """Returns the index of the column of the ids; None if there is none."""
    if name := next((name for name in _ID_COLUMNS if name in header), None):
        return column_index(path, header, name)
    if found := misspelled(header, _ID_COLUMNS):
        raise UserError(f"{path}: column {found[0]!r} looks like {found[1]!r}; rename it")
    return None


def _reason_to_drop(
    task: Task, path: epath.Path, row: int, fields: Fields, width: int, label: int | None
) -> str | None:
    """Returns why a row is left out, or None; UserError for another number of columns."""
    if fields == [""] and width > 1:
        return _BLANK
    if len(fields) != width and task.broken:
        return _BROKEN
    if len(fields) < width or path.name not in task.uneven:
        check_width(path, row, fields, width)
    return None if label is None else task.drops.get(cleaned(fields[label]))


def _label(task: Task, path: epath.Path, row: int, text: str) -> int | float:
    if task.kind == "regression":
        return score_of(path, row, text, 0, 5)
    values = task.values or task.labels
    if (name := cleaned(text)) not in values:
        wrong_row(path, row, f"label {text[:60]!r} is not one of {', '.join(values)}")
    return values.index(name)


def _dev_rows(path: epath.Path, header: tuple[str, ...]) -> set[tuple[str, ...]]:
    """Returns the pairs of ids that GLUE moved from MRPC's training file to its dev split."""
    if header != _MRPC_COLUMNS:
        raise UserError(f"{path}: the header should be {', '.join(_MRPC_COLUMNS)}")
    files = [path.parent / name for name in _DEV_IDS]
    ids = next((file for file in files if file.exists()), None)
    if ids is None:
        raise UserError(
            f"{path.parent}: {_MRPC_ORIGINAL} has the rows of train and dev; copy GLUE's "
            f"{' or '.join(_DEV_IDS)} there, which says which are which"
        )
    return {tuple(line.split()) for _, line in numbered_lines(ids)}
