"""Tags of words, such as the names in a sentence: CoNLL files.

A prediction has the tag of each word of a sentence.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from bert_jax.config.task_settings import TaskConfig
from bert_jax.errors import UserError, count
from bert_jax.finetune.tasks import conll, metrics, tagging
from bert_jax.finetune.tasks.encoding import Targets, joined
from bert_jax.finetune.tasks.kind import (
    Arrays,
    Logits,
    Measured,
    Prepared,
    TaskContext,
    TaskKind,
)
from bert_jax.finetune.tasks.labeled_examples import Examples, Words
from bert_jax.finetune.tasks.splits import Files, divided, find_file, find_files, same_text
from bert_jax.objectives.soft_labels import TEACHER
from bert_jax.objectives.token_classification import TOKEN_CLASSIFICATION

_FILES: Final[Files] = {
    "train": (("train.txt",), ("train.conll",), ("eng.train",)),
    "dev": (("dev.txt",), ("valid.txt",), ("dev.conll",), ("eng.testa",)),
    "test": (("test.txt",), ("test.conll",), ("eng.testb",)),
}
Tags = list[str]  # of the words of a sentence


class TaggingTask(TaskKind):
    """Sentences in words, each with a tag."""

    name = "tagging"
    objectives = (TOKEN_CLASSIFICATION.name,)
    in_words = True
    settings = ("text",)

    def read(self, task: TaskConfig) -> tuple[Examples, Examples]:
        path, other = find_files(task, _FILES)
        word, tag = _column(task, "text"), _column(task, "label")
        train = conll.read_sentences(path, word=word, tag=tag)
        if not other:
            return divided(train, [self.group(one) for one in _of(train)])
        return train, conll.read_sentences(other, labels=train.labels, word=word, tag=tag)

    def read_new(self, task: TaskConfig, source: str, split: str) -> Examples:
        path = find_file(self.name, source, _FILES, split)
        return conll.read_sentences(path, labelled=False, word=_column(task, "text"))

    def group(self, example: Words) -> tuple[str, ...]:
        return same_text(*example.words)

    def labels(self, examples: Examples) -> list[int]:
        return [label for one in _of(examples) for label in one.labels or ()]

    def content(self, examples: Examples) -> list[Any]:
        return [[list(one.words), list(one.labels or ())] for one in _of(examples)]

    def prepare(self, context: TaskContext, examples: Examples) -> Prepared:
        made = tagging.windows(_of(examples), context.tokenizer, context.limit)
        labels, weights = zip(*map(tagging.token_labels, made), strict=True)
        arrays = {"token_labels": np.concatenate(labels), "token_weights": np.concatenate(weights)}
        encoded = joined([window.token_ids for window in made])
        cut = sum(window.cut for window in made)
        notes = (f"{count(cut, 'word')} cut to a row of {context.limit} tokens",) if cut else ()
        return Prepared(encoded, Targets(of_tokens=arrays), tuple(made), notes)

    def metrics(self, task: TaskConfig, labels: Sequence[str]) -> tuple[str, ...]:
        return ("f1", "precision", "recall", "accuracy")

    def predictions(
        self, task: TaskConfig, examples: Examples, prepared: Prepared, logits: Logits
    ) -> list[Tags]:
        found = tagging.predict(_of(examples), prepared.windows, logits)
        return [[examples.labels[tag] for tag in tags.tolist()] for tags in found]

    def teacher_outputs(self, prepared: Prepared, logits: Logits) -> Arrays:
        """Returns "logits", float32 [W, C], of all words of all sentences after one another."""
        return {"logits": tagging.of_words(prepared.windows, logits)}

    def soft_targets(self, outputs: Arrays, prepared: Prepared, temperature: float) -> Targets:
        """The tags of a word are on its first piece, as its label is."""
        soft = self.softened(outputs["logits"], temperature)
        return Targets(of_tokens={TEACHER: tagging.on_tokens(prepared.windows, soft)})

    def compute_metrics(
        self, task: TaskConfig, examples: Examples, predictions: Sequence[Tags]
    ) -> Measured:
        """Returns the metrics of entities, and the accuracy of the tags of all words."""
        ids = {name: number for number, name in enumerate(examples.labels)}
        predicted = [ids[tag] for tags in predictions for tag in tags]
        accuracy = metrics.measure(["accuracy"], self.labels(examples), predicted)
        return {**metrics.entities(_tags(examples), predictions), **accuracy}

    def baselines(
        self, task: TaskConfig, train: Examples, held_out: Examples
    ) -> Mapping[str, Sequence[Tags]]:
        """The most frequent tag, and that of each word; a new word has the former."""
        seen: dict[str, Counter[str]] = {}
        for sentence, tags in zip(_of(train), _tags(train), strict=True):
            for word, tag in zip(sentence.words, tags, strict=True):
                seen.setdefault(word, Counter())[tag] += 1
        ((usual, _),) = sum(seen.values(), Counter[str]()).most_common(1)
        by_word = {word: counts.most_common(1)[0][0] for word, counts in seen.items()}
        words = [one.words for one in _of(held_out)]
        return {
            "majority": [[usual] * len(one) for one in words],
            "tag of the word": [[by_word.get(word, usual) for word in one] for one in words],
        }

    def files(
        self, task: TaskConfig, examples: Examples, predictions: Sequence[Tags]
    ) -> Mapping[str, str]:
        """A word and its tag on a line, a blank line after a sentence."""
        lines = []
        for sentence, tags in zip(_of(examples), predictions, strict=True):
            lines += [f"{word} {tag}\n" for word, tag in zip(sentence.words, tags, strict=True)]
            lines.append("\n")
        return {"out": "".join(lines)}


def _column(task: TaskConfig, key: str) -> int | None:
    """Returns the number of a column, from 1; None for the default."""
    value = getattr(task, key)
    if value == getattr(TaskConfig(), key):
        return None
    if not (value.isdecimal() and int(value) > 0):
        raise UserError(
            f"config.task.{key}={value}: for CoNLL files give the number of a column, from 1"
        )
    return int(value)


def _of(examples: Examples) -> tuple[Words, ...]:
    return examples.examples


def _tags(examples: Examples) -> list[Tags]:
    return [[examples.labels[label] for label in one.labels or ()] for one in _of(examples)]


TAGGING: Final = TaggingTask()
