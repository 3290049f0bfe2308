"""A run that imports a checkpoint of google-research/bert takes the step that Google's optimizer
would take."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import numpy as np
import pytest
import tensorflow_itself as tensorflow
from corpus import SPECIAL, WORDS, small_config, small_store
from exported import random_params, tree_below
from gradient_states import loss_of
from small import COMPUTE
from tensorflow_bundle import google_tensors, write_bundle, write_google_folder

import bert_jax
from bert_jax import cli
from bert_jax.checkpoint import manager
from bert_jax.config.schema import Config
from bert_jax.convert import weights
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import DONE, StoppedError
from bert_jax.training import loop, optimizer_state
from bert_jax.workdir.layout import Workdir

Tensors = Mapping[str, np.ndarray]
RECIPE = {"learning_rate": 1e-2, "warmup_steps": 10, "steps": 40}


def by_numpy(tensors: Tensors, gradients: Tensors, folder: Path) -> Tensors:
    """The formulas of docs/training.md in float64."""
    step = int(tensors["global_step"])
    warmup, steps = RECIPE["warmup_steps"], RECIPE["steps"]
    rate = RECIPE["learning_rate"] * (step / warmup if step < warmup else 1 - step / steps)
    norm = np.sqrt(sum(np.square(g, dtype=np.float64).sum() for g in gradients.values()))
    after = {"global_step": np.int64(step + 1)}
    for name, gradient in gradients.items():
        p, m, v = (tensors[name + end].astype(np.float64) for end in ("", "/adam_m", "/adam_v"))
        g = gradient / max(1.0, norm)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        decay = 0.0 if re.search("LayerNorm|bias", name) else 0.01 * p
        after |= {name: p - rate * (m / (np.sqrt(v) + 1e-6) + decay)}
        after |= {f"{name}/adam_m": m, f"{name}/adam_v": v}
    return after


def by_tensorflow(tensors: Tensors, gradients: Tensors, folder: Path) -> Tensors:
    """TensorFlow's own functions, on the checkpoint as TensorFlow reads it."""
    write_bundle(folder / "written", tensors)
    prefix = str(folder / "written")
    return tensorflow.ask(folder / "step", "step", gradients, prefix=prefix, recipe=RECIPE)


def config_of(store: TokenStore) -> Config:
    """Google's optimizer and schedule, without dropout."""
    config = small_config(store).replace(
        {
            "model.hidden_dropout_prob": 0.0,
            "model.attention_probs_dropout_prob": 0.0,
            "phases[0].steps": RECIPE["steps"],
            "optimizer.learning_rate": RECIPE["learning_rate"],
            "optimizer.warmup_steps": RECIPE["warmup_steps"],
        }
    )
    assert config.optimizer.name == "bert_adamw"
    return config


def gradients_of(config: Config, store: TokenStore, params: Mapping, step: int) -> Tensors:
    """Of the batch of a step, with Google's names."""
    batch = next(bert_jax.batches(config, store, start=step))
    gradient = jax.jit(jax.grad(loss_of(config.model, COMPUTE)))
    return google_tensors(weights.to_transformers(gradient(params, batch, None), config.model))


def state_of(run: Path, step: int, config: Config) -> Tensors:
    """The parameters, moments and step of a checkpoint, as Google stores them."""
    workdir = Workdir.open(run)
    params, _ = manager.load_params(workdir, step)
    state = optimizer_state.of_checkpoint(workdir, step, padding=True)
    mu, nu = (tree_below(state.leaves, f"opt/1/{moment}") for moment in ("mu", "nu"))
    found = {"global_step": np.int64(state.step)}
    for tree, end in ((params, ""), (mu, "/adam_m"), (nu, "/adam_v")):
        tensors = google_tensors(weights.to_transformers(tree, config.model))
        found |= {name + end: tensor for name, tensor in tensors.items()}
    return found


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("step", [7, 20], ids=["warmup", "decay"])
@pytest.mark.parametrize(
    "optimizer",
    [
        by_numpy,
        pytest.param(by_tensorflow, marks=tensorflow.needs_tensorflow),
    ],
)
def test_the_next_step_is_that_of_googles_optimizer(
    optimizer: Callable, step: int, tmp_path: Path
) -> None:
    store = small_store(tmp_path / "store")
    config = config_of(store)
    params = random_params(config.model)
    entries = [*SPECIAL, *(f"w{i}" for i in range(WORDS))]
    state = weights.to_transformers(params, config.model)
    tensors = write_google_folder(tmp_path / "google", config.model, state, entries, step=step)
    words = [f"--from={tmp_path / 'google'}", f"--out={tmp_path / 'model'}", "--optimizer_state"]
    assert cli.main(["convert", "import", *words]) == DONE
    continued = config.replace({"init": str(tmp_path / "model"), "init_optimizer": "carry"})
    with pytest.raises(StoppedError):
        loop.pretrain(continued, tmp_path / "run", stop_after=step + 1)
    gradients = gradients_of(config, store, params, step)
    assert np.sqrt(sum(np.square(g).sum() for g in gradients.values())) > 1  # is clipped
    wanted = optimizer(tensors, gradients, tmp_path)
    found = state_of(tmp_path / "run", step + 1, config)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        limit = 1e-6 * max(1.0, np.abs(tensor).max())
        np.testing.assert_allclose(found[name], tensor, rtol=0, atol=limit, err_msg=name)
