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

    return jax.vmap(put)(rows_BxS, _places(batch), values_BxP)


def slots_of_positions(batch: Batch) -> jax.Array:
    """Returns how many of the used prediction slots each position has, float32 [B, S]: with
    `data.masking=with_replacement`, several."""

    def add(row_S: jax.Array, places_P: jax.Array) -> jax.Array:
        return row_S.at[places_P].add(1.0, mode="drop")

    return jax.vmap(add)(jnp.zeros(batch["example_ids"].shape), _places(batch))


def _places(batch: Batch) -> jax.Array:
    """Returns the position of each slot, [B, P]; that of an unused one is outside, so that it is
    dropped."""
    length = batch["example_ids"].shape[-1]
    return jnp.where(batch["masked_weights"] > 0, batch["masked_positions"], length)
