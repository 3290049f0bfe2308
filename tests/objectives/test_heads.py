"""Which heads a model has, and the span boundary head against its formula written out again."""

import dataclasses
import math

import golden_case as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small import COMPUTE, model_config

from bert_jax.config.config_files import load
from bert_jax.objectives import total as objectives
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.pretraining_model import declare, init_params

MODEL = dataclasses.replace(model_config(), num_hidden_layers=1)
LEARNED = ("mlm", "sbo")


def random_params(learned: tuple[str, ...]) -> dict:
    """No bias is zero, no scale one."""
    shapes = jax.eval_shape(lambda: init_params(MODEL, COMPUTE, learned, jax.random.key(0)))
    rng = np.random.default_rng(5)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.3, x.shape), jnp.float32), shapes)


def span_batch() -> dict[str, np.ndarray]:
    """The parity rows; each slot with some boundary and place, every third without weight."""
    batch = cases.batch(cases.TINY, 0)
    rng = np.random.default_rng(6)
    shape = batch["masked_positions"].shape
    lengths = batch["example_ids"].sum(1, keepdims=True)
    return batch | {
        "span_left": (rng.integers(0, 1000, shape) % lengths).astype(np.int32),
        "span_right": (rng.integers(0, 1000, shape) % lengths).astype(np.int32),
        "span_offsets": np.resize([0, 14, 3, 7, 1, 13, 2], shape).astype(np.int32),
        "span_weights": batch["masked_weights"] * np.resize([1, 1, 0], shape).astype(np.float32),
    }


@pytest.mark.parametrize(
    ("learned", "wanted", "pooler"),
    [
        (("mlm",), {"encoder", "mlm"}, False),
        (("mlm", "nsp"), {"encoder", "mlm", "pair"}, True),
        (("mlm", "sop"), {"encoder", "mlm", "pair"}, True),
        (("mlm", "sbo"), {"encoder", "mlm", "sbo"}, False),
        (("mlm", "sop", "sbo"), {"encoder", "mlm", "pair", "sbo"}, True),
    ],
)
def test_the_objectives_decide_which_parameters_there_are(learned, wanted, pooler):
    _, abstract = declare(MODEL, COMPUTE, learned)
    params = nnx.to_pure_dict(abstract)
    assert params.keys() == wanted
    assert ("pooler" in params["encoder"]) is pooler


def test_as_many_parameters_as_published_without_pairs():
    """109,514,298 is what transformers counts for BertForMaskedLM of the size of base."""
    model = dataclasses.replace(load("base").model, pad_vocab_to_multiple_of=1)
    counts = {}
    for learned in (("mlm",), ("mlm", "sbo")):
        _, abstract = declare(model, COMPUTE, learned)
        counts[learned] = sum(int(np.prod(x.shape)) for x in jax.tree.leaves(abstract))
    assert counts["mlm",] == 109_514_298
    H = 768
    first, second, norms = (2 * H + 200) * H + H, H * H + H, 4 * H
    wanted = 15 * 200 + first + second + norms + model.vocab_size
    assert counts["mlm", "sbo"] - counts["mlm",] == wanted


def test_only_biases_and_norms_of_the_span_head_have_names_without_decay():
    params = random_params(LEARNED)["sbo"]
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        free = bool({key.key for key in path} & {"bias", "norm"})
        assert free == (leaf.ndim == 1), path


def test_the_span_head_starts_like_the_others():
    params = init_params(MODEL, COMPUTE, LEARNED, jax.random.key(0))["sbo"]
    for kernel in (params["offset"], params["first"]["dense"]["kernel"]):
        assert np.asarray(kernel).std() == pytest.approx(0.02 * 0.8796, rel=0.05)
    assert not np.asarray(params["bias"]).any()
    assert (np.asarray(params["second"]["norm"]["scale"]) == 1).all()


