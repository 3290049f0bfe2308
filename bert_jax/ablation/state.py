"""The state of an ablation, which is that of its workdirs: which run is done, failed or measured.

A/ablation.json              the values of its file, and the digests of its store
A/commands/DIGEST            the line of each `ablate run` that was typed
A/runs/VARIANT/SEED/         an ordinary workdir of `bert-jax pretrain`
A/runs/VARIANT/SEED/tasks/NAME/      the same run fine-tuned for a task, a workdir of `finetune`
A/runs/VARIANT/SEED/tasks/NAME.npz   the values of its held-out examples
A/runs/VARIANT/SEED.lock     locked by the `ablate run` that makes the run
A/runs/VARIANT/SEED.npz      its held-out values, see `training/per_example.py`
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Final, Literal

from etils import epath

from bert_jax.ablation import stores, tasks
from bert_jax.ablation.spec import Ablation, Run, folder
from bert_jax.checkpoint import catalog
from bert_jax.config.ablation import AblationConfig
from bert_jax.config.serialization import flatten, from_dict, to_dict
from bert_jax.data_pipeline.storage.digest import sha256
from bert_jax.data_pipeline.storage.outputs import OutputKind, check_output
from bert_jax.data_pipeline.storage.remote import open_path, put, storage_errors
from bert_jax.errors import NUMBERS, UserError
from bert_jax.metrics import records
from bert_jax.training import per_example
from bert_jax.training.held_out_form import OWN
from bert_jax.workdir.layout import Workdir

_NAME: Final = "ablation.json"
# May change later: seeds may be added.
_SEEDS: Final = "config.seeds"
State = Literal["waiting", "trained", "text", "diverged", "measured"]


@dataclasses.dataclass(frozen=True)
class RunState:
    """state: trained to its last step; measured on all text, but not on all tasks; ended with 44;
    or measured on everything."""

    state: State
    step: int  # of its newest checkpoint, 0 without one
    reason: str = ""  # of a run that diverged


def file_of(workdir: str) -> epath.Path:
    return open_path(workdir) / _NAME


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


def describe(ablation: Ablation) -> dict[str, Any]:
    """Returns what identifies an ablation; UserError if its store cannot be read."""
    store = stores.digests(ablation.values.store)
    others = {
        variant.name: stores.digests(variant.config.data.store)
        for variant in ablation.variants
        if variant.config.data.store != ablation.values.store
    }
    about = {"config": to_dict(ablation.values), "store": store}
    return {**about, "stores": others} if others else about


def _is_ablation(folder: epath.Path) -> bool:
    """Whether `claim` wrote to a folder, or is about to."""
    if not (folder / _NAME).exists():
        return all(path.name.startswith(f".{_NAME}.") for path in folder.iterdir())
    _read(folder / _NAME)
    return True


ABLATION: Final = OutputKind("ablation", _is_ablation, is_folder=True)


def claim(workdir: str, ablation: Ablation) -> None:
    """Writes `ablation.json`, or checks that the folder is of this ablation; seeds may be added.

    Raises:
        UserError: the folder is of others, of another ablation, or of this one with another value;
            names it.
    """
    stores_ = {variant.config.data.store for variant in ablation.variants}
    check_output(workdir, ABLATION, inputs=[ablation.values.store, *stores_])
    new, path = describe(ablation), file_of(workdir)
    if path.exists():
        old = _read(path)
        _check_same(workdir, old, new)
        if old == new:
            return
    with storage_errors(path, "cannot be written"):
        put(path, (json.dumps(new, indent=2) + "\n").encode())


def note_command(workdir: str, line: str) -> None:
    """Keeps the line of a command that makes runs; each has its own file, as several may start at
    once."""
    path = _commands(workdir) / sha256(line.encode())[:12]
    with storage_errors(path, "cannot be written"):
        if not path.exists():
            put(path, f"{line}\n".encode())


def commands(workdir: str) -> list[str]:
    """Returns the lines of the commands that made runs."""
    folder_ = _commands(workdir)
    with storage_errors(folder_):
        files = sorted(folder_.iterdir()) if folder_.exists() else []
        return sorted(path.read_text().rstrip() for path in files)


def _commands(workdir: str) -> epath.Path:
    return open_path(workdir) / "commands"


def _check_same(workdir: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    before, after = _by_key(old), _by_key(new)
    for key in {**before, **after}:
        if key == _SEEDS:
            removed = set(before[key].split(",")) - set(after[key].split(","))
            if not removed:
                continue
        if before.get(key) == after.get(key):
            continue
        if key.startswith("store."):
            raise UserError(
                f"{new['config']['store']}: another store than that of the ablation in {workdir} "
                f"({key.removeprefix('store.')} differs); put the old one back, or give another "
                "--workdir"
            )
        if key != "config.store":  # a copy elsewhere is the same store
            raise UserError(
                f"{workdir}: the ablation there has {key}={before.get(key)!r}, not "
                f"{after.get(key)!r}; give another --workdir, or the file as it was"
            )


def _by_key(about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all values by their keys, those of a variant by its name, and the order of all."""
    config = about["config"]
    variants = {name: dict(own) for name, own in config["variants"]}
    tasks = {name: dict(own) for name, own in config.get("tasks", ())}
    named = {**config, "variants": variants, "changes": dict(config["changes"]), "tasks": tasks}
    return {"config.variants": ", ".join(variants)} | flatten({**about, "config": named})


def _read(path: epath.Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(path.read_bytes())
        if {"config", "store"} <= values.keys():
            return values
    except (ValueError, AttributeError):
        pass
    raise UserError(f"{path}: not written by `bert-jax ablate run`; give another --workdir")


def recorded(workdir: str) -> AblationConfig:
    """Returns the values of the ablation in a workdir; UserError if there is none."""
    path = file_of(workdir)
    if not path.exists():
        raise UserError(
            f"{workdir}: no ablation.json there; give the --workdir of `bert-jax ablate run`"
        )
    return from_dict(_read(path)["config"], AblationConfig)


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
    _, about = per_example.read(path)
    if about["step"] != step or about["run_id"] != _run_id(own, step):
        return RunState("trained", step)
    if not forms <= set(about["forms"]):
        return RunState("trained", step)
    left = filter(tasks.is_task, measures.values())
    done = all(task_examples(workdir, run, measure).exists() for measure in left)
    return RunState("measured" if done else "text", step)


def _run_id(workdir: Workdir, step: int) -> str | None:
    """Returns the id of the run that made a checkpoint, which is another one after the folder was
    deleted; None if the checkpoint is damaged."""
    try:
        found: str | None = catalog.read_meta(workdir.checkpoints, step).get("run_id")
    except catalog.DamagedError:
        return None
    return found
