"""Logits, losses and the losses of three steps of layouts, as transformers gave them.

`test_task_parity.py` compares every layout and head with transformers itself; this needs no torch.
"""

import dataclasses

import golden_case as cases
import jax
import pytest
from flax import nnx
from golden_case import STEPS
from layout_models import GOLDEN, layout_config, task_batch, task_config, task_params
from parity_steps import RECIPE, difference, our_steps
from small import COMPUTE, run_config

from bert_jax.objectives.pretraining_model import declare


@pytest.fixture(autouse=True)
def _highest_precision():
    with jax.default_matmul_precision("highest"):
        yield


@pytest.mark.parametrize(("layout", "task"), GOLDEN)
def test_outputs_and_losses_are_those_of_transformers(layout, task):
    golden = cases.load("layouts")
    config = layout_config(layout) if task == "mlm" else task_config(layout, task)
    params, batches = task_params(config), [task_batch(config, n) for n in range(STEPS)]
    run = run_config(recipe=RECIPE)
    data = dataclasses.replace(run.data, pairing="single")
    run = dataclasses.replace(run, model=config, data=data)
    losses, _ = our_steps(run, (task,), params, batches)
    assert difference(losses, golden[f"{layout}/{task}/losses"]) <= 1e-5

    @jax.jit
    def logits_of(params, batch):
        return nnx.merge(declare(config, COMPUTE, (task,))[0], params)(batch)[task]

    logits = logits_of(params, batches[0])
    if task == "mlm":
        logits = logits[batches[0]["masked_weights"] > 0]
    elif task == "single_label_classification":
        logits = logits[:, 0]
    assert difference(logits, golden[f"{layout}/{task}/logits"]) <= 1e-5
