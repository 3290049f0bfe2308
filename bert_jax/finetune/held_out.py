"""Evaluation on the labelled examples of a task: its loss and its metrics."""

import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from bert_jax.data_pipeline.batch import prefetch
from bert_jax.finetune import metrics
from bert_jax.finetune.batches import ExampleBatches
from bert_jax.metrics.records import TASK_METRIC
from bert_jax.metrics.step_metrics import SumAccumulator
from bert_jax.objectives import total as objectives
from bert_jax.objectives.corpus import Corpus
from bert_jax.parallel import global_batch
from bert_jax.training.held_out import evaluated
from bert_jax.training.step import StepFunctions


class HeldOutExamples:
    """See `run_data.HeldOutData`.

    Args:
        labels: of each example, as the metrics read them.
        names: of the task's metrics, the most important first.
    """

    def __init__(
        self,
        batches: ExampleBatches,
        labels: Sequence[int] | Sequence[float],
        names: Sequence[str],
        corpus: Corpus,
    ) -> None:
        self.corpus = corpus
        self._batches, self._labels, self._names = batches, labels, names

    def compile(self, program: StepFunctions) -> jax.stages.Compiled:
        """Compiles the evaluation step for batches of these rows."""
        return program.compile_evaluate(self._batches.batch(0, rows=[]), self._batches.rows)

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
        """Returns the loss, its baselines and the task's metrics, a metric that is not defined as
        NaN; and the task's `error`: 1 - its most important metric, 1 if that is not defined.

        Arguments as of `training.held_out.HeldOut.evaluate`.
        """
        totals, step = SumAccumulator(), functools.partial(compiled or program.evaluate, params)
        outputs = list[np.ndarray]()
        make = functools.partial(batch_on_devices, self._batches, program)
        steps = self._batches.steps_per_epoch
        prepared = prefetch(make, 0, steps, while_waiting=while_waiting)
        for sums in evaluated(prepared, step, advance, begin):
            (logits,) = sums.pop("outputs").values()
            outputs.append(np.asarray(logits))
            totals.add(sums)
        scalars = objectives.summarize(totals.sums, ())
        logits = in_order(self._batches, outputs)
        measured = metrics.measure(self._names, self._labels, predictions(logits))
        first = measured[self._names[0]]
        found = {f"{TASK_METRIC}{name}": _or_nan(value) for name, value in measured.items()}
        return {**scalars, **found, "error": 1.0 - (first or 0.0)}


def batch_on_devices(
    batches: ExampleBatches, program: StepFunctions, index: int
) -> dict[str, jax.Array]:
    """Returns a batch as global arrays."""
    rows = functools.partial(batches.batch, index)
    return global_batch.global_batch(rows, program.rows, batches.rows)


def in_order(batches: ExampleBatches, outputs: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the logits [E, C] of all examples from those of the batches of epoch 0, [B, N, C]."""
    found = np.zeros((batches.rows_per_epoch, outputs[0].shape[-1]), np.float32)
    for index, logits in enumerate(outputs):
        for row, slot, example in _slots(batches.places(0, index)):
            found[example] = logits[row, slot]
    return found


def _slots(places: list[list[int]]) -> Iterator[tuple[int, int, int]]:
    for row, examples in enumerate(places):
        for slot, example in enumerate(examples):
            yield row, slot, example


def predictions(logits: np.ndarray) -> np.ndarray:
    """Returns the class of each example, or its score where there is one output; [E]."""
    return logits[:, 0] if logits.shape[1] == 1 else logits.argmax(1)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
