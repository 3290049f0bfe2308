"""Positions of a batch: which are real, and where its prediction slots are in the rows.

Sizes: B rows, S positions, P prediction slots.
"""

import jax
import jax.numpy as jnp

from bert_jax.parallel.global_batch import Batch


def real_tokens(batch: Batch) -> jax.Array:
    """Returns 1 at every token, [CLS] and [SEP] included, and 0 at padding: float32 [B, S]."""
    return (batch["example_ids"] > 0).astype(jnp.float32)


def with_slots(rows_BxS: jax.Array, batch: Batch, values_BxP: jax.Array) -> jax.Array:
    """Returns an array [B, S] with the values of the used prediction slots at their positions."""

    def put(row_S: jax.Array, places_P: jax.Array, values_P: jax.Array) -> jax.Array:
        return row_S.at[places_P].set(values_P.astype(row_S.dtype), mode="drop")

    return jax.vmap(put)(rows_BxS, _places(batch, rows_BxS.shape[-1]), values_BxP)


def slots_of_positions(batch: Batch) -> jax.Array:
    """Returns how many of the used prediction slots each position has, float32 [B, S]: with
    `data.masking=with_replacement`, several."""

    def add(row_S: jax.Array, places_P: jax.Array) -> jax.Array:
        return row_S.at[places_P].add(1.0, mode="drop")

    shape = batch["example_ids"].shape
    return jax.vmap(add)(jnp.zeros(shape), _places(batch, shape[-1]))


def _places(batch: Batch, length: int) -> jax.Array:
    """Returns the position of each slot in rows of a length, [B, P]; that of an unused one is
    outside, so that it is dropped."""
    return jnp.where(batch["masked_weights"] > 0, batch["masked_positions"], length)
