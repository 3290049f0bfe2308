"""Losses and baselines against plain NumPy, over weights that leave slots empty."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.objectives import total as objectives
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.masked_lm import token_sums

B, P, N, V, SOURCES = 4, 5, 2, 11, ("wiki", "books")


@pytest.fixture
def corpus() -> Corpus:
    counts = np.arange(1, V + 1, dtype=np.float64)
    return Corpus(SOURCES, np.log(counts / counts.sum()).astype(np.float32))


@pytest.fixture
def batch() -> dict:
    rng = np.random.default_rng(0)
    return {
        "example_ids": (rng.random((B, 16)) < 0.8).astype(np.int32),
        "masked_labels": rng.integers(0, V, (B, P)).astype(np.int32),
        "masked_weights": (rng.random((B, P)) < 0.6).astype(np.float32),
        "pair_labels": rng.integers(0, 2, (B, N)).astype(np.int32),
        "pair_weights": np.array([[1, 1], [1, 0], [1, 1], [0, 0]], np.float32),
        "pair_sources": np.array([[0, 1], [0, 0], [1, 1], [0, 0]], np.int32),
    }


def log_loss(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return -np.log(np.take_along_axis(p, labels[..., None], -1)[..., 0])


@pytest.fixture
def logits() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {"mlm": (B, P, V), "nsp": (B, N, 2)}
    return {name: rng.normal(size=shape).astype("f4") for name, shape in shapes.items()}


def test_loss_is_a_sum_over_weights_divided_by_counts(batch, corpus, logits):
    loss, sums = objectives.all_sums(jax.tree.map(jnp.asarray, logits), batch, corpus)
    w, u = batch["masked_weights"], batch["pair_weights"]
    mlm = (log_loss(logits["mlm"], batch["masked_labels"]) * w).sum()
    nsp = (log_loss(logits["nsp"], batch["pair_labels"]) * u).sum()
    np.testing.assert_allclose(sums["mlm"]["loss"], mlm, rtol=1e-5)
    np.testing.assert_allclose(sums["nsp"]["loss"], nsp, rtol=1e-5)
    np.testing.assert_allclose(loss, mlm / w.sum() + nsp / u.sum(), rtol=1e-5)
    right = ((logits["mlm"].argmax(-1) == batch["masked_labels"]) * w).sum()
    assert float(sums["mlm"]["correct"]) == right


def test_summary_gives_baselines_by_source(batch, corpus, logits):
    _, sums = objectives.all_sums(jax.tree.map(jnp.asarray, logits), batch, corpus)
    scalars = objectives.summarize(sums, SOURCES)
    assert sums["nsp"]["source_labels"].shape == (len(SOURCES), 2)
    kept = batch["pair_weights"] > 0
    labels, sources = batch["pair_labels"][kept], batch["pair_sources"][kept]
    right = (logits["nsp"].argmax(-1) == batch["pair_labels"])[kept]
    assert scalars["nsp/accuracy"] == pytest.approx(right.mean())
    share = max(labels.mean(), 1 - labels.mean())
    assert scalars["nsp/baseline_accuracy"] == pytest.approx(share)
    by_source = []
    for i, source in enumerate(SOURCES):
        of = labels[sources == i]
        best = max((of == 0).sum(), (of == 1).sum())
        by_source.append(best)
        assert scalars[f"nsp/{source}/baseline_accuracy"] == pytest.approx(best / len(of))
        assert scalars[f"nsp/{source}/accuracy"] == pytest.approx(right[sources == i].mean())
    assert scalars["nsp/source_accuracy"] == pytest.approx(sum(by_source) / len(labels))
    assert scalars["nsp/source_loss"] <= scalars["nsp/baseline_loss"] <= np.log(2) + 1e-6


def test_unigram_baseline_is_the_cross_entropy_of_the_training_frequencies(batch, corpus, logits):
    _, sums = objectives.all_sums(jax.tree.map(jnp.asarray, logits), batch, corpus)
    scalars = objectives.summarize(sums, SOURCES)
    seen = batch["masked_labels"][batch["masked_weights"] > 0]
    assert scalars["mlm/baseline_loss"] == pytest.approx(-corpus.log_unigram[seen].mean(), rel=1e-5)
    assert scalars["mlm/baseline_accuracy"] == pytest.approx((seen == V - 1).mean())


def test_an_empty_batch_has_no_loss(batch, corpus, logits):
    spans = np.ones((B, P), np.float32)
    everything = logits | {"sbo": logits["mlm"]}
    empty = {name: np.zeros_like(v) for name, v in (batch | {"span_weights": spans}).items()}
    loss, sums = objectives.all_sums(jax.tree.map(jnp.asarray, everything), empty, corpus)
    assert float(loss) == 0
    assert np.isfinite(list(objectives.summarize(sums, SOURCES).values())).all()


def test_span_boundaries_are_divided_by_one_more_than_their_count(batch, corpus, logits):
    rng = np.random.default_rng(2)
    weights = batch["masked_weights"] * (rng.random((B, P)) < 0.7)
    outputs = {"mlm": logits["mlm"], "sbo": rng.normal(size=(B, P, V)).astype("f4")}
    full = {k: v for k, v in batch.items() if "pair" not in k} | {"span_weights": weights}
    loss, sums = objectives.all_sums(jax.tree.map(jnp.asarray, outputs), full, corpus)
    each = log_loss(outputs["sbo"], batch["masked_labels"]) * weights
    mlm = (log_loss(outputs["mlm"], batch["masked_labels"]) * batch["masked_weights"]).sum()
    wanted = mlm / batch["masked_weights"].sum() + each.sum() / (weights.sum() + 1)
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    scalars = objectives.summarize(sums, SOURCES)
    assert scalars["sbo/loss"] == pytest.approx(each.sum() / weights.sum(), rel=1e-5)
    assert scalars["loss"] == pytest.approx(scalars["mlm/loss"] + scalars["sbo/loss"])
    seen = batch["masked_labels"][weights > 0]
    assert scalars["sbo/baseline_loss"] == pytest.approx(-corpus.log_unigram[seen].mean(), rel=1e-5)
    right = (outputs["sbo"].argmax(-1) == batch["masked_labels"])[weights > 0]
    assert scalars["sbo/accuracy"] == pytest.approx(right.mean())
    assert not [name for name in scalars if name.startswith(("nsp", "sop"))]


def test_sentence_order_has_its_own_name_and_the_same_numbers(batch, corpus, logits):
    def scalars(name: str) -> dict[str, float]:
        outputs = {"mlm": logits["mlm"], name: logits["nsp"]}
        _, sums = objectives.all_sums(jax.tree.map(jnp.asarray, outputs), batch, corpus)
        return objectives.summarize(sums, SOURCES)

    nsp, sop = scalars("nsp"), scalars("sop")
    assert {name.replace("nsp/", "sop/"): value for name, value in nsp.items()} == sop
    assert "sop/wiki/baseline_accuracy" in sop


@jax.jit
def _sums(outputs: dict, batch: dict, denominators: dict | None) -> tuple:
    corpus = Corpus(SOURCES, np.zeros(V, np.float32))
    return objectives.all_sums(outputs, batch, corpus, denominators)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.sampled_from([1, 2, 4]))
def test_the_parts_of_a_batch_add_up_to_the_loss_of_the_whole(seed, density, parts):
    """However unevenly predictions are spread over the parts, empty ones included."""
    rng = np.random.default_rng(seed)
    masked = (rng.random((B, P)) < density).astype(np.float32) * (rng.random((B, 1)) < 0.7)
    batch = {
        "example_ids": np.ones((B, 16), np.int32),
        "masked_labels": rng.integers(0, V, (B, P)).astype(np.int32),
        "masked_weights": masked.astype(np.float32),
        "span_weights": (masked * (rng.random((B, P)) < density)).astype(np.float32),
        "pair_labels": rng.integers(0, 2, (B, N)).astype(np.int32),
        "pair_weights": (rng.random((B, N)) < density).astype(np.float32),
        "pair_sources": rng.integers(0, 2, (B, N)).astype(np.int32),
    }
    shapes = {"mlm": (B, P, V), "nsp": (B, N, 2), "sbo": (B, P, V)}
    outputs = {n: jnp.asarray(rng.normal(size=s).astype("f4")) for n, s in shapes.items()}
    everything = objectives.denominators(batch, outputs)
    whole, sums = _sums(outputs, batch, None)
    total, added = 0.0, jax.tree.map(np.zeros_like, sums)
    for rows in np.split(np.arange(B), parts):
        some = ({n: x[rows] for n, x in arrays.items()} for arrays in (outputs, batch))
        part, own = _sums(*some, everything)
        total += float(part)
        added = jax.tree.map(np.add, added, own)
    np.testing.assert_allclose(total, whole, rtol=1e-5)
    for got, wanted in zip(jax.tree.leaves(added), jax.tree.leaves(sums), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_the_gradient_is_that_of_the_formula(batch, corpus, logits):
    """Of logits some of which are of rows added to the vocabulary."""
    labels, weights = batch["masked_labels"] % (V - 2), batch["masked_weights"]
    x = logits["mlm"]
    x[..., V - 2 :] = -np.inf
    got = jax.grad(lambda x: token_sums(x, labels, weights, corpus)["loss"])(x)
    p = np.exp(x - x.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    want = (p - np.eye(V)[labels]) * weights[..., None]
    np.testing.assert_allclose(got, want, atol=1e-6)
