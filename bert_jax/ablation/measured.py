"""The held-out values of a run, and whether they are those that `bert-jax evaluate` writes.

A file of values may be damaged or of another version, and records of training too. What a report
computes with is checked here, once, before it is a `Measured` that counts.
"""

import collections
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from bert_jax.ablation import as_planned
from bert_jax.ablation.budget import Budget
from bert_jax.ablation.spec import Ablation, Run
from bert_jax.ablation.tasks import is_task
from bert_jax.data_pipeline.pairing.modes import PAIRS
from bert_jax.metrics import run_records
from bert_jax.objectives.known_objectives import OBJECTIVES
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.training.eval_setting import OWN
from bert_jax.training.per_example import PerExample

REMEDY = "removing its .npz file is enough"
_ROUNDING: Final = 1e-3  # of a prediction, by which a sum may be beyond its bounds


@dataclasses.dataclass(frozen=True)
class Measured:
    """The held-out values of a run, by the full name of their form."""

    run: Run
    forms: Mapping[str, PerExample]
    metrics: Mapping[str, Mapping[str, Any]]
    bigram_loss: float
    sources: Sequence[str]
    spent: Budget
    is_recorded: bool  # updates and real tokens of `spent`, else they are not known
    software: Mapping[str, str]  # package -> version, "devices" -> kind and number
    seconds: float  # that its evaluation took, fine-tuning for tasks included


def judged(examples: PerExample) -> tuple[str, Mapping[str, np.ndarray]]:
    """Returns the objective that a form compares, and its sums: masked tokens, or the task's."""
    name = MASKED_LM.name
    if name not in examples.sums:
        (name,) = examples.sums
    return name, examples.sums[name]


def own_objectives(each: Measured) -> list[str]:
    """Returns the names of the objectives that a run was trained with."""
    return list(each.forms[OWN].sums)


def not_finite(each: Measured) -> str:
    """Returns where values of a run are not finite, "" if all are."""
    for form, examples in each.forms.items():
        for objective, sums in examples.sums.items():
            for what, values in sums.items():
                if bad := int((~np.isfinite(values)).sum()):
                    return f"{bad} of {len(values)} of {objective}/{what} in {form}"
        for key, value in each.metrics[form].items():
            if _is_loss(key) and (value is None or not math.isfinite(value)):
                return f"{key} in {form}"
    return ""


def _is_loss(key: str) -> bool:
    return key.endswith(("/loss", "/baseline_loss"))


def damage(ablation: Ablation, each: Measured) -> str:
    """Returns which values of a run are not those that are written, "" if all are; some may still
    not be finite, see `not_finite`."""
    forms = {OWN, *map(ablation.form, ablation.measures)}
    for form in each.forms:
        if form in forms and (what := next(_of_form(form, each), "")):
            return f"{what} in {form} not as `bert-jax evaluate` writes it ({REMEDY})"
    if each.bigram_loss < 0:
        return f"bigram_loss not as `bert-jax evaluate` writes it ({REMEDY})"
    if min(each.spent.steps, each.spent.real_tokens) <= 0:
        return "no update that was not skipped, or no token, in its records"
    return ""


def _of_form(form: str, each: Measured) -> Iterator[str]:
    """Yields which values of a form are not those that are written."""
    examples, metrics = each.forms[form], each.metrics[form]
    of_task = is_task(form)
    for name in ("document", "source"):
        values = getattr(examples, name)
        if values.dtype.kind not in "iu" or (values < 0).any():
            yield name
    if not of_task and (examples.source >= len(each.sources)).any():
        yield "source"
    pairs = {form.partition("/")[0]} & set(PAIRS)  # a form that has them measures both heads
    expected = set(OBJECTIVES) if form == OWN else {MASKED_LM.name, *pairs}
    if of_task and len(examples.sums) != 1:
        yield "objective"
    if not of_task and not {MASKED_LM.name} <= set(examples.sums) <= expected:
        yield "objective"
    for objective, sums in examples.sums.items():
        compared = form != OWN or objective == MASKED_LM.name
        if not {"loss", "count"} <= set(sums):
            yield objective
        elif (sums["count"] < 0).any() or (compared and not sums["count"].any()):
            yield f"{objective}/count"
        else:
            yield from (f"{objective}/{name}" for name in _beyond(sums))
        needed = ["loss"] if of_task or not compared else ["loss", "baseline_loss"]
        for key in (f"{objective}/{name}" for name in needed):
            if key not in metrics:
                yield key
    for key, value in metrics.items():
        if _is_loss(key) and (not _is_number(value) or _is_outside(value, math.inf)):
            yield key
        if key.endswith("/accuracy") and _is_outside(value, 1):
            yield key


def _beyond(sums: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Yields which sums are beyond what their counts allow: a cross-entropy is never negative, and
    no more predictions are right than there are."""
    slack = _ROUNDING * sums["count"]
    if (np.isfinite(sums["loss"]) & (sums["loss"] < -slack)).any():
        yield "loss"
    correct = sums.get("correct", 0)
    if (np.isfinite(correct) & ((correct < -slack) | (correct > sums["count"] + slack))).any():
        yield "correct"


def _is_outside(value: float | None, most: float) -> bool:
    """Returns whether a mean is a number that is not from 0 to `most`."""
    return run_records.is_finite(value) and not -_ROUNDING <= value <= most + _ROUNDING


def _is_number(value: Any) -> bool:
    """Returns whether a value is a number, finite or not; JSON has null for one that is not."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def on_others(ablation: Ablation, measured: Mapping[str, Measured]) -> Iterator[tuple[str, str]]:
    """Yields runs that were not measured on the examples of most of them, and where. If there are
    as many of several examples, all such runs: which are those of the text is unknown."""
    for form in map(ablation.form, ablation.measures):
        groups = collections.defaultdict(list)
        for name, each in measured.items():
            groups[_examples(each.forms[form])].append(name)
        for key in as_planned.unusual(groups):
            for name in groups[key]:
                yield name, f"measured on other examples in {form} than other runs ({REMEDY})"


def _examples(examples: PerExample) -> tuple[Any, ...]:
    """Returns what is equal if and only if values are of the same examples."""
    _, sums = judged(examples)
    arrays = (examples.document.astype(np.int64), examples.source.astype(np.int64), sums["count"])
    return tuple(sorted(sums)), *(values.tobytes() for values in arrays)
