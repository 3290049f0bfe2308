"""The total loss of all objectives, from sums and counts over the global batch.

A loss is sum / count over the global batch, never a mean of means, so it does not depend on how
rows are sharded. (The original normalizes per core and adds 1e-5 to the count.)
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config.task_settings import TaskConfig
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.known_objectives import OBJECTIVES
from bert_jax.objectives.soft_labels import TEACHER
from bert_jax.parallel.global_batch import Batch

ROWS = "rows"  # of the sums of an evaluation: those of each row

Sums = dict[str, dict[str, jax.Array]]  # objective -> name -> sum over the global batch


def denominators(batch: Batch, objectives: Iterable[str]) -> dict[str, jax.Array]:
    """Returns the denominator of each objective's summed loss, from the weights of a batch, whose
    arrays may have any leading dimensions.

    It is known before the forward pass, so that micro-batches add up to the loss of the batch.
    """
    learned = {name: OBJECTIVES[name] for name in objectives}
    return {
        name: objective.denominator(jnp.sum(objective.prediction_weights(batch)))
        for name, objective in learned.items()
    }


def all_sums(
    outputs: Mapping[str, jax.Array],
    batch: Batch,
    corpus: Corpus,
    counts: Mapping[str, jax.Array] | None = None,
    factors: Mapping[str, float] = MappingProxyType({}),
) -> tuple[jax.Array, Sums]:
    """Returns the training loss and the sums behind it.

    Args:
        outputs: logits of each objective.
        counts: `denominators` of the global batch, if this is a micro-batch.
        factors: of objectives' losses in the training loss, 1 for those that are not in it.
    """
    if counts is None:
        counts = denominators(batch, outputs)
    sums: Sums = {}
    loss = jnp.float32(0)
    for name, logits in outputs.items():
        sums[name] = OBJECTIVES[name].sums(logits, batch, corpus)
        own = sums[name]["loss"] / counts[name]
        loss += factors[name] * own if name in factors else own
    sums["tokens"] = {
        "real": jnp.sum(batch["example_ids"] > 0, dtype=jnp.float32),
        "all": jnp.float32(batch["example_ids"].size),
    }
    return loss, sums


def with_teacher(
    loss: jax.Array,
    sums: Sums,
    outputs: Mapping[str, jax.Array],
    batch: Batch,
    counts: Mapping[str, jax.Array],
    task: TaskConfig,
) -> tuple[jax.Array, Sums]:
    """Returns the loss and the sums of `all_sums` with those of a teacher's soft labels, if the
    batch has them; unchanged if not.

    counts: `denominators` of the global batch.
    """
    if TEACHER not in batch:
        return loss, sums
    ((name, logits),) = outputs.items()  # the objective of a task
    objective, share = OBJECTIVES[name], task.teacher_weight
    assert objective.soft is not None
    weights = objective.prediction_weights(batch)
    own = objective.soft.sums(logits, batch, weights, task.temperature)
    soft = objective.soft.scale(task.temperature) * own["teacher_loss"] / counts[name]
    return (1 - share) * loss + share * soft, {**sums, name: {**sums[name], **own}}


def row_sums(outputs: Mapping[str, jax.Array], batch: Batch, corpus: Corpus) -> Sums:
    """Returns the sums of `all_sums` for each row of a batch: their first dimension is B."""

    # A row has no dimension of rows, so that in a program that computes the sums of the batch, too,
    # the losses of the predictions have the same shapes, and XLA computes them once.
    def of_row(outputs: dict[str, jax.Array], batch: dict[str, jax.Array]) -> Sums:
        return all_sums(outputs, batch, corpus)[1]

    return jax.vmap(of_row)(dict(outputs), dict(batch))


def summarize(sums: Mapping[str, Mapping[str, Any]], sources: tuple[str, ...]) -> dict[str, float]:
    """Returns metrics, including trivial baselines, from sums over any number of batches.

    `loss` is the sum of the objectives' losses, each a mean over its predictions; that of a teacher
    is not in it, so that training and held-out examples compare. Of sums that are of no objective,
    such as how far a student is from its teacher, there are the means.
    """
    scalars = {"loss": 0.0}
    for name, own_sums in sums.items():
        if name == "tokens":
            continue
        count = max(float(own_sums["count"]), 1.0)
        if name not in OBJECTIVES:
            means = {k: float(v) / count for k, v in own_sums.items() if k != "count"}
            scalars |= {f"{name}/{what}": value for what, value in means.items()}
            continue
        own = {"loss": float(own_sums["loss"]) / count}
        if "correct" in own_sums:
            own["accuracy"] = float(own_sums["correct"]) / count
        own |= OBJECTIVES[name].baselines(own_sums, sources)
        if (soft := OBJECTIVES[name].soft) and "teacher_loss" in own_sums:
            own |= soft.summarize(own_sums, count)
        scalars["loss"] += own["loss"]
        scalars |= {f"{name}/{what}": value for what, value in own.items()}
    scalars["padding"] = 1 - float(sums["tokens"]["real"]) / float(sums["tokens"]["all"])
    return {name: float(value) for name, value in scalars.items()}
