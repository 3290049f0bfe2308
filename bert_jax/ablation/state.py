"""The state of an ablation, by its workdirs: which run is done, failed or measured."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from etils import epath

from bert_jax.ablation import tasks
from bert_jax.ablation.layout import AblationDir
from bert_jax.ablation.spec import Run
from bert_jax.checkpoint import catalog
from bert_jax.exit_codes import NUMBERS
from bert_jax.metrics import run_records
from bert_jax.training import per_example
from bert_jax.training.eval_setting import OWN
from bert_jax.training.per_example import DamagedValuesError, PerExample
from bert_jax.workdir.layout import Workdir

Values = tuple[dict[str, PerExample], dict[str, Any]]  # see `per_example.read_losses`
State = Literal["waiting", "trained", "text", "diverged", "damaged", "measured"]


@dataclasses.dataclass(frozen=True)
class RunState:
    """state: trained to its last step; measured on all text, but not on all tasks; ended with 44;
    with values that cannot be read; or measured on everything."""

    state: State
    step: int  # of its newest checkpoint, 0 without one
    reason: str = ""  # of a run that diverged, or is damaged
    values: Values | None = dataclasses.field(
        default=None, repr=False, compare=False
    )  # of a measured run


def state_of(workdir: AblationDir, run: Run, measures: Mapping[str, str]) -> RunState:
    """Returns where a run stands. measures: name -> full name of the form of each measure."""
    forms = {OWN, *(form for form in measures.values() if not tasks.is_task(form))}
    own = workdir.run(run)
    steps = catalog.complete_steps(own.checkpoints)
    step = max(steps, default=0)
    if step < run.config.total_steps:
        ended = [r for r in run_records.records(own.metrics) if r["kind"] in ("stopped", "start")]
        if ended and ended[-1].get("code") == NUMBERS:
            return RunState("diverged", step, str(ended[-1].get("reason", "")))
        return RunState("waiting", step)
    path = workdir.values(run)
    if not path.exists():
        return RunState("trained", step)
    try:
        values, about = values_in(path)
    except DamagedValuesError as error:
        return RunState("damaged", step, str(error))
    if about["step"] != step or about["run_id"] != _run_id(own, step):
        return RunState("trained", step)
    if not forms <= set(about["forms"]):
        return RunState("trained", step)
    left = filter(tasks.is_task, measures.values())
    done = all(workdir.values(run, measure).exists() for measure in left)
    return RunState("measured", step, values=(values, about)) if done else RunState("text", step)


def values_in(path: epath.Path) -> Values:
    """Reads a file of held-out values, see `per_example.read_losses`; its error says the remedy."""
    try:
        return per_example.read_losses(path)
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
