"""Gradients in two passes are those of one, with the same dropout in both."""

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.ops.dropout import dropout
from bert_jax.ops.hashing import fold_key
from bert_jax.parallel.global_batch import Batch
from bert_jax.training.cached_gradients import AcrossRows, cached_gradients

ROWS, PARTS, WIDTH = 12, 3, 8


def outputs(params: dict, batch: Batch, key: jax.Array) -> dict[str, jax.Array]:
    return {"x": dropout(batch["x"] @ params["w"], rate=0.5, key=key)}


def loss(outputs: dict, batch: Batch, counts: dict) -> tuple[jax.Array, dict]:
    """Each row with all others, whatever the micro-batch."""
    scores = outputs["x"] @ outputs["x"].T * batch["weights"][:, None]
    total = jax.nn.logsumexp(scores, axis=-1)
    return total.sum() / counts["all"], {"total": total.sum()}


def test_two_passes_give_the_gradients_of_one() -> None:
    drawn = np.random.default_rng(0)
    params = {"w": jnp.asarray(drawn.normal(size=(WIDTH, WIDTH)), jnp.float32)}
    batch = {
        "x": jnp.asarray(drawn.normal(size=(ROWS, WIDTH)), jnp.float32),
        "weights": jnp.arange(ROWS, dtype=jnp.float32) / ROWS,
    }
    keys, counts = fold_key(7, jnp.arange(PARTS)), {"all": jnp.float32(ROWS)}
    # Rows m, m + PARTS, … are those of micro-batch m.
    parts = {name: jnp.stack([x[m::PARTS] for m in range(PARTS)]) for name, x in batch.items()}

    def whole(params: dict) -> tuple[jax.Array, dict]:
        found = jnp.zeros((ROWS, WIDTH))
        for m in range(PARTS):
            of_part = outputs(params, {name: x[m] for name, x in parts.items()}, keys[m])
            found = found.at[m::PARTS].set(of_part["x"])
        return loss({"x": found}, batch, counts)

    (value, sums), wanted = jax.value_and_grad(whole, has_aux=True)(params)
    (other, others), gradients = jax.jit(
        lambda *given: cached_gradients(AcrossRows(outputs, loss), *given)
    )(params, parts, keys, counts)
    np.testing.assert_allclose(other, value, rtol=1e-6)
    np.testing.assert_allclose(others["total"], sums["total"], rtol=1e-6)
    np.testing.assert_allclose(gradients["w"], wanted["w"], rtol=1e-5, atol=1e-5)
    assert np.abs(wanted["w"]).max() > 1
