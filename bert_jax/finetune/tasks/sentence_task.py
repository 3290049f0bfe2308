"""Tasks that train the vectors of texts: what their kinds share.

Each text is a sequence of its own. The columns of a file have fixed names, those that
sentence-transformers gives its data sets. A run writes a folder of sentence-transformers.
"""

import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final

import numpy as np
from etils import epath

from bert_jax.config.sentence_parts import Dense, parse_dense
from bert_jax.config.task_model import TaskModelConfig, VectorConfig, VectorLoss, passage_prompt
from bert_jax.config.task_settings import TaskConfig, check_unused
from bert_jax.errors import UserError, count
from bert_jax.finetune.tasks import table
from bert_jax.finetune.tasks.class_names import is_blank
from bert_jax.finetune.tasks.encoding import Targets, encode
from bert_jax.finetune.tasks.kind import Prepared, TaskContext, TaskKind
from bert_jax.finetune.tasks.labeled_examples import Example, Examples
from bert_jax.finetune.tasks.rows import number_of, wrong_row
from bert_jax.finetune.tasks.splits import (
    TABLES,
    Files,
    divided,
    find_file,
    find_files,
    same_text,
    split_files,
)
from bert_jax.storage.remote import open_path

# The columns of the texts of each kind, without hard negatives, and of the score or the label.
_COLUMNS: Final = {
    "sentence_pairs": (("anchor", "positive"), ()),
    "scored_pairs": (("sentence1", "sentence2"), ("score",)),
    "labeled_pairs": (("sentence1", "sentence2"), ("label",)),
}
OR_SCORED: Final = ", or scored_pairs if the labels are scores"  # of labels that are numbers
_NAMES: Final = {"train": ("train",), "dev": ("dev", "val", "validation"), "test": ("test",)}
_FILES: Final[Files] = {
    split: tuple((f"{name}{end}",) for end in TABLES for name in names)
    for split, names in _NAMES.items()
}


