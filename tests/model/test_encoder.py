"""The encoder and its heads: sizes, attention and dropout masks, forms of one computation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bert_jax.config.config_files import load
from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.model import encoder
from bert_jax.objectives.known_objectives import chosen
from bert_jax.objectives.pretraining_model import declare, init_params, parameter_count
from bert_jax.ops import dropout, embedding_lookup, hashing
from bert_jax.parallel import global_batch
from bert_jax.parallel.mesh import make_mesh

B, S = 3, 16


@pytest.fixture(scope="module")
def model() -> ModelConfig:
    """Two layers, 32 wide; 90 ids padded to 96."""
    return dataclasses.replace(
        load("tiny").model,
        vocab_size=90,
        hidden_size=32,
        intermediate_size=64,
        max_position_embeddings=S,
        pad_vocab_to_multiple_of=32,
    )


@pytest.fixture(scope="module")
def params(model: ModelConfig) -> dict:
    return init_params(model, compute(), ("mlm", "nsp"), jax.random.key(0))


def compute(**changes: object) -> ComputeConfig:
    return dataclasses.replace(load("tiny").compute, **changes)


def make_batch(model: ModelConfig, lengths: tuple[int, ...] = (16, 9, 12)) -> dict:
    """Rows of one example each, with two segments and four masked slots."""
    rng = np.random.default_rng(1)
    columns = np.arange(S)
    real = columns < np.array(lengths)[:, None]
    return {
        "input_ids": np.where(real, rng.integers(5, model.vocab_size, (B, S)), 0).astype(np.int32),
        "token_type_ids": (real & (columns > 5)).astype(np.int32),
        "example_ids": real.astype(np.int32),
        "position_ids": (real * columns).astype(np.int32),
        "masked_positions": np.tile(np.array([1, 2, 4, 7], np.int32), (B, 1)),
        "cls_positions": np.zeros((B, 1), np.int32),
    }


def run(
    model: ModelConfig, compute: ComputeConfig, params: dict, batch: dict, key=None
) -> tuple[jax.Array, jax.Array]:
    """Logits of masked tokens and of pairs."""
    graph, _ = declare(model, compute, ("mlm", "nsp"))
    logits = nnx.merge(graph, params)(batch, key)
    return logits["mlm"], logits["nsp"]


@pytest.mark.parametrize(
    ("name", "entries", "count"),
    [
        ("base", 30_522, 110_106_428),
        ("large", 30_522, 336_226_108),
        ("ettin_17m", 50_368, 16_913_600),
        ("albert_base", 30_000, 11_813_810),
    ],
)
def test_parameter_counts_are_those_of_transformers(name, entries, count):
    config = load(name)
    model = dataclasses.replace(config.model, vocab_size=entries)
    assert parameter_count(model, chosen(config.data)) == count


def test_a_norm_that_only_later_layers_of_a_group_read_counts() -> None:
    config = load("ettin_17m", {"model.vocab_size": 1000, "model.num_hidden_groups": 1})
    model = dataclasses.replace(config.model, pad_vocab_to_multiple_of=1)
    _, state = declare(model, ComputeConfig.plain(), ("mlm",))
    sizes = [leaf.size for leaf in jax.tree.leaves(nnx.to_pure_dict(state))]
    assert parameter_count(model, ("mlm",)) == sum(sizes)


def test_weights_start_as_a_cut_normal_and_biases_at_zero(params):
    table = np.asarray(params["encoder"]["embeddings"]["word"])[:90]
    assert np.abs(table).max() <= 0.04
    # A normal of deviation 0.02 cut at two deviations has 0.88 of it left.
    assert table.std() == pytest.approx(0.02 * 0.8796, rel=0.05)
    assert not np.asarray(params["encoder"]["layers"]["mlp"]["up"]["bias"]).any()
    up = np.asarray(params["encoder"]["layers"]["mlp"]["up"]["kernel"])
    assert not np.array_equal(up[0], up[1]), "layers start alike"


def test_added_vocabulary_rows_are_zero_and_never_predicted(model, params):
    assert not np.asarray(params["encoder"]["embeddings"]["word"])[90:].any()
    mlm, _ = run(model, compute(), params, make_batch(model))
    assert mlm.shape[-1] == 96
    assert np.isneginf(np.asarray(mlm)[..., 90:]).all()
    assert np.isfinite(np.asarray(mlm)[..., :90]).all()


@pytest.mark.slow
@pytest.mark.parametrize("unroll", [1, 2, 0])
def test_forms_of_the_layer_loop_agree(unroll, model, params):
    batch, key = make_batch(model), jnp.uint32(7)
    expected = run(model, compute(unroll_layers=1), params, batch, key)
    got = run(model, compute(unroll_layers=unroll), params, batch, key)
    for e, g in zip(expected, got, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-5, atol=1e-6)


def test_every_layer_drops_with_its_own_key(model, params, monkeypatch):
    def write_key(self, x, examples, rotation, key):
        return jnp.roll(x, 1, axis=-1).at[..., 0].set(key >> 16)  # exact in float32

    monkeypatch.setattr(encoder.Layer, "__call__", write_key)
    stack = nnx.merge(declare(model, compute(), ("mlm", "nsp"))[0], params).encoder
    ids = jnp.ones((B, S), jnp.int32)
    hidden = stack(ids, ids, ids, ids, jnp.uint32(5))
    keys = np.asarray(hidden)[0, 0, : model.num_hidden_layers].tolist()
    assert len(set(keys)) == model.num_hidden_layers == 2


def test_bfloat16_is_near_float32(model, params):
    batch = make_batch(model)
    exact = run(model, compute(), params, batch)
    rough = run(model, compute(dtype="bfloat16"), params, batch)
    assert {x.dtype.name for x in rough} == {"float32"}
    for e, r in zip(exact, rough, strict=True):
        finite = np.isfinite(np.asarray(e))
        np.testing.assert_allclose(np.asarray(r)[finite], np.asarray(e)[finite], atol=0.05)
        assert not np.array_equal(np.asarray(r)[finite], np.asarray(e)[finite])


def test_padding_changes_nothing(model, params):
    batch = make_batch(model)
    other = {**batch, "input_ids": np.where(batch["example_ids"] > 0, batch["input_ids"], 77)}
    for e, g in zip(
        run(model, compute(), params, batch), run(model, compute(), params, other), strict=True
    ):
        np.testing.assert_array_equal(e, g)


def test_examples_of_a_row_do_not_see_each_other(model, params):
    """Two examples in one row give what each gives in a row of its own."""
    alone = make_batch(model, (9, 7, 0))
    packed = {name: values[:1].copy() for name, values in alone.items()}
    for name in ("input_ids", "token_type_ids", "position_ids"):
        packed[name][0, 9:16] = alone[name][1, :7]
    packed["example_ids"][0] = [1] * 9 + [2] * 7
    packed["masked_positions"][0] = [1, 4, 9 + 1, 9 + 4]
    packed["cls_positions"] = np.array([[0, 9]], np.int32)
    mlm, nsp = run(model, compute(), params, alone)
    packed_mlm, packed_nsp = run(model, compute(), params, packed)
    np.testing.assert_allclose(packed_mlm[0, :2, :90], mlm[0, [0, 2], :90], atol=1e-6)
    np.testing.assert_allclose(packed_mlm[0, 2:, :90], mlm[1, [0, 2], :90], atol=1e-6)
    np.testing.assert_allclose(packed_nsp[0], nsp[:2, 0], atol=1e-6)


def test_the_gradients_of_a_frequent_word_add_up_though_its_table_is_bfloat16():
    """One by one in bfloat16, 4,096 ones are 256."""
    ids = jnp.zeros((4, 1024), jnp.int32)
    table = jnp.ones((2, 8), jnp.bfloat16)
    found = jax.grad(lambda t: embedding_lookup.lookup(t, ids).sum())(table)
    np.testing.assert_array_equal(np.asarray(found, np.float32), [[4096] * 8, [0] * 8])


def test_dropout_keeps_the_right_share_and_the_mean():
    x = jnp.ones((64, 128, 96))
    y = np.asarray(dropout.dropout(x, rate=0.1, key=jnp.uint32(3)))
    dropped = (y == 0).mean()
    sigma = (0.1 * 0.9 / y.size) ** 0.5
    assert abs(dropped - 0.1) < 5 * sigma
    assert y.max() == pytest.approx(1 / 0.9)
    for axis in range(3):  # no row, position or channel is special
        rest = tuple(a for a in range(3) if a != axis)
        share = (y == 0).mean(rest)
        assert np.abs(share - 0.1).max() < 6 * (0.1 * 0.9 * y.shape[axis] / y.size) ** 0.5


def test_dropout_keeps_the_scale_in_bfloat16():
    """1 / 0.9 in bfloat16 is 0.16 % less; the roundings of many products cancel out."""
    x = jnp.asarray(np.random.default_rng(0).uniform(1, 2, (64, 128, 96)), jnp.bfloat16)
    y = np.asarray(dropout.dropout(x, rate=0.1, key=jnp.uint32(3)), np.float64)
    kept = np.asarray(x, np.float64)[y > 0]
    assert y.sum() / kept.sum() == pytest.approx(1 / 0.9, rel=1e-4)


def test_dropout_differs_by_key_and_place_and_matches_its_gradient():
    x = jnp.ones((4, 8, 64))
    masks = [
        np.asarray(dropout.dropout(x, rate=0.5, key=hashing.fold_key(9, word))) for word in range(8)
    ]
    for i, mask in enumerate(masks):
        for other in masks[:i]:
            assert 0.4 < (mask == other).mean() < 0.6
        assert 0.4 < (mask[0] == mask[1]).mean() < 0.6
    key = hashing.fold_key(9, 0)
    gradient = jax.grad(lambda x: dropout.dropout(x, rate=0.5, key=key).sum())(x)
    np.testing.assert_array_equal(gradient, masks[0])
    np.testing.assert_array_equal(dropout.dropout(x, rate=0.5, key=None), x)


def test_dropout_masks_do_not_depend_on_the_mesh():
    mesh = make_mesh(load("tiny").mesh)
    x = np.ones((16, 4, 32), np.float32)
    split = jax.device_put(x, global_batch.batch_sharding(mesh))
    drop = jax.jit(lambda x: dropout.dropout(x, rate=0.3, key=jnp.uint32(5)))
    np.testing.assert_array_equal(drop(split), drop(x))


def test_no_random_bits_of_the_whole_batch_on_one_device(model):
    """In the compiled step every device makes only the mask of its own rows."""
    mesh = make_mesh(load("tiny").mesh)
    x = jax.ShapeDtypeStruct((64, 4, 32), jnp.float32, sharding=global_batch.batch_sharding(mesh))
    drop = jax.jit(lambda x: dropout.dropout(x, rate=0.3, key=jnp.uint32(5)))
    text = drop.lower(x).compile().as_text()
    assert "[8,4,32]" in text
    assert "[64,4" not in text
