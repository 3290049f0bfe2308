"""Pairs of texts with a score of how alike they are, such as STS-B: `sentence1`, `sentence2`, and
`score`, or numbers in `label`.

A prediction is the cosine of the vectors.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from etils import epath

from bert_jax.config.schema import Config
from bert_jax.config.task_settings import TaskConfig, check_unused
from bert_jax.errors import UserError
from bert_jax.finetune.tasks import leaderboard, sentence_metrics, table
from bert_jax.finetune.tasks.baselines import word_vectors
from bert_jax.finetune.tasks.kind import Arrays, Logits, Prepared
from bert_jax.finetune.tasks.labeled_examples import Examples
from bert_jax.finetune.tasks.rows import score_of
from bert_jax.finetune.tasks.sentence_task import SentenceTask, has_numbers
from bert_jax.objectives.scored_pairs import SCORED_PAIRS as OBJECTIVE


class ScoredPairs(SentenceTask):
    """Pairs with a score from 0 to `config.task.highest_score`."""

    name = "scored_pairs"
    objectives = (OBJECTIVE.name,)
    own_settings = (*SentenceTask.own_settings, "loss", "scale", "highest_score")

    def columns(
        self, path: epath.PathLike, *, labelled: bool
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Also of a file whose column `label` has numbers, as STS-B on the hub."""
        titles = table.read_titles(path) if labelled else ()
        if "score" in titles or "label" not in titles or not has_numbers(path, "label"):
            return super().columns(path, labelled=labelled)
        texts, _ = super().columns(path, labelled=False)
        return texts, ("label",)

    def targets(
        self,
        task: TaskConfig,
        path: epath.PathLike,
        column: str,
        said: Sequence[tuple[int, str]],
        train: Examples | None,
    ) -> tuple[tuple[str, ...], list[float], tuple[str, ...]]:
        high = task.highest_score
        try:
            scores = [score_of(path, row, text, 0.0, high) / high for row, text in said]
        except UserError as error:
            remedy = f"change it, or config.task.highest_score ({high:g} now)"
            if column == "label":
                remedy += "; of a class, set --config.task.name=labeled_pairs"
            raise UserError(f"{error}; {remedy}") from None
        if task.loss == "cosent" and train is None and len(set(scores)) == 1:
            raise UserError(
                f"{path}: every score is {said[0][1]}, and CoSENT compares pairs with different "
                "ones; give such pairs, or set config.task.loss=cosine"
            )
        return ("score",), scores, ()

    def loss(self, task: TaskConfig) -> Any:
        return task.loss

    def arrays(self, examples: Examples) -> dict[str, np.ndarray]:
        labels = self.labels(examples)
        return {"scores": np.array(labels, np.float32)} if labels else {}

    def metrics(self, task: TaskConfig, labels: Sequence[str]) -> tuple[str, ...]:
        return ("spearman", "pearson")

    def predictions(
        self, task: TaskConfig, examples: Examples, prepared: Prepared, logits: Logits
    ) -> list[float]:
        return sentence_metrics.cosines(np.stack(logits)).tolist() if len(logits) else []

    def teacher_outputs(self, prepared: Prepared, logits: Logits) -> Arrays:
        """Returns "logits", the cosines, float32 [E, 1]."""
        return {"logits": sentence_metrics.cosines(np.stack(logits))[:, None]}

    def check(self, config: Config) -> None:
        if config.task.loss == "cosine":
            check_unused(config.task, ("scale",), "with config.task.loss=cosine; set loss=cosent")
        if config.task.teacher and config.task.loss == "cosent":
            raise UserError(
                f"config.task.teacher={config.task.teacher}: config.task.loss=cosent compares the "
                "scores of a batch with one another, not with a teacher's; set loss=cosine"
            )

    def baselines(
        self, task: TaskConfig, train: Examples, held_out: Examples
    ) -> Mapping[str, Sequence[float]]:
        """The cosine of counts of words, weighted by their rarity (TF-IDF)."""
        known, new = (
            [text for one in some.examples for text in one.texts] for some in (train, held_out)
        )
        vectors = word_vectors(known, new)
        if vectors is None:
            return {}
        return {"shared words": sentence_metrics.cosines(vectors).tolist()}

    def files(
        self, task: TaskConfig, examples: Examples, predictions: Sequence[float]
    ) -> Mapping[str, str]:
        ids = [one.id for one in examples.examples]
        return {"out": leaderboard.table_of(ids, [f"{one:.4f}" for one in predictions])}


SCORED_PAIRS: Final = ScoredPairs()
