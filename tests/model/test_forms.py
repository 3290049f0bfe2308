"""Rotary positions, normalized branches, windows, gates, shared layers and factorised tables: what
must hold for every form of the model."""

import dataclasses
import functools

import golden_case as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small import COMPUTE, model_config

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.objectives.pretraining_model import declare, init_params

LEARNED = ("mlm", "nsp")
NAMES = ("input", "token_type", "example", "position")
ROTARY, PRE = {"position": "rotary"}, {"norm_position": "pre"}
MODERN = (
    ROTARY
    | PRE
    | {
        "norm_bias": False,
        "linear_bias": False,
        "gated_mlp": True,
        "first_attention_norm": False,
        "local_attention": 6,
        "global_rope_theta": 160_000.0,
        "num_hidden_layers": 8,
        "layout": "modernbert",
    }
)
SHARED = {"num_hidden_groups": 1, "embedding_size": 16, "layout": "albert"}
FORMS = pytest.mark.parametrize(
    "form",
    [ROTARY, PRE, ROTARY | PRE, MODERN, SHARED],
    ids=["rotary", "pre", "both", "modern", "shared"],
)


def model(form: dict, **changes: object) -> ModelConfig:
    return dataclasses.replace(model_config(), **form | changes)


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


def hidden(config: ModelConfig, params: dict, compute: ComputeConfig = COMPUTE) -> np.ndarray:
    """The encoder's states of a batch, at real positions."""
    graph, _ = declare(config, compute, LEARNED)
    inputs = [cases.batch(cases.TINY, 0)[f"{n}_ids"] for n in NAMES]
    states = jax.jit(lambda p, *a: nnx.merge(graph, p).encoder(*a))(params, *inputs)
    return np.asarray(states)[inputs[2] > 0]


def test_a_window_as_long_as_the_row_is_global() -> None:
    config = model(MODERN)
    params = drawn(config)
    whole = dataclasses.replace(config, local_attention=100, local_rope_theta=160_000.0)
    none = dataclasses.replace(config, local_attention=0)
    np.testing.assert_array_equal(hidden(whole, params), hidden(none, params))
    assert np.abs(hidden(config, params) - hidden(none, params)).max() > 0.01


def test_windows_and_thetas_alternate_from_the_first_layer() -> None:
    """Each third layer, 0, 3, 6, attends to all; the others have the local theta."""
    config = model(MODERN, num_hidden_layers=7)
    assert [config.is_local(layer) for layer in range(7)] == [
        False, True, True, False, True, True, False
    ]  # fmt: skip
    params = drawn(config)
    for name in ("global_rope_theta", "local_rope_theta"):
        changed = dataclasses.replace(config, **{name: 500.0})
        assert np.abs(hidden(changed, params) - hidden(config, params)).max() > 0.01


def test_layers_in_loops_equal_layers_one_by_one() -> None:
    """8 layers: the first without LayerNorm, two periods of three kinds, and one that is left."""
    config, params = model(MODERN), drawn(model(MODERN))
    expected = hidden(config, params, dataclasses.replace(COMPUTE, unroll_layers=8))
    np.testing.assert_allclose(hidden(config, params), expected, atol=1e-5)
    graph, _ = declare(config, COMPUTE, LEARNED)
    encoder = nnx.merge(graph, params).encoder
    inputs = [jnp.asarray(cases.batch(cases.TINY, 0)[f"{n}_ids"]) for n in NAMES]
    x, kinds = encoder.embed(inputs[0], inputs[1], inputs[3])
    states = [x]
    for number, kind in enumerate(kinds):
        layer = jax.tree.map(lambda a, number=number: a[number], encoder.layers)
        states.append(layer(states[-1], inputs[2], kind, None))
    np.testing.assert_allclose(encoder.states(*inputs), jnp.stack(states), atol=2e-5)


def test_the_first_layer_has_no_norm_that_counts() -> None:
    config, params = model(MODERN), drawn(model(MODERN))
    scale = params["encoder"]["layers"]["attention"]["norm"]["scale"]
    changed = jax.tree.map(lambda x: x, params)
    changed["encoder"]["layers"]["attention"]["norm"]["scale"] = scale.at[0].set(100.0)
    np.testing.assert_array_equal(hidden(config, changed), hidden(config, params))


def test_groups_of_equal_layers_equal_one_group() -> None:
    one = model(SHARED, num_hidden_layers=4)
    params = drawn(one)
    expected = hidden(one, params)
    for groups in (0, 2, 4):
        config = dataclasses.replace(one, num_hidden_groups=groups)
        copies = jax.tree.map(lambda x: x, params)
        copies["encoder"]["layers"] = jax.tree.map(
            lambda a, n=groups or 4: jnp.repeat(a, n, axis=0), params["encoder"]["layers"]
        )
        np.testing.assert_allclose(hidden(config, copies), expected, atol=1e-5)