class SentenceTask(TaskKind):
    """Rows of several texts, with a score, a label, or nothing."""

    per_token = False
    pools = True
    own_settings: tuple[str, ...] = (
        "query_prompt", "passage_prompt", "dense", "normalize", "dimensions", "retrieval",
    )  # fmt: skip

    def read(self, task: TaskConfig) -> tuple[Examples, Examples]:
        names = ", ".join(part for parts in _COLUMNS[self.name] for part in parts)
        why = f"for {self.name}, whose columns are {names}; leave it out"
        check_unused(task, ("text", "pair", "label"), why)
        self._check_one(task.data, "train")
        self._check_one(task.held_out or task.data, "dev")
        if not task.held_out and not split_files(self.name, task.data, _FILES, "dev"):
            path, other = find_file(self.name, task.data, _FILES, "train"), None
        else:
            path, other = find_files(task, _FILES)
        train = self._read(task, path, labelled=True)
        if other:
            return train, self._read(task, other, labelled=True, train=train)
        return divided(train, [self.group(one) for one in train.examples])

    def read_new(self, task: TaskConfig, source: str, split: str) -> Examples:
        path = find_file(self.name, source, _FILES, split)
        self._check_one(source, split)
        return self._read(task, path, labelled=False)

    def _read(
        self,
        task: TaskConfig,
        path: epath.PathLike,
        *,
        labelled: bool,
        train: Examples | None = None,
    ) -> Examples:
        """Reads a file; labelled: with its scores or labels. train: whose labels are known."""
        texts, target = self.columns(path, labelled=labelled)
        listed, dropped = table.read_rows(path, [*texts, *target])
        if "label" in target and "label" in _COLUMNS[self.name][1]:  # a class, not a score
            known = train.labels if train else ()
            listed, dropped = table.with_gold_label(listed, dropped, "label", known)
        if labelled and not listed:
            raise UserError(f"{path}: no examples")
        for row, values in listed:
            for name in texts:
                if is_blank(values[name]):
                    wrong_row(path, row, f"{name!r} is empty; write a text, or leave out the row")
        said = [(row, values[name]) for row, values in listed for name in target]
        names, read, remarks = self.targets(task, path, "".join(target), said, train)
        labels = read if target else [None] * len(listed)
        examples = tuple(
            Example(str(number), tuple(values[name] for name in texts), label, row)
            for number, ((row, values), label) in enumerate(zip(listed, labels, strict=True))
        )
        return Examples(str(path), self.name, names, examples, dropped, remarks)

    def _check_one(self, path: epath.PathLike, split: str) -> None:
        """Raises UserError for a folder in which several files with the columns of the kind may be
        a split."""
        if not open_path(path).is_dir():
            return
        needed = {*_COLUMNS[self.name][0]}
        files = (open_path(path) / name for (name,) in _FILES[split])
        there = [one for one in files if one.exists()]
        if len(there) > 1:  # titles are read from a whole .jsonl
            there = [one for one in there if needed <= {*table.read_titles(one)}]
        if len(there) > 1:
            raise UserError(
                f"{path}: {there[0].name} and {there[1].name} may both be its {split} split; move "
                "one away, or name the file"
            )

    def columns(
        self, path: epath.PathLike, *, labelled: bool
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the columns of texts of a file, and that of the score or the label if it is read;
        UserError if it has the columns of another kind."""
        titles = {*table.read_titles(path)}
        texts, target = _COLUMNS[self.name]
        needed = {*texts, *(target if labelled else ())}
        for kind, parts in _COLUMNS.items():
            theirs = [name for part in parts for name in part]
            if not needed <= titles and {*theirs} <= titles:
                either = kind == "labeled_pairs" and has_numbers(path, "label")
                raise UserError(
                    f"{path}: its columns {', '.join(theirs)} are those of {kind}, not of "
                    f"{self.name}; set --config.task.name={kind}{OR_SCORED if either else ''}"
                )
        return texts, target if labelled else ()

    def targets(
        self,
        task: TaskConfig,
        path: epath.PathLike,
        column: str,
        said: Sequence[tuple[int, str]],
        train: Examples | None,
    ) -> tuple[tuple[str, ...], list[Any], tuple[str, ...]]:
        """Returns the names of the outputs, the score or the label of each row, and remarks.

        Args:
            column: that of the scores or labels, "" if there is none.
            said: the number of each row with the text of its score or label.
        """
        return (), [], ()

    def group(self, example: Example) -> Hashable:
        return same_text(example.texts[0])

    def labels(self, examples: Examples) -> list[Any]:
        return [one.label for one in _of(examples) if one.label is not None]

    def content(self, examples: Examples) -> list[Any]:
        return [[one.texts, one.label] for one in _of(examples)]

    def prompts(self, task: TaskConfig, texts: int) -> tuple[str, ...]:
        """Returns what is put before each of the texts of an example."""
        return (task.query_prompt, *[passage_prompt(task, self.loss(task))] * (texts - 1))

    def arrays(self, examples: Examples) -> dict[str, np.ndarray]:
        """Returns what the loss reads of the examples beside their weights."""
        return {}

    def prepare(self, context: TaskContext, examples: Examples) -> Prepared:
        listed = _of(examples)
        several = len(listed[0].texts) if listed else len(_COLUMNS[self.name][0])
        prompts = self.prompts(context.task, several)
        texts = [
            (f"{prompt}{text}",)
            for one in listed
            for prompt, text in zip(prompts, one.texts, strict=True)
        ]
        _check_prompts(context, {"query_prompt", "passage_prompt"} & {*self.own_settings})
        encoded = encode(context.tokenizer, context.model, texts, context.limit)
        weights = {"pair_weights": np.ones(len(listed), np.float32)}
        return Prepared(
            dataclasses.replace(encoded, sequences=several),
            Targets(of_examples={**weights, **self.arrays(examples)}),
            notes=(f"{count(encoded.cut, 'text')} cut to the limit",) if encoded.cut else (),
        )

    def loss(self, task: TaskConfig) -> VectorLoss:
        """Returns what `VectorConfig.loss` is."""
        raise NotImplementedError

    def with_head_settings(self, task: TaskConfig, model: TaskModelConfig) -> TaskModelConfig:
        def with_vectors(settings: VectorConfig | None) -> TaskModelConfig:
            head = dataclasses.replace(model.head, pooling=task.pooling, vectors=settings)
            return dataclasses.replace(model, head=head)

        settings = VectorConfig(
            loss=self.loss(task),
            normalize=task.normalize,
            scale=task.scale,
            directions=task.directions,
            dense=_dense_layers(task.dense, with_vectors(None).pooled_width),
        )
        dimensions = parse_dimensions(task.dimensions, with_vectors(settings).head_width)
        return with_vectors(dataclasses.replace(settings, dimensions=dimensions))


def has_numbers(path: epath.PathLike, column: str) -> bool:
    """Returns whether a column has numbers, as scores are."""
    listed, _ = table.read_rows(path, [column])
    return any(number_of(values[column]) is not None for _, values in listed)


def text_key(text: str) -> str:
    """Returns what equal texts have in common: they may differ in white space."""
    return " ".join(text.split())


def _check_prompts(context: TaskContext, names: Iterable[str]) -> None:
    """Raises UserError for a prompt after which there is no room for a text: all vectors would be
    one."""
    for name in sorted(names):
        prompt = getattr(context.task, name)
        (ids,) = context.tokenizer.encode_texts([prompt])
        if prompt and len(ids) >= (room := context.limit - 2):
            raise UserError(
                f"config.task.{name} has {len(ids):,} tokens, but phases[0].seq_length="
                f"{context.limit} has room for {room:,}, with the text; make it shorter"
            )


def _dense_layers(text: str, width: int) -> tuple[Dense, ...]:
    """Returns the layers of `config.task.dense`; width: of the pooled states."""
    try:
        return parse_dense(text, width)
    except ValueError as error:
        raise UserError(
            f"config.task.dense={text}: {error}; give one or more layers, such as 256 or "
            "3072:Identity:no_bias,768:Identity:no_bias"
        ) from None


def parse_dimensions(text: str, width: int) -> tuple[int, ...]:
    """Returns the widths that `config.task.dimensions` lists.

    width: of a vector.

    Raises:
        UserError: not numbers from 1 to below `width`, or one of them twice.
    """
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    sizes = [int(part) for part in parts if part.isdecimal()]
    if len({*sizes}) != len(parts) or not all(0 < size < width for size in sizes):
        raise UserError(
            f"config.task.dimensions={text}; give different numbers below the width of a vector, "
            f"{width}, which is trained in any case, such as {width // 2},{width // 4}"
        )
    return tuple(sizes)


def _of(examples: Examples) -> tuple[Example, ...]:
    return examples.examples
