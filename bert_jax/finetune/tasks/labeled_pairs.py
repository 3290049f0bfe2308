"""Pairs of texts with a label, such as SNLI: `sentence1`, `sentence2`, `label`.

A prediction is the id of a label with its probability, by the head that an export leaves out.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from etils import epath

from bert_jax.config.task_settings import TaskConfig
from bert_jax.finetune.tasks import leaderboard
from bert_jax.finetune.tasks.baselines import bag_of_words, majority
from bert_jax.finetune.tasks.class_names import ClassNames, cleaned
from bert_jax.finetune.tasks.kind import Arrays, Logits, Prepared
from bert_jax.finetune.tasks.labeled_examples import Examples
from bert_jax.finetune.tasks.rows import number_of, wrong_row
from bert_jax.finetune.tasks.sentence_task import SentenceTask
from bert_jax.finetune.tasks.text_task import PredictedClass
from bert_jax.objectives.labeled_pairs import LABELED_PAIRS as OBJECTIVE


class LabeledPairs(SentenceTask):
    """Pairs with one of several labels."""

    name = "labeled_pairs"
    objectives = (OBJECTIVE.name,)
    per_example = True

    def targets(
        self,
        task: TaskConfig,
        path: epath.PathLike,
        column: str,
        said: Sequence[tuple[int, str]],
        train: Examples | None,
    ) -> tuple[tuple[str, ...], list[int], tuple[str, ...]]:
        for row, text in said:
            if not cleaned(text):
                wrong_row(path, row, "no label in column 'label'")
        classes = ClassNames(train.labels) if train else ClassNames.of(text for _, text in said)
        found = []
        for row, text in said:
            if (label := classes.find(text)) is None:
                known = ", ".join(classes.names)[:200]
                wrong_row(path, row, f"label {text[:60]!r} is not one of {known}")
            found.append(label)
        return classes.names, found, (*classes.remarks, *_may_be_scores(classes.names))

    def loss(self, task: TaskConfig) -> Any:
        return "softmax"

    def arrays(self, examples: Examples) -> dict[str, np.ndarray]:
        return {"labels": np.array(self.labels(examples), np.int32)} if examples.examples else {}

    def metrics(self, task: TaskConfig, labels: Sequence[str]) -> tuple[str, ...]:
        return ("accuracy",)

    def predictions(
        self, task: TaskConfig, examples: Examples, prepared: Prepared, logits: Logits
    ) -> list[PredictedClass]:
        """By the whole vectors, the first of the widths."""
        return [PredictedClass.of(values[0]) for values in logits]

    def teacher_outputs(self, prepared: Prepared, logits: Logits) -> Arrays:
        """Returns "logits", float32 [E, C], by the whole vectors."""
        return {"logits": np.stack([values[0] for values in logits])}

    def baselines(
        self, task: TaskConfig, train: Examples, held_out: Examples
    ) -> Mapping[str, Sequence[int]]:
        known, new = ([one.texts for one in some.examples] for some in (train, held_out))
        labels = self.labels(train)
        words = bag_of_words(known, labels, new, regression=False)
        most = majority(labels, len(new), regression=False)
        return {"majority": most.tolist(), "bag of words": words.tolist()}

    def files(
        self, task: TaskConfig, examples: Examples, predictions: Sequence[PredictedClass]
    ) -> Mapping[str, str]:
        ids = [one.id for one in examples.examples]
        names = [examples.labels[one] for one in predictions]
        shares = [one.probability for one in predictions]
        return {"out": leaderboard.table_of(ids, names, shares)}


def _may_be_scores(labels: Sequence[str]) -> list[str]:
    """Returns a remark on labels that are numbers with fractions."""
    found = [label for label in labels if (number_of(label) or 0) % 1]
    if not found:
        return []
    return [
        f"labels such as {found[0]!r} are classes; if they are scores, set "
        "--config.task.name=scored_pairs"
    ]


LABELED_PAIRS: Final = LabeledPairs()
