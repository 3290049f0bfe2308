"""Vectors in fewer bytes: int8 with a range for each dimension, and one bit a dimension.

The codes are those of sentence_transformers.util.quantization (`quantize_embeddings` with "int8"
and "ubinary"; release 6.2), so that its indices read them. N vectors of D dimensions.
"""

from typing import Any, Final, Literal

import jax
import jax.numpy as jnp
import numpy as np

Dtype = Literal["float32", "int8", "binary"]
DTYPES: Final[tuple[Dtype, ...]] = ("float32", "int8", "binary")
_STEPS: Final = 255  # from the lowest code of int8 to the highest
_LOWEST: Final = -128  # the code of the lowest value


def to_int8(vectors_NxD: np.ndarray, ranges_2xD: np.ndarray) -> np.ndarray:
    """Returns the codes of vectors, int8 [N, D].

    Args:
        ranges_2xD: the smallest and the largest value of each dimension; values outside get the
            code of the end that is nearer.
    """
    low, step = ranges_2xD[0], _step(ranges_2xD)
    whole = np.floor((vectors_NxD - low) / np.where(step > 0, step, 1))
    return (np.clip(whole, 0, _STEPS) + _LOWEST).astype(np.int8)


def to_bits(vectors_NxD: np.ndarray) -> np.ndarray:
    """Returns which numbers are above 0, uint8 [N, D / 8], the first in the highest bit; D must be
    a multiple of 8."""
    return np.packbits(vectors_NxD > 0, axis=1)


def decoded(stored_NxW: jax.Array, ranges_2xD: jax.Array | None) -> jax.Array:
    """Returns the vectors that stored ones stand for, float32 [N, D].

    Args:
        stored_NxW: numbers; int8 codes, which stand for the middle of their step; or uint8 with
            eight bits each, which stand for 1 and -1.
        ranges_2xD: of int8 codes, as `to_int8`.
    """
    if stored_NxW.dtype == jnp.uint8:
        places = jnp.arange(7, -1, -1, dtype=jnp.uint8)
        bits_NxWx8 = (stored_NxW[:, :, None] >> places[None, None, :]) & 1
        return 2.0 * bits_NxWx8.reshape(len(stored_NxW), -1).astype(jnp.float32) - 1
    codes_NxD = stored_NxW.astype(jnp.float32)
    if stored_NxW.dtype != jnp.int8:
        return codes_NxD
    assert ranges_2xD is not None
    middle_NxD = jnp.minimum(codes_NxD - _LOWEST + 0.5, _STEPS)  # the highest value has its own
    return ranges_2xD[:1] + middle_NxD * _step(ranges_2xD)[None]


def _step(ranges_2xD: Any) -> Any:
    return (ranges_2xD[1] - ranges_2xD[0]) / _STEPS
