"""The first steps of a run on a task, on any mesh."""

import jax
import numpy as np

from bert_jax.config.schema import Config
from bert_jax.finetune.batches import ExampleBatches
from bert_jax.finetune.task_data import open_task
from bert_jax.parallel import global_batch
from bert_jax.parallel.mesh import MESH_AXES, make_mesh
from bert_jax.training.step import make_step_functions
from bert_jax.workdir.layout import Workdir

SGD = {
    "optimizer.eps": 1.0, "optimizer.weight_decay": 0.0, "optimizer.clip_norm": 0.0,
    "optimizer.learning_rate": 0.3, "task.warmup_share": 0.0,
}  # fmt: skip


def batches_of(config: Config, parts: int = 1) -> tuple[Config, ExampleBatches]:
    data = open_task(config, Workdir.open("/nowhere/run"))
    config = data.configured(config)
    (phase,) = config.phases
    return config, data._batches(data.train, config, phase, config.seed, phase.steps, parts)


def trained(config: Config, count: int, devices: int = 1) -> tuple[list[float], dict, dict]:
    """The losses of the first steps, and the parameters before and after them."""
    sizes = [getattr(config.mesh, axis) for axis in MESH_AXES]
    mesh = make_mesh(config.mesh, jax.devices()[: int(np.prod(sizes))])
    config, batches = batches_of(config, devices * config.phases[0].micro_batches)
    parts = config.phases[0].micro_batches
    corpus = open_task(config, Workdir.open("/nowhere/run")).phase(config, config.phases[0], mesh)
    losses = []
    with jax.set_mesh(mesh):
        program = make_step_functions(config, mesh, corpus.held_out.corpus)
        state = program.init()
        before = jax.tree.map(np.array, state["params"])
        for index in range(count):
            batch = global_batch.global_batch(
                lambda rows, index=index: batches.batch(index, rows), program.rows, batches.rows
            )
            state, metrics = program.train(state, batch, micro_batches=parts)
            losses.append(float(metrics["loss"]))
    return losses, before, jax.tree.map(np.asarray, state["params"])
