"""The heads of tasks in transformers' `config.json`: their labels, their loss and their dropout."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bert_jax.config import task_model
from bert_jax.config.ranges import BelowOne
from bert_jax.config.schema import ModelConfig
from bert_jax.config.task_model import HeadConfig, Labels, TaskModelConfig
from bert_jax.convert.layouts.known_layouts import find_layout
from bert_jax.convert.layouts.layout import CHOICE, CLASSIFIER, Layout
from bert_jax.data_pipeline.settings import checked, shown
from bert_jax.errors import UserError, count
from bert_jax.objectives.known_objectives import OBJECTIVES, head_title, task_heads, tasks_with

# The keys of config.json with the settings of a head, in any layout.
KEYS: Final = (
    "id2label", "label2id", "problem_type", "classifier_dropout",
    "classifier_dropout_prob", "seq_classif_dropout",
    "qa_dropout", "summary_last_dropout", "finetuning_task",
)  # fmt: skip
_DEFAULT_LABELS: Final = 2  # of transformers, which leaves them out


def with_head(
    model: ModelConfig,
    name: str,
    labels: Sequence[str],
    *,
    problem_type: str | None = None,
    dropout: float | None = None,
) -> TaskModelConfig:
    """Returns the configuration of a model with the head of a task, as its layout computes it.

    Args:
        name: of the head, see `HeadConfig`.
        dropout: at the input of its output layer; None for the default of transformers.

    Raises:
        UserError: transformers has no class for the model with this head, or the head has another
            number of labels.
    """
    layout, needed = find_layout(model), OBJECTIVES[tasks_with(name)[0]].labels
    if needed not in (None, len(labels)):
        raise UserError(f"{count(len(labels), 'label')}, but a {head_title(name)} needs {needed}")
    if layout.computes_otherwise(name):
        raise UserError(
            f"no class of transformers for {layout.prefix} has the {head_title(name)} of bert-jax; "
            "give a model of another layout"
        )
    head = HeadConfig(
        name=name,
        labels=tuple(labels),
        problem_type=problem_type,
        dense=layout.dense.get(name),
        norm=layout.head_norm and name in layout.dense,
        dropout=_default_dropout(layout, name, model) if dropout is None else dropout,
        drops_input=name == CLASSIFIER and layout.classifier_drops_input,
        pooling=model.classifier_pooling if name in (CLASSIFIER, CHOICE) else "cls",
    )
    return task_model.with_head(model, head)


def task_of_class(layout: Layout, architectures: Any) -> str | None:
    """Returns the task's head of the class that a config.json names; None if it has none."""
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    found = layout.find_class(name) if isinstance(name, str) else None
    return next(iter(found.heads & task_heads()), None) if found else None


def read_head(
    name: str, values: Mapping[str, Any], model: ModelConfig, layout: Layout
) -> TaskModelConfig:
    """Returns the configuration of a model whose head a config.json describes; UserError for a
    setting that is not valid."""
    problem, known = values.get("problem_type"), tasks_with(CLASSIFIER)
    if problem not in (None, *known):
        raise UserError(f"problem_type={shown(problem)} is not one of {', '.join(known)}")
    key, _ = layout.head_dropout.get(name, ("", None))
    rate = values.get(key)
    return with_head(
        model,
        name,
        _labels(values),
        problem_type=problem,
        dropout=None if rate is None else checked(rate, BelowOne, key),
    )


def head_json(config: TaskModelConfig, layout: Layout) -> dict[str, Any]:
    """Returns the settings of a head as keys of config.json."""
    head = config.head
    values: dict[str, Any] = {
        "id2label": {str(i): label for i, label in enumerate(head.labels)},
        "label2id": {label: i for i, label in enumerate(head.labels)},
    }
    if head.problem_type:
        values["problem_type"] = head.problem_type
    if head.dropout != _default_dropout(layout, head.name, config):
        values[layout.head_dropout[head.name][0]] = head.dropout
    return values


def kept_settings(source: Mapping[str, Any], config: ModelConfig) -> dict[str, Any]:
    """Returns the settings of a head in the config.json of an imported model, which stay as they
    are, except names for another number of labels."""
    kept = {name: source[name] for name in KEYS if name in source}
    if not isinstance(config, TaskModelConfig):
        return kept
    named = len(kept.get("id2label") or ()) == len(config.head.labels)
    return {name: kept[name] for name in kept if named or name not in ("id2label", "label2id")}


def _default_dropout(layout: Layout, name: str, model: ModelConfig) -> float:
    if name not in layout.head_dropout:
        return 0.0
    _, default = layout.head_dropout[name]
    return model.hidden_dropout_prob if default is None else default


def _labels(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the outputs: without names for `num_labels` of them, as transformers,
    LABEL_0 and so on."""
    given = values.get("id2label")
    number = values.get("num_labels")
    if number is not None:
        checked(number, Labels, "num_labels")
    if given is None:
        return _unnamed(_DEFAULT_LABELS if number is None else number)
    ids = [str(i) for i in range(len(given))] if isinstance(given, dict) else []
    if not ids or given.keys() != set(ids) or not all(isinstance(x, str) for x in given.values()):
        raise UserError(f"id2label={shown(given)} should name the labels from 0 on")
    return tuple(given[i] for i in ids) if number in (None, len(ids)) else _unnamed(number)


def _unnamed(number: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{i}" for i in range(number))