def test_groups_are_of_neighbouring_layers() -> None:
    config = model(SHARED, num_hidden_layers=4, num_hidden_groups=2)
    params = drawn(config)
    own = dataclasses.replace(config, num_hidden_groups=0)
    layers = jax.tree.map(lambda a: a[np.array([0, 0, 1, 1])], params["encoder"]["layers"])
    apart = params | {"encoder": params["encoder"] | {"layers": layers}}
    np.testing.assert_allclose(hidden(config, params), hidden(own, apart), atol=1e-5)


def test_shared_layers_may_have_windows() -> None:
    form = MODERN | {"num_hidden_groups": 2, "layout": "bert"}
    config = model(form)
    params = drawn(config)
    own = dataclasses.replace(config, num_hidden_groups=0)
    layers = jax.tree.map(lambda a: jnp.repeat(a, 4, axis=0), params["encoder"]["layers"])
    apart = params | {"encoder": params["encoder"] | {"layers": layers}}
    np.testing.assert_allclose(hidden(config, params), hidden(own, apart), atol=1e-5)


def test_a_projection_of_the_full_width_by_the_identity_is_none() -> None:
    config = model({"embedding_size": 32})
    params = drawn(config)
    params["encoder"]["projection"] = {"kernel": jnp.eye(32), "bias": jnp.zeros(32)}
    plain = dataclasses.replace(config, embedding_size=0)
    without = {k: v for k, v in params["encoder"].items() if k != "projection"}
    np.testing.assert_allclose(
        hidden(config, params), hidden(plain, params | {"encoder": without}), atol=1e-5
    )


@pytest.mark.parametrize("layout", ["albert", "electra"])
def test_a_projection_starts_as_published(layout: str) -> None:
    """ALBERT's from the usual normal distribution, cut at two standard deviations; ELECTRA's, which
    names none, from TensorFlow's uniform one of Glorot."""
    sizes = {"hidden_size": 256, "embedding_size": 128, "num_hidden_layers": 1}
    params = init_params(model({"layout": layout, **sizes}), COMPUTE, ("mlm",), jax.random.key(0))
    kernel = np.asarray(params["encoder"]["projection"]["kernel"])
    largest = {"albert": 0.04, "electra": (6 / (128 + 256)) ** 0.5}[layout]
    spread = {"albert": 0.02 * 0.8796, "electra": largest / 3**0.5}[layout]
    assert 0.97 * largest < np.abs(kernel).max() <= largest
    assert kernel.std() == pytest.approx(spread, rel=0.02)


def test_shifted_positions_give_the_same_scores() -> None:
    """Rotary scores depend on differences of positions alone, in windows too."""
    config, params = model(MODERN), drawn(model(MODERN))
    graph, _ = declare(config, COMPUTE, LEARNED)
    encode = jax.jit(lambda *arrays: nnx.merge(graph, params).encoder(*arrays))
    inputs = [cases.batch(cases.TINY, 0)[f"{n}_ids"] for n in NAMES]
    moved = encode(*inputs[:3], inputs[3] + 7)
    np.testing.assert_allclose(encode(*inputs), moved, atol=2e-5)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"num_hidden_groups": 2}, "num_hidden_layers=3 is not a multiple of .*groups=2"),
        ({"local_attention": 1}, "local_attention=1 lets a token attend to itself alone"),
        ({"first_attention_norm": False}, 'needs config.model.norm_position="pre"'),
        ({"global_rope_theta": 5.0}, "global_rope_theta=5 has no effect without rotary"),
        ({"local_rope_theta": 5.0}, "local_rope_theta=5 has no effect without rotary"),
        (
            {"embedding_size": 8, "initializer": "positional_heads"},
            "which a dense layer of config.model.embedding_size=8 mixes",
        ),
        (ROTARY | {"initializer": "positional_heads"}, "starts a position table"),
    ],
)
def test_settings_that_do_not_fit_are_refused(form: dict, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        model(form)
    assert "\n" not in str(error.value)


def test_initial_values_of_modernbert_are_those_of_its_class() -> None:
    """`_init_weights` of transformers: 0.02, and that over √(2 · layers) in each branch's last
    dense layer and in the head's, cut at two standard deviations."""
    config = model(MODERN, hidden_size=64, intermediate_size=96, num_hidden_layers=2)
    params = init_params(config, COMPUTE, ("mlm",), jax.random.key(0))
    layers, cut = params["encoder"]["layers"], 0.8796  # standard deviation of what is cut so
    for leaf, std in (
        (params["encoder"]["embeddings"]["word"][: config.vocab_size], 0.02),
        (layers["attention"]["qkv"]["kernel"], 0.02),
        (layers["attention"]["output"]["kernel"], 0.01),
        (layers["mlp"]["up"]["kernel"], 0.02),
        (layers["mlp"]["down"]["kernel"], 0.01),
        (params["mlm"]["dense"]["kernel"], 0.01),
    ):
        assert float(leaf.std()) == pytest.approx(cut * std, rel=0.03)
        assert float(jnp.abs(leaf).max()) <= 2.001 * std
