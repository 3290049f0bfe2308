"""Finds objectives that were not learned: no better than a constant answer."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bert_jax.ablation import statistics
from bert_jax.ablation.measured import Measured, judged, own_objectives
from bert_jax.ablation.results import Results
from bert_jax.ablation.statistics import FEWEST_DOCUMENTS, Difference
from bert_jax.objectives.known_objectives import OBJECTIVES
from bert_jax.training.eval_setting import OWN


class Unlearned(NamedTuple):
    """An objective of a variant whose loss is not below that of a constant answer."""

    variant: str
    title: str  # of the objective, or the name of the task
    loss: float  # nats, mean over seeds
    constant: float  # nats, the same of the best constant answer, for words the unigram
    difference: Difference


def unlearned(results: Results) -> Iterator[Unlearned]:
    """Yields the objectives that variants were trained with, in the form they were trained in, and
    the tasks, that were not learned.

    Not learned: the interval of the loss minus that of the best constant answer reaches zero. With
    fewer than 3 seeds the mean decides; of fewer than 10 effective documents nothing is said.
    """
    for variant in results.ablation.variants:
        runs = list(results.of(variant.name).values())
        if not runs:
            continue
        asked = [(OWN, name, OBJECTIVES[name].title) for name in own_objectives(runs[0])]
        for task in results.ablation.tasks:
            asked.append((task, judged(runs[0].forms[task])[0], task))
        for form, name, title in asked:
            found = _below(runs, form, name)
            if found:
                loss, constant = (
                    float(np.mean([each.metrics[form][f"{name}/{key}"] for each in runs]))
                    for key in ("loss", "baseline_loss")
                )
                yield Unlearned(variant.name, title, loss, constant, found)


def _below(runs: list[Measured], form: str, name: str) -> Difference | None:
    """Returns the loss minus that of a constant answer if that is not shown to be below zero; None
    if it is, if there is no such answer, or if there are too few documents to tell."""
    sums = []
    first = runs[0].forms[form]
    count = first.sums[name]["count"].astype(np.float64)
    for each in runs:
        constant = each.metrics[form].get(f"{name}/baseline_loss")
        own = each.forms[form].sums.get(name, {}).get("loss")
        if constant is None or own is None or len(own) != len(count):
            return None
        sums.append(own - constant * count)
    if not count.sum():
        return None
    kept, documents = np.unique(first.document, return_inverse=True)
    by_document = statistics.by_document(np.stack(sums), documents, len(kept))
    found = statistics.compare(by_document, statistics.by_document(count, documents, len(kept)))
    if found.effective_documents < FEWEST_DOCUMENTS:
        return None  # their interval may have no bound, whatever was learned
    highest = found.interval.high if found.judged else found.mean
    return found if highest >= 0 else None
