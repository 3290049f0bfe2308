"""The states of a small model in which gradients are compared, and the batches of each."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import golden_case as cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from small import COMPUTE, model_config

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.objectives import total
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.pretraining_model import declare, init_params
from bert_jax.parallel.global_batch import Batch

LEARNED = ("mlm", "nsp")
# 128 positions are the fewest that the TPU kernel takes.
CASE = dataclasses.replace(
    cases.TINY, name="gradients", vocab_size=200, hidden_size=64, layers=4, intermediate_size=128,
    positions=128, length=128, slots=19,
)  # fmt: skip
VOCAB = CASE.vocab_size
# Models in each state, each with a batch and dropout of its own. Where hidden states are alike one
# model rounds all of them alike, so more batches of one would average nothing.
DRAWS = 6


def model(rate: float, case: cases.Case = CASE) -> ModelConfig:
    """rate: of every dropout."""
    return dataclasses.replace(
        model_config(case), hidden_dropout_prob=rate, attention_probs_dropout_prob=rate
    )


def loss_of(config: ModelConfig, compute: ComputeConfig) -> Callable:
    """(parameters, batch, dropout key) -> the loss, as a training step of bert_jax computes it."""
    graph, _ = declare(config, compute, LEARNED)
    corpus = Corpus(("text",), np.zeros(config.vocab_size, np.float32))

    def loss(params: Mapping, batch: Batch, key: jax.Array | None) -> jax.Array:
        return total.all_sums(nnx.merge(graph, params)(batch, key), batch, corpus)[0]

    return loss


def shapes() -> dict:
    return jax.eval_shape(lambda: init_params(model(0.0), COMPUTE, LEARNED, jax.random.key(0)))


def fresh(seed: int) -> dict:
    """As a run begins, but drawn by numpy: to compile the draw takes longer than to use it."""
    rng = np.random.default_rng(seed)

    def draw(path: tuple, x: jax.ShapeDtypeStruct) -> np.ndarray:
        if path[-1].key in ("scale", "bias"):
            return np.full(x.shape, path[-1].key == "scale", np.float32)
        return rng.normal(0, 0.02, x.shape).clip(-0.04, 0.04).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes())


def drawn(seed: int) -> dict:
    """Every parameter, biases too, from a normal; LayerNorm's scales around one."""
    rng = np.random.default_rng(seed)

    def draw(path: tuple, x: jax.ShapeDtypeStruct) -> np.ndarray:
        mean = 1 if path[-1].key == "scale" else 0
        return rng.normal(mean, 0.1, x.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes())


def alike(seed: int) -> dict:
    """Hidden states that differ by little: LayerNorms have large biases and small scales."""
    rng = np.random.default_rng(seed)

    def draw(path: tuple, x: np.ndarray) -> np.ndarray:
        names = [entry.key for entry in path]
        if names[0] != "encoder" or "norm" not in names:
            return x
        return (0.02 * x if names[-1] == "scale" else rng.normal(size=x.shape)).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, fresh(seed))


def trained(batch_of: Callable[[int], Mapping], steps: int) -> list[dict]:
    """Parameters at DRAWS points, ten steps of Adam apart, in float32 from a fresh start."""
    gradient = jax.grad(loss_of(model(0.0), COMPUTE))
    optimizer = optax.adam(optax.linear_schedule(0.0, 3e-3, 20))

    @jax.jit
    def step(params: dict, state: optax.OptState, batch: Mapping) -> tuple:
        updates, state = optimizer.update(gradient(params, batch, None), state, params)
        return optax.apply_updates(params, updates), state

    params, kept = fresh(0), []
    state = optimizer.init(params)
    for i in range(steps):
        params, state = step(params, state, batch_of(i))
        if (steps - 1 - i) % 10 == 0:
            kept.append(params)
    return kept[-DRAWS:]


def topics(step: int) -> dict[str, np.ndarray]:
    """Each row repeats one of 20 tokens, which so can be told from any other position."""
    made = cases.batch(CASE, step)
    topic = np.random.default_rng(step).integers(5, 25, (CASE.rows, 1))
    ids = np.where(made["input_ids"] < 5, made["input_ids"], topic)
    labels = np.where(made["masked_weights"] > 0, topic, 0)
    return {**made, "input_ids": ids.astype(np.int32), "masked_labels": labels.astype(np.int32)}


def frequencies(step: int) -> dict[str, np.ndarray]:
    """All that can be learned are the frequencies of the masked tokens."""
    made = cases.batch(CASE, step)
    labels = np.random.default_rng(step).geometric(0.05, made["masked_labels"].shape) + 4
    return {**made, "masked_labels": np.minimum(labels, VOCAB - 1).astype(np.int32)}


DRAWN = {"fresh": fresh, "drawn": drawn, "alike": alike}
# Those that are trained: on what, and so many steps. On the plateau, which every BERT passes, only
# the frequencies of the tokens are learned, and all hidden states are alike.
TRAINED = {"learned": (topics, 200), "plateau": (frequencies, 150)}
STATES = (*DRAWN, *TRAINED)


@functools.cache
def state(name: str) -> dict:
    """DRAWS sets of parameters in such a state, stacked: arrays [DRAWS, ...]."""
    if name in DRAWN:
        made = [DRAWN[name](seed) for seed in range(DRAWS)]
    else:
        made = trained(*TRAINED[name])
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *made)


def batches(name: str) -> dict[str, np.ndarray]:
    """A batch for each of them that it was not trained on: arrays [DRAWS, B, ...]."""
    of = TRAINED[name][0] if name in TRAINED else functools.partial(cases.batch, CASE)
    made = [of(1000 + step) for step in range(DRAWS)]
    return {key: np.stack([batch[key] for batch in made]) for key in made[0]}


def cosine(hidden_BxSxH: jax.Array) -> float:
    """Of the angle between the hidden states of two positions, in the mean."""
    unit = np.asarray(hidden_BxSxH, np.float64)
    unit = (unit / np.linalg.norm(unit, axis=-1, keepdims=True)).reshape(-1, unit.shape[-1])
    return float(np.square(unit.mean(0)).sum())