def numpy_logits(params: dict, states: np.ndarray, batch: dict, b: int, p: int) -> np.ndarray:
    """pair_bert.py:338-402 for one slot, in float64, over the real vocabulary."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    sbo, table = params["sbo"], params["encoder"]["embeddings"]["word"]
    left, right = batch["span_left"][b, p], batch["span_right"][b, p]
    place = sbo["offset"][batch["span_offsets"][b, p]]
    x = np.concatenate([states[b, left], states[b, right], place])
    for layer in (sbo["first"], sbo["second"]):
        x = x @ layer["dense"]["kernel"] + layer["dense"]["bias"]
        x = x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-12)
        x = x * layer["norm"]["scale"] + layer["norm"]["bias"]
    return (table @ x + sbo["bias"])[: MODEL.vocab_size]


def test_span_logits_are_the_published_formula():
    params, batch = random_params(LEARNED), span_batch()
    model = nnx.merge(declare(MODEL, COMPUTE, LEARNED)[0], params)
    with jax.default_matmul_precision("highest"):
        states = model.encoder(
            batch["input_ids"], batch["token_type_ids"], batch["example_ids"], batch["position_ids"]
        )
        got = np.asarray(model(batch)["sbo"])
    assert got.dtype == np.float32
    for b, p in np.ndindex(batch["span_left"].shape):
        wanted = numpy_logits(params, np.asarray(states, np.float64), batch, b, p)
        apart = np.abs(got[b, p, : MODEL.vocab_size] - wanted).max()
        assert apart <= 1e-5 * max(1, np.abs(wanted).max())
        assert np.isneginf(got[b, p, MODEL.vocab_size :]).all()


@pytest.mark.slow
def test_the_gradient_of_the_span_loss_is_that_of_the_formula():
    """By differences of the float64 formula, along random directions of each parameter."""
    params, batch = random_params(LEARNED), span_batch()
    graph, _ = declare(MODEL, COMPUTE, LEARNED)
    corpus = Corpus(("text",), np.zeros(MODEL.vocab_size, np.float32))
    encoder = nnx.merge(graph, params).encoder
    with jax.default_matmul_precision("highest"):
        states = np.asarray(
            encoder(*(batch[f"{n}_ids"] for n in ("input", "token_type", "example", "position"))),
            np.float64,
        )

        def ours(sbo: dict, x_BxSxH: jax.Array) -> jax.Array:
            model = nnx.merge(graph, params | {"sbo": sbo})
            rows = np.arange(len(x_BxSxH))[:, None]
            logits = model.sbo(
                x_BxSxH[rows, batch["span_left"]],
                x_BxSxH[rows, batch["span_right"]],
                batch["span_offsets"],
                model.encoder.embeddings.word[...],
            )
            return objectives.all_sums({"sbo": logits}, batch, corpus)[0]

        gradients = jax.grad(ours, argnums=(0, 1))(params["sbo"], jnp.asarray(states, jnp.float32))

    def formula(sbo: dict, x: np.ndarray) -> float:
        total = 0.0
        for b, p in zip(*np.nonzero(batch["span_weights"]), strict=True):
            logits = numpy_logits(params | {"sbo": sbo}, x, batch, b, p)
            top = logits.max()
            label = logits[batch["masked_labels"][b, p]]
            total += np.log(np.exp(logits - top).sum()) + top - label
        return total / (batch["span_weights"].sum() + 1)

    point = jax.tree.map(lambda x: np.asarray(x, np.float64), (params["sbo"], states))
    leaves, tree = jax.tree.flatten(point)
    rng, step = np.random.default_rng(7), 1e-5
    for i, gradient in enumerate(jax.tree.leaves(gradients)):
        direction = rng.normal(size=gradient.shape)
        values = []
        for sign in (1, -1):
            moved = list(leaves)
            moved[i] = leaves[i] + sign * step * direction
            values.append(formula(*jax.tree.unflatten(tree, moved)))
        slope = (values[0] - values[1]) / (2 * step)
        size = np.linalg.norm(gradient) * np.linalg.norm(direction)
        assert abs(float((gradient * direction).sum()) - slope) <= 1e-5 * size
