"""Pairs of texts that belong together, such as a question and its answer: in-batch negatives.

The columns are `anchor`, `positive` and, as many as there are, `negative` or `negative_1` and so
on: texts that do not belong to the anchor. A prediction is the cosine of anchor and positive.
"""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from etils import epath

from bert_jax.config.task_settings import TaskConfig
from bert_jax.errors import UserError, count
from bert_jax.finetune.tasks import leaderboard, sentence_metrics, table
from bert_jax.finetune.tasks.baselines import word_vectors
from bert_jax.finetune.tasks.class_names import cleaned
from bert_jax.finetune.tasks.kind import Logits, Measured, Prepared
from bert_jax.finetune.tasks.labeled_examples import Example, Examples
from bert_jax.finetune.tasks.rows import misspelled, number_of, wrong_row
from bert_jax.finetune.tasks.sentence_metrics import Ranked
from bert_jax.finetune.tasks.sentence_task import OR_SCORED, SentenceTask, text_key
from bert_jax.finetune.tasks.splits import same_text
from bert_jax.objectives.in_batch_negatives import IN_BATCH_NEGATIVES, is_candidate

_NEGATIVE: Final = re.compile(r"negative(?:_(\d+))?")
_END: Final = r"(?:[\W_]?\d+)?(?:[\W_]?(?:text|passage|document|doc|sentence))?"
# hard_negative, negatives, neg_1, negative_1_text
_ALIKE: Final = re.compile(rf"(?:.*[\W_])?neg(?:ative)?s?{_END}", re.IGNORECASE)
# Columns of other kinds of pairs, by name.
_TARGETS: Final = {"label": "labeled_pairs", "score": "scored_pairs"}
_SECOND: Final = re.compile(rf"positives?{_END}|pos[\W_]?\d+", re.IGNORECASE)


