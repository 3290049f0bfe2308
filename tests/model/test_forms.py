"""Rotary positions and normalized branches: what must hold for every form of the model."""

import dataclasses
import functools

import golden_case as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small import COMPUTE, model_config

from bert_jax.config.schema import ModelConfig
from bert_jax.errors import UserError
from bert_jax.objectives.pretraining_model import declare, init_params

LEARNED = ("mlm", "nsp")
NAMES = ("input", "token_type", "example", "position")
ROTARY, PRE = {"position": "rotary"}, {"norm_position": "pre"}
FORMS = pytest.mark.parametrize("form", [ROTARY, PRE, ROTARY | PRE], ids=["rotary", "pre", "both"])


def model(form: dict, **changes: object) -> ModelConfig:
    return dataclasses.replace(model_config(), **form, **changes)


@functools.cache
def shapes(config: ModelConfig) -> dict:
    return jax.eval_shape(lambda: init_params(config, COMPUTE, LEARNED, jax.random.key(0)))


def drawn(config: ModelConfig) -> dict:
    """Parameters whose biases and scales have values of their own, too."""
    rng = np.random.default_rng(3)

    def draw(path: tuple, x: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.asarray((path[-1].key == "scale") + rng.normal(0, 0.2, x.shape), x.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes(config))


def names(config: ModelConfig) -> set[str]:
    return {
        jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_leaves_with_path(shapes(config))
    }


def test_a_form_differs_from_bert_in_these_parameters_only():
    bert = names(model({}))
    assert bert - names(model(ROTARY)) == {"['encoder']['embeddings']['position']"}
    assert names(model(ROTARY)) < bert
    final = {f"['encoder']['norm']['{name}']" for name in ("scale", "bias")}
    assert names(model(PRE)) - bert == final
    assert bert < names(model(PRE))
    assert names(model(ROTARY | PRE)) == names(model(ROTARY)) | final


def test_heads_of_odd_width_cannot_rotate():
    with pytest.raises(
        UserError, match=r'position="rotary" rotates pairs .* a head has 5'
    ) as error:
        model(ROTARY, hidden_size=20)
    assert "\n" not in str(error.value)


@FORMS
def test_positions_count_and_begin_anew_in_each_example(form):
    config, params = model(form), drawn(model(form))
    graph, _ = declare(config, COMPUTE, LEARNED)
    encode = jax.jit(lambda *arrays: nnx.merge(graph, params).encoder(*arrays))
    alone = [cases.batch(cases.TINY, 0)[f"{n}_ids"] for n in NAMES]
    hidden = np.asarray(encode(*alone))
    real = alone[2] > 0
    alone[2] = alone[2] * np.arange(1, len(real) + 1)[:, None]  # an id for each row
    packed = np.asarray(encode(*(array[real][None] for array in alone)))
    np.testing.assert_allclose(packed[0], hidden[real], atol=1e-5)
    moved = encode(*alone[:3], alone[3] ** 2 % 40)
    assert np.abs(np.asarray(moved) - hidden)[real].max() > 0.1
