"""A run that imports a checkpoint of google-research/bert takes the step that Google's optimizer
would take."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
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
from bert_jax.errors import StoppedError
from bert_jax.exit_codes import DONE
from bert_jax.training import loop, optimizer_state
from bert_jax.training.options import RunOptions
from bert_jax.workdir.layout import Workdir

Tensors = Mapping[str, np.ndarray]
RECIPE = {"learning_rate": 1e-2, "warmup_steps": 10, "steps": 40}


@dataclasses.dataclass(frozen=True)
class Case:
    """tensors: of Google's checkpoint; gradients: of its next batch; found: after our next step."""

    tensors: Tensors
    gradients: Tensors
    found: Tensors


def by_numpy(cases: Sequence[Case], folder: Path) -> list[Tensors]:
    """The formulas of docs/training_reference.md in float64."""
    return [_next(case.tensors, case.gradients) for case in cases]


def _next(tensors: Tensors, gradients: Tensors) -> Tensors:
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


def by_tensorflow(cases: Sequence[Case], folder: Path) -> list[Tensors]:
    """TensorFlow's own functions, on the checkpoints as TensorFlow reads them."""
    asked = []
    for i, case in enumerate(cases):
        write_bundle(folder / f"written_{i}", case.tensors)
        asked.append((case.gradients, {"prefix": f"{folder}/written_{i}", "recipe": RECIPE}))
    return tensorflow.ask(folder / "asked", "step", asked)


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


def continued(step: int, folder: Path) -> Case:
    """A run that imports a checkpoint of this step and stops after the next."""
    folder.mkdir()
    store = small_store(folder / "store")
    config = config_of(store)
    params = random_params(config.model)
    entries = [*SPECIAL, *(f"w{i}" for i in range(WORDS))]
    state = weights.to_transformers(params, config.model)
    tensors = write_google_folder(folder / "google", config.model, state, entries, step=step)
    words = [f"--from={folder / 'google'}", f"--out={folder / 'model'}", "--optimizer_state"]
    assert cli.main(["convert", "import", *words]) == DONE
    carried = {"init": folder / "model", "init_optimizer": "carry"}
    with pytest.raises(StoppedError):
        loop.pretrain(
            config.replace(carried), folder / "run", options=RunOptions(stop_after=step + 1)
        )
    gradients = gradients_of(config, store, params, step)
    assert np.sqrt(sum(np.square(g).sum() for g in gradients.values())) > 1  # is clipped
    return Case(tensors, gradients, state_of(folder / "run", step + 1, config))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    "next_of", [by_numpy, pytest.param(by_tensorflow, marks=tensorflow.needs_tensorflow)]
)
def test_the_next_step_is_that_of_googles_optimizer(next_of: Callable, tmp_path: Path) -> None:
    """In the warmup and after it."""
    cases = [continued(step, tmp_path / str(step)) for step in (7, 20)]
    for case, wanted in zip(cases, next_of(cases, tmp_path), strict=True):
        assert case.found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            limit = 1e-6 * max(1.0, np.abs(tensor).max())
            np.testing.assert_allclose(case.found[name], tensor, rtol=0, atol=limit, err_msg=name)
            largest = np.abs(case.tensors[name] - tensor).max()
            assert largest > 100 * limit or name.endswith("adam_v"), name  # it is a step