class SentencePairs(SentenceTask):
    """Anchors, each with the text that belongs to it."""

    name = "sentence_pairs"
    objectives = (IN_BATCH_NEGATIVES.name,)
    remedy = "give more pairs, or others by config.task.held_out"
    own_settings = (*SentenceTask.own_settings, "directions", "scale")

    def columns(
        self, path: epath.PathLike, *, labelled: bool
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        texts, target = super().columns(path, labelled=labelled)
        if not labelled:  # a prediction is about the positive, and reads no negatives
            return texts, target
        titles = table.read_titles(path)
        if not {*texts} <= {*titles}:
            return texts, target  # which `read_rows` refuses
        found = negative_columns(titles)
        others = [name for name in titles if name not in (*texts, *found)]
        alike = misspelled(others, ("negative",)) or (None,)
        if wrong := next((name for name in others if _ALIKE.fullmatch(name)), alike[0]):
            raise UserError(
                f"{path}: column {wrong!r} is nearly 'negative'; rename it to that, or to "
                "negative_1 and so on, or to something else"
            )
        if second := next((name for name in others if _SECOND.fullmatch(name)), None):
            raise UserError(
                f"{path}: column {second!r} is not read, as a row has one positive; write a row "
                "for each, or rename the column to something else"
            )
        for name in others:
            if name.casefold() in _TARGETS:
                _check_target(path, name)
        return (*texts, *found), target

    def group(self, example: Example) -> Hashable:
        """A text with several anchors, such as a paragraph with its questions, stays whole."""
        return same_text(example.texts[1])

    def labels(self, examples: Examples) -> list[str]:
        return [one.texts[1] for one in examples.examples]

    def useless(self, examples: Examples) -> str:
        texts = {one.texts[1:] for one in examples.examples}
        if len(texts) != 1 or len(*texts) > 1:  # negatives are ranked, too
            return ""
        return f"all held-out pairs have one positive, so that nothing is ranked; {self.remedy}"

    def loss(self, task: TaskConfig) -> Any:
        return "negatives"

    def arrays(self, examples: Examples) -> dict[str, np.ndarray]:
        """Returns "texts", int32 [E, C]: numbers from 1, the same for equal texts."""
        numbers: dict[str, int] = {}
        found = [
            [numbers.setdefault(text_key(text), len(numbers) + 1) for text in one.texts]
            for one in examples.examples
        ]
        several = len(found[0]) if found else 2
        return {"texts": np.array(found, np.int32).reshape(-1, several)}

    def check_batches(
        self, examples: Examples, prepared: Prepared, batches: Iterable[np.ndarray]
    ) -> None:
        texts = prepared.targets.of_examples["texts"]
        for chosen in batches:
            own, index = texts[chosen], np.arange(len(chosen))
            for rows in (index[:1], index):  # the first has a negative in nearly every batch
                if (is_candidate(own[rows, 0], own, rows, np).sum(1) > 1).any():
                    break
            else:
                _refuse(examples, chosen, len(texts))

    def metrics(self, task: TaskConfig, labels: Sequence[str]) -> tuple[str, ...]:
        return ("accuracy", "mrr")

    def predictions(
        self, task: TaskConfig, examples: Examples, prepared: Prepared, logits: Logits
    ) -> list[Ranked]:
        if not len(logits):
            return []
        return sentence_metrics.ranked(prepared.targets.of_examples["texts"], np.stack(logits))

    def compute_metrics(
        self, task: TaskConfig, examples: Examples, predictions: Sequence[Ranked]
    ) -> Measured:
        """Returns how often the positive is the nearest candidate, among 64 examples at a time,
        and the mean of 1 / rank."""
        return sentence_metrics.measure_ranks(predictions)

    def baselines(
        self, task: TaskConfig, train: Examples, held_out: Examples
    ) -> Mapping[str, Sequence[Ranked]]:
        """The cosine of counts of words, weighted by their rarity (TF-IDF)."""
        known, new = (
            [text for one in some.examples for text in one.texts] for some in (train, held_out)
        )
        vectors = word_vectors(known, new)
        if vectors is None:
            return {}
        return {"shared words": sentence_metrics.ranked(self.arrays(held_out)["texts"], vectors)}

    def files(
        self, task: TaskConfig, examples: Examples, predictions: Sequence[float]
    ) -> Mapping[str, str]:
        ids = [one.id for one in examples.examples]
        return {"out": leaderboard.table_of(ids, [f"{float(one):.4f}" for one in predictions])}


def negative_columns(titles: Iterable[str]) -> dict[str, int]:
    """Returns the columns of negatives with their numbers, in the order of these; `negative` has
    0."""
    found = {name: match for name in titles if (match := _NEGATIVE.fullmatch(name))}
    numbers = {name: int(match[1] or 0) for name, match in found.items()}
    return dict(sorted(numbers.items(), key=lambda item: item[1]))


def _check_target(path: epath.PathLike, name: str) -> None:
    """Raises UserError for a column of labels or scores that tells pairs apart, or from pairs that
    belong together."""
    listed, _ = table.read_rows(path, ["anchor"], [name])
    found = [(row, values[name], _plain(values[name])) for row, values in listed]
    kind = _TARGETS[name.casefold()]
    for row, text, value in found:
        if value in (0.0, "false") or value != found[0][2]:
            either = kind == "labeled_pairs" and isinstance(value, float)
            wrong_row(
                path, row, f"{name} {text[:60]!r}, but each row is learned as a pair that belongs "
                "together; leave out the rows that do not, and the column, or name the columns "
                f"sentence1, sentence2, {name.casefold()} for "
                f"--config.task.name={kind}{OR_SCORED if either else ''}"
            )  # fmt: skip


def _plain(text: str) -> float | str:
    """Returns a number, or else the text in lower case."""
    number = number_of(text)
    return cleaned(text).casefold() if number is None else number


def _refuse(examples: Examples, chosen: np.ndarray, total: int) -> None:
    """Raises UserError for a batch in which no anchor has a negative."""
    first: Example = examples.examples[chosen[0]]
    size = len(chosen)
    if size == 1:
        rest = f"the last batch of an epoch of {count(total, 'pair')} has it alone"
        problem = rest if total > 1 else "it is the only pair for training"
        remedy = "set another config.phases[0].batch_size" if total > 1 else "give more pairs"
    else:
        pairs = f"in its batch of {size:,} pairs"
        problem = f"{pairs} every candidate belongs to its anchor or equals it"
        remedy = "give pairs of other texts, or a larger config.phases[0].batch_size"
    wrong_row(
        examples.path, first.row, f"{problem}, so that no pair has a negative; {remedy}, or give "
        "columns of negatives"
    )  # fmt: skip


SENTENCE_PAIRS: Final = SentencePairs()
