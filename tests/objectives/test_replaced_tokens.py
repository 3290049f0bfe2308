"""Replaced-token detection against plain NumPy: the head, its sums and what they say, and
the draws."""

import dataclasses
import math

import golden_case as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported import random_params
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit
from small import COMPUTE, model_config

from bert_jax.objectives import replaced_tokens as rtd
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.known_objectives import OBJECTIVES
from bert_jax.objectives.pretraining_model import declare, init_params
from bert_jax.objectives.replaced_token_model import replaced_batch
from bert_jax.objectives.total import all_sums, denominators, row_sums, summarize
from bert_jax.ops.draws import draw

CORPUS = Corpus(("text",), np.zeros(cases.TINY.vocab_size, np.float32))
MODEL = dataclasses.replace(model_config(), num_hidden_layers=1)
B, S = 5, 31


def example(seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Logits [B, S] and their batch: two examples in a row, then padding."""
    rng = np.random.default_rng(seed)
    examples = np.zeros((B, S), np.int32)
    for b in range(B):
        examples[b, : 12 + 4 * b] = 1
        examples[b, 7 : 12 + 4 * b] = 2
    replaced = (rng.random((B, S)) < 0.2).astype(np.int32)
    logits = (rng.normal(size=(B, S)) * 4 - 1 + 2 * replaced).astype(np.float32)
    return logits, {"example_ids": examples, "replaced": replaced}


def summary(logits: np.ndarray, batch: dict) -> dict[str, float]:
    _, sums = all_sums({"rtd": jnp.asarray(logits)}, batch, CORPUS)
    found = summarize(jax.tree.map(np.asarray, sums), ("text",))
    return {name.removeprefix("rtd/"): value for name, value in found.items()}


def rank_area(logits: np.ndarray, labels: np.ndarray) -> float:
    """The area under the ROC curve, from all pairs."""
    positive, negative = logits[labels > 0][:, None], logits[labels == 0][None]
    return float(((positive > negative) + 0.5 * (positive == negative)).mean())


def test_the_loss_is_that_of_every_token_divided_as_published():
    logits, batch = example()
    real = batch["example_ids"] > 0
    x, y = logits[real].astype(np.float64), batch["replaced"][real]
    wanted = np.logaddexp(0, np.where(y > 0, -x, x))
    loss, sums = all_sums({"rtd": jnp.asarray(logits)}, batch, CORPUS)
    assert float(loss) == pytest.approx(wanted.sum() / (real.sum() + 1e-6), rel=1e-6)
    assert float(sums["rtd"]["count"]) == real.sum()
    found = summary(logits, batch)
    assert found["loss"] == pytest.approx(wanted.mean(), rel=1e-6)
    assert found["accuracy"] == pytest.approx(((x > 0) == (y > 0)).mean())
    one = {name: array[:1, :1] for name, array in batch.items()}
    assert float(denominators(one, ("rtd",))["rtd"]) == np.float32(1 + 1e-6)
    none = jax.tree.map(np.zeros_like, batch)
    assert float(denominators(none, ("rtd",))["rtd"]) == np.float32(1e-6)
    assert float(all_sums({"rtd": jnp.asarray(logits)}, none, CORPUS)[0]) == 0


def test_what_padding_holds_does_not_count():
    logits, batch = example()
    padding = batch["example_ids"] == 0
    changed = batch | {"replaced": np.where(padding, 1 - batch["replaced"], batch["replaced"])}
    assert summary(np.where(padding, 50.0, logits).astype("f4"), changed) == summary(logits, batch)


def test_precision_recall_and_the_best_constant():
    logits, batch = example()
    real = batch["example_ids"] > 0
    x, y = logits[real], batch["replaced"][real] > 0
    found = summary(logits, batch)
    assert found["precision"] == pytest.approx(y[x > 0].mean())
    assert found["recall"] == pytest.approx((x > 0)[y].mean())
    share = y.mean()
    assert found["baseline_accuracy"] == pytest.approx(1 - share)
    entropy = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    assert found["baseline_loss"] == pytest.approx(entropy, rel=1e-6)
    most = summary(logits, batch | {"replaced": np.ones_like(batch["replaced"])})
    assert most["baseline_accuracy"] == 1
    assert most["baseline_loss"] == 0


def test_the_area_is_that_of_the_ranks_to_the_width_of_a_bin():
    logits, batch = example()
    real = batch["example_ids"] > 0
    x, y = logits[real], batch["replaced"][real]
    width = 2 * rtd.LIMIT / rtd.BINS
    binned = np.floor(np.clip(x, -rtd.LIMIT, rtd.LIMIT - width) / width)
    assert summary(logits, batch)["auc"] == pytest.approx(rank_area(binned, y), rel=1e-6)
    assert summary(logits, batch)["auc"] == pytest.approx(rank_area(x, y), abs=0.01)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        # Halves and quarters of a bin's width are exact.
        st.tuples(st.integers(-1000, 1000), st.integers(0, 1), st.integers(0, 2)),
        min_size=1, max_size=40,
    )
)  # fmt: skip
def test_histograms_are_those_of_numpy(tokens):
    logits, labels, examples = map(np.array, zip(*tokens, strict=True))
    logits = (logits / 32).astype(np.float32)
    batch = {"replaced": labels[None].astype("i4"), "example_ids": examples[None].astype("i4")}
    sums = OBJECTIVES["rtd"].sums(jnp.asarray(logits[None]), batch, CORPUS)
    edges = np.linspace(-rtd.LIMIT, rtd.LIMIT, rtd.BINS + 1)
    inside = np.clip(logits, -rtd.LIMIT, rtd.LIMIT)
    for name, label in (("negatives", 0), ("positives", 1)):
        kept = (labels == label) & (examples > 0)
        np.testing.assert_array_equal(sums[name], np.histogram(inside[kept], edges)[0])
    np.testing.assert_array_equal(sums["labels"], np.bincount(labels[examples > 0], minlength=2))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_logit_that_is_not_finite_is_in_some_bin(value):
    logits, batch = example()
    logits[0, 0] = value
    _, sums = all_sums({"rtd": jnp.asarray(logits)}, batch, CORPUS)
    counts = np.asarray(sums["rtd"]["negatives"] + sums["rtd"]["positives"])
    assert counts.sum() == (batch["example_ids"] > 0).sum()
    assert np.isfinite(counts).all()


@pytest.mark.parametrize("kind", [0, 1])
def test_without_both_kinds_the_area_is_a_half(kind):
    logits, batch = example()
    found = summary(logits, batch | {"replaced": np.full_like(batch["replaced"], kind)})
    assert found["auc"] == 0.5
    assert np.isfinite(list(found.values())).all()


def test_rows_micro_batches_and_strips_add_up_to_the_batch():
    logits, batch = example()
    _, whole = all_sums({"rtd": jnp.asarray(logits)}, batch, CORPUS)
    rows = jax.jit(lambda x, b: row_sums({"rtd": x}, b, CORPUS))(jnp.asarray(logits), batch)
    assert rows["rtd"]["negatives"].shape == (B, rtd.BINS)
    added = jax.tree.map(lambda x: x.sum(0), rows)
    strips = {name: array[:, :30].reshape(B, 2, 15) for name, array in batch.items()}
    cut = {name: array[:, :30] for name, array in batch.items()}
    found, wanted = (
        all_sums({"rtd": jnp.asarray(logits[:, :30])}, b, CORPUS)[1]["rtd"] for b in (strips, cut)
    )
    for these, those in ((added["rtd"], whole["rtd"]), (found, wanted)):
        assert these.keys() == those.keys()
        for name, value in those.items():
            np.testing.assert_allclose(these[name], value, rtol=1e-6, err_msg=name)
    micro = {name: array[:, None] for name, array in batch.items()}
    assert denominators(micro, ("rtd",)) == denominators(batch, ("rtd",))


def test_the_head_is_the_published_formula():
    params = random_params(MODEL, ("rtd",))
    batch = cases.batch(cases.TINY, 0)
    model = nnx.merge(declare(MODEL, COMPUTE, ("rtd",))[0], jax.tree.map(jnp.asarray, params))
    with jax.default_matmul_precision("highest"):
        states = model.encoder(
            batch["input_ids"], batch["token_type_ids"], batch["example_ids"], batch["position_ids"]
        )
        logits = np.asarray(model(batch)["rtd"])
    assert (logits.shape, logits.dtype) == (batch["input_ids"].shape, np.float32)
    head = jax.tree.map(lambda x: np.asarray(x, np.float64), params["rtd"])
    x = np.asarray(states, np.float64) @ head["dense"]["kernel"] + head["dense"]["bias"]
    x = x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    wanted = (x @ head["output"]["kernel"] + head["output"]["bias"])[..., 0]
    assert np.abs(logits - wanted).max() <= 1e-5 * max(1, np.abs(wanted).max())


def test_the_head_starts_as_published():
    """The output layer names no initial values, so TensorFlow draws them after Glorot."""
    model = dataclasses.replace(MODEL, hidden_size=768, num_attention_heads=12)
    head = init_params(model, COMPUTE, ("rtd",), jax.random.key(0))["rtd"]
    assert np.asarray(head["dense"]["kernel"]).std() == pytest.approx(0.02 * 0.8796, rel=0.05)
    output = np.asarray(head["output"]["kernel"])
    limit = math.sqrt(6 / (768 + 1))
    assert 0.9 * limit < np.abs(output).max() <= limit
    assert output.std() == pytest.approx(limit / math.sqrt(3), rel=0.1)
    assert not np.asarray(head["output"]["bias"]).any()


def test_draws_follow_the_softmax() -> None:
    """Chi-square of a million draws over 12 entries; one that cannot occur never does."""
    rng, count = np.random.default_rng(0), 1_000_000
    logits = np.append(2 * rng.normal(size=12), -np.inf).astype(np.float32)
    keys = jnp.asarray(rng.integers(0, 2**32, count, np.uint32))
    drawn = jax.jit(lambda k: draw(jnp.broadcast_to(logits, (len(k), 13)), k))(keys)
    found = np.bincount(np.asarray(drawn), minlength=13)
    wanted = count * np.exp(logits) / np.exp(logits).sum()
    assert found[12] == 0
    statistic = ((found - wanted)[:12] ** 2 / wanted[:12]).sum()
    # of 11 degrees of freedom: Wilson and Hilferty's cube root is normal
    root = ((statistic / 11) ** (1 / 3) - (1 - 2 / 99)) / np.sqrt(2 / 99)
    assert abs(root) < stdtrit(1e9, 0.9999)


def test_a_draw_depends_on_its_key_alone() -> None:
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(1, 4, 50)), jnp.float32)
    keys = jnp.asarray([[3, 1, 3, 2]], jnp.uint32)
    one = draw(jnp.tile(logits[:, :1], (1, 4, 1)), keys)
    assert one[0, 0] == one[0, 2]
    np.testing.assert_array_equal(draw(logits, keys)[0, 3:], draw(logits[:, 3:], keys[:, 3:])[0])


def test_what_is_drawn_stands_at_all_chosen_positions() -> None:
    batch = {
        "input_ids": jnp.asarray([[2, 4, 4, 9, 3, 0]]),
        "masked_positions": jnp.asarray([[1, 3, 1, 0]]),
        "masked_labels": jnp.asarray([[7, 9, 7, 0]]),
        "masked_weights": jnp.asarray([[1.0, 1.0, 1.0, 0.0]]),
    }
    found = replaced_batch(batch, jnp.asarray([[8, 9, 8, 5]]))
    np.testing.assert_array_equal(found["input_ids"], [[2, 8, 4, 9, 3, 0]])
    np.testing.assert_array_equal(found["replaced"], [[0, 1, 0, 0, 0, 0]])
