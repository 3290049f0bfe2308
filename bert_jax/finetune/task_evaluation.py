"""Evaluation on the labelled examples of a task: its loss and its metrics."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.finetune.batches import ExampleBatches
from bert_jax.finetune.search_measure import UNTRAINED, SearchMeasure
from bert_jax.finetune.tasks.kind import Logits, Measured
from bert_jax.metrics.retrieval import MEASURES
from bert_jax.metrics.run_records import TASK_METRIC
from bert_jax.objectives import total as objectives
from bert_jax.objectives.corpus import Corpus
from bert_jax.parallel import global_batch
from bert_jax.training.evaluation_pass import EvaluationPass
from bert_jax.training.step import StepFunctions


class HeldOutExamples(EvaluationPass):
    """The labelled examples of a task.

    Args:
        measure: returns the task's metrics from the logits of each example.
        first: the most important metric.
        per_token: whether there are logits of each token, or of each sequence.
        per_example: whether there are logits of each example of several sequences.
        search: measures the vectors in a search, too, whose first measure is then the `error`.
    """

    def __init__(
        self,
        batches: ExampleBatches,
        measure: Callable[[Logits], Measured],
        first: str,
        corpus: Corpus,
        *,
        per_token: bool,
        per_example: bool = False,
        search: SearchMeasure | None = None,
    ) -> None:
        super().__init__(corpus, batches.batch, batches.rows, batches.steps_per_epoch)
        self._batches, self._measure, self._first = batches, measure, first
        self._search = search
        self._per_token, self._per_example = per_token, per_example

    def evaluate(
        self,
        program: StepFunctions,
        params: dict,
        advance: Callable[[float], None] = lambda tokens: None,
        *,
        compiled: jax.stages.Compiled | None = None,
        begin: Callable[[], None] = lambda: None,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> dict[str, float]:
        found = super().evaluate(
            program, params, advance, compiled=compiled, begin=begin, while_waiting=while_waiting
        )
        if self._search is None:
            return found

        def next_block() -> None:
            begin()
            advance(0.0)

        measured = self._search.of_params(params, next_block)
        searched = {f"{TASK_METRIC}{name}": measured[name] for name in MEASURES}
        first, *_ = searched.values()
        return {**searched, **found, "error": 1.0 - first}

    def before_training(
        self, params: dict, begin: Callable[[], None] = lambda: None
    ) -> Mapping[str, Mapping[str, float]]:
        if self._search is None:
            return {}
        found = {
            "BM25": self._search.of_words(begin),
            UNTRAINED: self._search.of_params(params, begin),
        }
        return {name: measured for name, measured in found.items() if measured}

    def _take_rows(self, sums: dict[str, Any]) -> Any:
        logits, *_ = jax.tree.leaves(sums.pop("outputs"))  # first what predictions are made from
        return np.asarray(logits)

    def _summary(
        self, program: StepFunctions, sums: dict[str, Any], parts: list[Any]
    ) -> dict[str, float]:
        """Returns the loss, its baselines and the task's metrics, a metric that is not defined as
        NaN; and the task's `error`: 1 - its most important metric, 1 if that is not defined."""
        scalars = objectives.summarize(sums, ())
        logits = in_order(
            self._batches, parts, per_token=self._per_token, per_example=self._per_example
        )
        measured = self._measure(logits)
        first = measured[self._first]
        values = {name: math.nan if value is None else value for name, value in measured.items()}
        found = {f"{TASK_METRIC}{name}": value for name, value in values.items()}
        return {**scalars, **found, "error": 1.0 - (first or 0.0)}


def batch_on_devices(
    batches: ExampleBatches, program: StepFunctions, index: int
) -> dict[str, jax.Array]:
    """Returns a batch as global arrays."""
    rows = functools.partial(batches.batch, index)
    return global_batch.global_batch(rows, program.rows, batches.rows)


def in_order(
    batches: ExampleBatches,
    outputs: Sequence[np.ndarray],
    *,
    per_token: bool = False,
    per_example: bool = False,
) -> list[np.ndarray]:
    """Returns the logits of each example, from those of the batches of epoch 0.

    Of one sequence [L], from [B, N, L]; of its tokens, [n, L], from [B, S, L]; of C sequences
    [C, L], from [B, N·C, L], or with `per_example` [L], from [B, N, L].
    """
    found: dict[int, np.ndarray] = {}
    for index, logits in enumerate(outputs):
        for row, examples in enumerate(batches.places(0, index)):
            ends = np.cumsum([0, *batches.lengths[examples]])
            for slot, example in enumerate(examples):
                own = slot if per_example else batches.slots(slot)
                own = slice(ends[slot], ends[slot + 1]) if per_token else own
                found[example] = logits[row, own]
    return [found[example] for example in range(batches.rows_per_epoch)]
