"""Three training steps of ours, for comparison with those of another program."""

import dataclasses
from collections.abc import Mapping, Sequence
from unittest import mock

import jax
import numpy as np
from golden_case import RECIPES

from bert_jax.config.schema import Config
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.pretraining_model import declare
from bert_jax.optimizers.optimizer import make_optimizer
from bert_jax.parallel import partition
from bert_jax.parallel.mesh import make_mesh
from bert_jax.training import skip_nonfinite, step

# With the usual epsilon Adam makes a whole step of a gradient that is rounding.
RECIPE = dataclasses.replace(RECIPES["adamw"], eps=1e-4)


def difference(ours: object, reference: object) -> float:
    """The largest, in units of max(1, max|reference|)."""
    ours, reference = np.asarray(ours), np.asarray(reference)
    assert ours.shape == reference.shape
    return float(np.abs(ours - reference).max() / max(1.0, np.abs(reference).max()))


def our_steps(
    config: Config, tasks: tuple[str, ...], params: Mapping, batches: Sequence[dict]
) -> tuple[list[float], dict]:
    """The training step of a run with these objectives; returns the losses and the parameters."""
    mesh, losses = make_mesh(config.mesh, jax.devices()[:1]), []
    corpus = Corpus(("text",), np.zeros(config.model.vocab_size, np.float32))
    with mock.patch.object(step, "learned_by", return_value=tasks):
        run = step.make_step_functions(config, mesh, corpus)
    _, abstract = declare(config.model, config.compute, tasks)
    optimizer = make_optimizer(config.optimizer, partition.param_axes(abstract))
    params = jax.tree.map(jax.numpy.asarray, params)
    state = {
        "step": jax.numpy.int32(0),
        "params": params,
        "opt": jax.jit(optimizer.init)(params),
        "nonfinite": skip_nonfinite.start(),
    }
    with jax.set_mesh(mesh):
        for batch in batches:
            state, metrics = run.train(state, batch)
            losses.append(float(metrics["loss"]))
    return losses, state["params"]
