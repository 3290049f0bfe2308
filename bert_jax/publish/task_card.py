"""The task section of a model card: labels, files, and metrics on held-out examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from bert_jax.config.phase_data import PhaseDataConfig
from bert_jax.config.schema import Config
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.metrics.run_records import shown, task_metrics
from bert_jax.reporting.markdown import code, table

_SPLITS: Final = {"train": "training", "held_out": "held out"}
# Settings with paths on the machine that trained, and those of pretraining data.
UNUSED: Final = (
    *("task.data", "task.held_out", "task.tokenizer", "task.teacher", "init", "data"),
    *(f"phases[0].{field.name}" for field in fields(PhaseDataConfig)),
)


@dataclass(frozen=True)
class TaskFacts:
    """The facts about a task.

    Attributes:
        labels: names of the outputs, in the order of their ids.
        splits: of training and of held-out examples: their files, numbers and digests.
    """

    name: str
    labels: Sequence[str]
    splits: Mapping[str, Mapping[str, Any]]


def read_task(config: Config, meta: Mapping[str, Any]) -> TaskFacts | None:
    """Returns the facts about the task of a checkpoint; None if it has none."""
    if not config.task.name or not isinstance(config.model, TaskModelConfig):
        return None
    files, digests = meta.get("files", {}), meta["data"]
    splits = {
        title: {**files.get(name, {}), "digest": digests[name]} for name, title in _SPLITS.items()
    }
    return TaskFacts(config.task.name, config.model.head.labels, splits)


def data_section(task: TaskFacts) -> str:
    """Returns the section about labels and files."""
    labels = ", ".join(map(code, task.labels))
    outputs = f"; outputs, by id: {labels}" if labels else ""
    rows = [
        (
            title,
            ", ".join(split.get("files", ())),
            f"{split['digest'][:16]}…",
            f"{split['examples']:,}" if "examples" in split else "",
            f"{sum(split.get('dropped', {}).values()):,}",
        )
        for title, split in task.splits.items()
    ]
    header = ("examples", "files", "sha256 of texts and labels", "number", "rows left out")
    return f"## Task\n\n`{task.name}`{outputs}.\n\n" + table(header, rows, names=3)


def metrics_section(record: Mapping[str, Any] | None) -> str:
    """Returns the section about the held-out metrics of an "eval" record; "" without one."""
    if not record:
        return ""
    measured = {"loss": record["loss"], **task_metrics(record)}
    rows = [(name, shown(value)) for name, value in measured.items()]
    return (
        f"## Held-out metrics\n\nOn the held-out examples, at step {record['step']:,}.\n\n"
        + table(("metric", "value"), rows, names=1)
    )
