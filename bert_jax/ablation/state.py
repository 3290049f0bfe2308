"""The state of an ablation, which is that of its workdirs: which run is done, failed or measured.

A/ablation.json              what was planned, see `record.py`
A/commands/DIGEST            the line of each `ablate run` that was typed
A/runs/VARIANT/SEED/         an ordinary workdir of `bert-jax pretrain`
A/runs/VARIANT/SEED/tasks/NAME/      the same run fine-tuned for a task, a workdir of `finetune`
A/runs/VARIANT/SEED/tasks/NAME.npz   the values of its held-out examples
A/runs/VARIANT/SEED.lock     locked by the `ablate run` that makes the run
A/runs/VARIANT/SEED.npz      its held-out values, see `training/per_example.py`
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from etils import epath

from bert_jax.ablation import tasks
from bert_jax.ablation.spec import Run, folder
from bert_jax.checkpoint import catalog
from bert_jax.exit_codes import NUMBERS
from bert_jax.metrics import records
from bert_jax.storage.remote import open_path
from bert_jax.training import per_example
from bert_jax.training.eval_setting import OWN
from bert_jax.training.per_example import DamagedValuesError, PerExample
from bert_jax.workdir.layout import Workdir

State = Literal["waiting", "trained", "text", "diverged", "damaged", "measured"]


@dataclasses.dataclass(frozen=True)
class RunState:
    """state: trained to its last step; measured on all text, but not on all tasks; ended with 44;
    with values that cannot be read; or measured on everything."""

    state: State
    step: int  # of its newest checkpoint, 0 without one
    reason: str = ""  # of a run that diverged, or is damaged


def examples_of(workdir: str, run: Run) -> epath.Path:
    """Returns the file of a run's held-out values."""
    path = open_path(folder(workdir, run))
    return path.with_name(f"{path.name}.npz")


def task_folder(workdir: str, run: Run, measure: str) -> str:
    """Returns the workdir of a run that was fine-tuned for a task."""
    return f"{folder(workdir, run)}/tasks/{measure.removeprefix(tasks.PREFIX)}"


def task_examples(workdir: str, run: Run, measure: str) -> epath.Path:
    """Returns the file of the values of its held-out examples."""
    return open_path(f"{task_folder(workdir, run, measure)}.npz")


def lock_of(workdir: str, run: Run) -> epath.Path:
    """Returns the file that is locked while `ablate run` makes a run."""
    path = open_path(folder(workdir, run))
    return path.with_name(f"{path.name}.lock")


def state_of(workdir: str, run: Run, measures: Mapping[str, str]) -> RunState:
    """Returns where a run stands. measures: name -> full name of the form of each measure."""
    forms = {OWN, *(form for form in measures.values() if not tasks.is_task(form))}
    own = Workdir.open(folder(workdir, run))
    steps = catalog.complete_steps(own.checkpoints)
    step = max(steps, default=0)
    if step < run.config.total_steps:
        ended = [r for r in records.records(own.metrics) if r["kind"] in ("stopped", "start")]
        if ended and ended[-1].get("code") == NUMBERS:
            return RunState("diverged", step, str(ended[-1].get("reason", "")))
        return RunState("waiting", step)
    path = examples_of(workdir, run)
    if not path.exists():
        return RunState("trained", step)
    try:
        _, about = values_in(path)
    except DamagedValuesError as error:
        return RunState("damaged", step, str(error))
    if about["step"] != step or about["run_id"] != _run_id(own, step):
        return RunState("trained", step)
    if not forms <= set(about["forms"]):
        return RunState("trained", step)
    left = filter(tasks.is_task, measures.values())
    done = all(task_examples(workdir, run, measure).exists() for measure in left)
    return RunState("measured" if done else "text", step)


def values_in(path: epath.Path) -> tuple[dict[str, PerExample], dict[str, Any]]:
    """Reads a file of held-out values, see `per_example.read`; its error says the remedy."""
    try:
        return per_example.read(path)
    except DamagedValuesError as error:
        remedy = "delete it, and `bert-jax ablate run` measures the run again"
        raise DamagedValuesError(f"{error}; {remedy}") from error


def _run_id(workdir: Workdir, step: int) -> str | None:
    """Returns the id of the run that made a checkpoint, which is another one after the folder was
    deleted; None if the checkpoint is damaged."""
    try:
        found: str | None = catalog.read_meta(workdir.checkpoints, step).get("run_id")
    except catalog.DamagedError:
        return None
    return found
