"""Losses and baselines against plain NumPy, over weights that leave slots empty."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import objectives

B, P, N, V, SOURCES = 4, 5, 2, 11, ("wiki", "books")


@pytest.fixture
def corpus() -> objectives.Corpus:
    counts = np.arange(1, V + 1, dtype=np.float64)
    return objectives.Corpus(SOURCES, np.log(counts / counts.sum()).astype(np.float32))


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
    empty = {name: np.zeros_like(values) for name, values in batch.items()}
    loss, sums = objectives.all_sums(jax.tree.map(jnp.asarray, logits), empty, corpus)
    assert float(loss) == 0
    assert np.isfinite(list(objectives.summarize(sums, SOURCES).values())).all()
