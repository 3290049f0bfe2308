"""Draws of tokens from a model's predictions, a pure function of (key, entry): no generator state.

The largest of the logits with Gumbel noise is a draw from their softmax (Gumbel 1954; Maddison et
al. 2014, arXiv 1411.0030). The noise of an entry is a hash of the position's key and its id, so a
draw is the same on every mesh, and the partitioner can split the vocabulary.
"""

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.ops.hashing import fold_key

_HALF = np.float32(2.0**-33)
_BELOW_ONE = np.float32(1 - 2.0**-24)


def draw(logits: jax.Array, keys: jax.Array) -> jax.Array:
    """Returns an id drawn from the softmax of the logits at each position, int32 […].

    It has no gradient. Entries whose logit is -inf are never drawn.

    Args:
        logits: float32 […, V].
        keys: uint32 […], one for each position.
    """
    ids = jax.lax.broadcasted_iota(jnp.uint32, logits.shape, logits.ndim - 1)
    bits = fold_key(keys[..., None], ids)
    # 1 - u of a uniform u, in steps that are finest near 0, where the noise is largest.
    rest = bits.astype(jnp.float32) * np.float32(2.0**-32) + _HALF
    noise = -jnp.log(-jnp.log1p(-jnp.minimum(rest, _BELOW_ONE)))
    return jnp.argmax(jax.lax.stop_gradient(logits) + noise, axis=-1).astype(jnp.int32)
