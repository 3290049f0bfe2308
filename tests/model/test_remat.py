"""Layers scanned or unrolled, stored or recomputed: the same numbers, yet another program."""

import dataclasses
import functools
from collections.abc import Callable

import golden_case as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small import COMPUTE, model_config

from bert_jax.objectives import total
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.pretraining_model import declare, init_params

LEARNED = ("mlm", "nsp")
LAYERS = 3
MODEL = dataclasses.replace(
    model_config(),
    num_hidden_layers=LAYERS,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
)
# From the one that keeps everything to the one that keeps nothing.
REMATS = ("none", "dots_saveable", "dots_with_no_batch_dims_saveable", "full")


@functools.cache
def params() -> dict:
    """Not the initial ones, whose gradients are nearly all cancellation."""
    shapes = jax.eval_shape(lambda: init_params(MODEL, COMPUTE, LEARNED, jax.random.key(0)))
    rng = np.random.default_rng(3)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.2, x.shape), jnp.float32), shapes)


def make_step(remat: str, unroll: int) -> Callable:
    """Parameters -> loss and gradients, with dropout."""
    compute = dataclasses.replace(COMPUTE, remat=remat, unroll_layers=unroll)
    graph, _ = declare(MODEL, compute, LEARNED)
    corpus = Corpus(("text",), np.zeros(MODEL.vocab_size, np.float32))
    batch = cases.batch(cases.TINY, 0)

    def loss(params: dict) -> jax.Array:
        outputs = nnx.merge(graph, params)(batch, jnp.uint32(9))
        return total.all_sums(outputs, batch, corpus)[0]

    return jax.value_and_grad(loss)


@functools.cache
def compiled(remat: str, unroll: int) -> jax.stages.Compiled:
    return jax.jit(make_step(remat, unroll)).lower(params()).compile()


DEFAULT = [("full", 1)]
# Every policy and every form of the loop; every pair of them at night.
SLOW = [
    ("none", 2),
    ("none", 99),
    ("dots_saveable", 1),
    ("dots_saveable", 2),
    ("dots_with_no_batch_dims_saveable", 1),
    ("full", 0),
]
NIGHTLY = [
    (remat, unroll)
    for remat in REMATS
    for unroll in (1, 2, 0, 99)
    if (remat, unroll) not in [("none", 1), *DEFAULT, *SLOW]
]


@pytest.mark.parametrize(
    ("remat", "unroll"),
    [
        *DEFAULT,
        *(pytest.param(*form, marks=pytest.mark.slow) for form in SLOW),
        *(pytest.param(*form, marks=pytest.mark.nightly) for form in NIGHTLY),
    ],
)
def test_the_numbers_do_not_depend_on_the_form(remat, unroll):
    plain_loss, plain = compiled("none", 1)(params())
    loss, gradients = compiled(remat, unroll)(params())
    assert float(loss) == pytest.approx(float(plain_loss), rel=1e-6)
    wrong = {}
    for (path, got), wanted in zip(
        jax.tree_util.tree_leaves_with_path(gradients), jax.tree.leaves(plain), strict=True
    ):
        apart = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
        if not apart <= 1e-6:
            wrong[jax.tree_util.keystr(path)] = apart
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("unroll", [1, 2, 0, 99])
@pytest.mark.parametrize("remat", REMATS)
def test_the_settings_really_change_the_program(remat, unroll):
    text = str(jax.make_jaxpr(make_step(remat, unroll))(params()))
    assert f"length={LAYERS}" in text
    assert f"unroll={min(unroll or LAYERS, LAYERS)}" in text
    assert ("prevent_cse" in text) == (remat != "none")
    if remat != "none":
        # Straight code needs barriers, also that of the one layer that two at a time leave over.
        assert f"prevent_cse={unroll != 1}" in text
        name = {"full": "nothing_saveable"}.get(remat, remat)
        policy, _, _ = repr(getattr(jax.checkpoint_policies, name)).partition(" at 0x")
        assert f"policy={policy}" in text


@pytest.mark.slow
def test_each_policy_needs_less_memory_than_the_one_before():
    needed = [compiled(remat, 1).memory_analysis().temp_size_in_bytes for remat in REMATS]
    assert needed == sorted(needed, reverse=True)
    assert len(set(needed)) == len(needed)
