"""Values of every held-out example of a fine-tuned run, in the file of `evaluate --per_example`.

    bert-jax evaluate --workdir=sst2 --per_example=FILE.npz

The only form is `task/NAME`, see `training/per_example.py`. `document` is the index of the example
in the held-out file: a long text that is read in several windows has a value for each of them.
"""

import time
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np
from etils import epath

from bert_jax.checkpoint.manager import chosen_step, known_run, read_own_meta, read_params
from bert_jax.config.optimizer_settings import Weights
from bert_jax.config.recorded import config_of
from bert_jax.config.schema import Config, MeshConfig
from bert_jax.errors import UserError
from bert_jax.finetune.task_data import TaskData, open_task
from bert_jax.finetune.task_evaluation import batch_on_devices
from bert_jax.objectives import total as objectives
from bert_jax.objectives.known_objectives import OBJECTIVES, learned_by
from bert_jax.parallel.mesh import make_mesh
from bert_jax.runtime.console import console, progress
from bert_jax.training import hub_names, per_example
from bert_jax.training import step as step_module
from bert_jax.training.per_example import PerExample
from bert_jax.workdir import description
from bert_jax.workdir.layout import Workdir


class Evaluated(NamedTuple):
    """Values of the held-out examples, and the loss next to that of trivial predictions."""

    values: PerExample
    metrics: Mapping[str, float]


def write_task_examples(
    folder: epath.PathLike,
    path: epath.PathLike,
    step: int | None = None,
    weights: Weights = "last",
) -> None:
    """Writes the loss and the hits of every held-out example of a fine-tuned run.

    Args:
        folder: the workdir.
        path: the file to write.
        step: of the checkpoint; by default that which `config.task.keep` names.
        weights: those of the step, or their average.

    Raises:
        UserError: no such checkpoint, or the files of the task cannot be read.
        StorageError: the file cannot be written.
    """
    run, begun = Workdir.open(folder), time.perf_counter()
    known = known_run(run)
    config = config_of(known or description.read_description(run))
    (learned,) = learned_by(config)
    if OBJECTIVES[learned].across_rows(config.model):
        raise UserError(
            f"{run}: the loss of {config.task.name} compares examples, so that none has a loss of "
            "its own; leave out --per_example"
        )
    chosen = chosen_step(run, step, known)
    meta = read_own_meta(run, chosen, known)
    hub_names.use_recorded(folder)
    data = open_task(config, run)
    _check_same(run, data, meta["data"])
    found = _evaluate(config, data, read_params(run, meta, weights))
    name = f"task/{config.task.name}"
    about = {
        "seconds": time.perf_counter() - begun,
        "run_id": meta.get("run_id"),
        "step": meta["step"],
        "held_out": data.held_out.digest,
        "sources": [],
        "forms": {name: {"settings": {}, "metrics": found.metrics}},
    }
    per_example.write(path, {name: found.values}, about)
    examples = len(data.held_out.examples.examples)
    console.print(f"{examples:,} held-out examples of {name} in {path}", markup=False)


def _check_same(run: Workdir, data: TaskData, trained_on: Mapping[str, str]) -> None:
    """Raises UserError if the files of the task are no longer those of the run: of a table without
    a held-out file, other examples would be held out, and some that the run has learned."""
    for split in ("train", "held_out"):
        if trained_on.get(split) not in (None, getattr(data, split).digest):
            raise UserError(
                f"{run}: the {split.replace('_', '-')} examples of the task are no longer those of "
                "the run (by digest); put its files back, or measure them by `bert-jax predict`"
            )


def _evaluate(config: Config, data: TaskData, params: dict) -> Evaluated:
    """Evaluates one example in a row, so that the sums of a row are those of an example."""
    mesh = make_mesh(MeshConfig(slice=1, data=1, fsdp=1, tensor=1), jax.devices()[:1])
    batches = data.one_in_a_row(config)
    program = step_module.make_step_functions(config, mesh, data.corpus(config))
    parts, numbers = [], list[int]()
    with jax.set_mesh(mesh), progress("batches", batches.steps_per_epoch) as bar:
        placed = program.placed(params)
        (task,) = bar.tasks
        for index in range(batches.steps_per_epoch):
            sums = program.evaluate_rows(placed, batch_on_devices(batches, program, index))
            own = [row for row, examples in enumerate(batches.places(0, index)) if examples]
            numbers += [batches.places(0, index)[row][0] for row in own]
            parts.append(jax.tree.map(lambda x, own=own: np.asarray(x)[own], sums))
            bar.update(task.id, advance=1)
    rows = jax.tree.map(lambda *each: np.concatenate(each), *parts)
    totals = jax.tree.map(lambda x: x.sum(0, np.float64), rows)
    del rows["tokens"]
    number = np.array(numbers, np.int64)
    source = np.zeros(len(number), np.uint16)
    values = PerExample.of_rows(number, data.held_out.example_of[number], source, rows)
    return Evaluated(values, objectives.summarize(totals, ()))
