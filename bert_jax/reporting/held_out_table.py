"""The table of a run's held-out metrics: each objective next to its trivial baselines."""

from collections.abc import Mapping
from typing import Any, Final

from bert_jax.metrics.run_records import margin, measured_on, objectives_in, task_metrics
from bert_jax.objectives.known_objectives import OBJECTIVES
from bert_jax.objectives.sequence_classification import REGRESSION

_BASELINE: Final = (
    "A baseline is a prediction made without reading the text: for a masked token the most "
    "frequent tokens of the training text, for a sentence pair its most frequent label."
)
_TASK_BASELINE: Final = (
    "A baseline is a prediction made without reading the text: the most frequent label, or the "
    "mean score."
)


def explanation(record: Mapping[str, Any]) -> str:
    """Returns what the objectives of a record predict, what a baseline is, and what was measured
    on."""
    known = [OBJECTIVES[name] for name in objectives_in(record) if name in OBJECTIVES]
    tasks = (f"{each.name.upper()} predicts {each.task}." for each in known if each.task)
    on = measured_on(record)
    sizes = (
        [f"Measured on {on}; ± is half of a 95 % interval by the choice of documents."]
        if on
        else []
    )
    return " ".join([*tasks, _TASK_BASELINE if task_metrics(record) else _BASELINE, *sizes])


def unit(record: Mapping[str, Any]) -> str:
    """Returns the name of a loss with its unit; that of a score is a squared difference."""
    return "loss" if f"{REGRESSION.name}/loss" in record else "loss (nats)"


def titles(record: Mapping[str, Any]) -> dict[str, str]:
    """Returns name -> title of the objectives that a record has a loss of."""
    return {
        name: OBJECTIVES[name].title if name in OBJECTIVES else name
        for name in objectives_in(record)
    }


def table(record: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns the header and the rows of an "eval" record's losses and accuracies, without columns
    that no objective has. What the majority label of each source reaches is one if it differs from
    the baseline."""
    columns = {
        unit(record): ("loss", ".3f"),
        "baseline loss": ("baseline_loss", ".3f"),
        "accuracy": ("accuracy", ".1%"),
        "baseline accuracy": ("baseline_accuracy", ".1%"),
    }
    names = titles(record)
    sources = {name: record.get(f"{name}/source_accuracy") for name in names}
    if any(s not in (None, record.get(f"{n}/baseline_accuracy")) for n, s in sources.items()):
        columns["accuracy knowing only the source"] = ("source_accuracy", ".1%")
    columns = {
        title: (key, form)
        for title, (key, form) in columns.items()
        if any(f"{name}/{key}" in record for name in names)
    }
    rows = []
    for name, title in names.items():
        keys = ((f"{name}/{key}", form) for key, form in columns.values())
        rows.append((title, *(_cell(record, key, form) for key, form in keys)))
    return ("objective", *columns), rows


def _cell(record: Mapping[str, Any], key: str, form: str) -> str:
    value = record.get(key)
    return "" if value is None else f"{value:{form}}{margin(record, key, form)}"
