"""Initial values with which heads of the first layers attend to a neighbouring token.

BERT's published initial values leave attention nearly uniform. Small models then predict little
more than word frequencies for thousands of steps, until some head finds the neighbours.
Here the architecture stays BERT's and only initial values differ. The position table starts as
sinusoids, so a shift by o positions rotates each (sine, cosine) pair by a fixed angle. Keys copy
some pairs and queries rotate them, so the position part of a score is

    q_i · k_j ∝ Σ_f cos(w_f (i + o - j)),

which peaks at j = i + o. Heads get the offsets -1, +1, -2, +2, … in turn.

Related: structured initialization of vision transformers (arXiv 2404.01139), mimetic initialization
(Trockman and Kolter 2023, arXiv 2305.09828), guided attention heads (Deshpande and Narasimhan 2020,
arXiv 2010.03532).
"""

from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config.schema import ModelConfig

_FASTEST: Final = 2.8  # radians per position, below π: neighbours stay distinguishable
_SLOWEST: Final = 0.02  # a turn is 314 positions
TRUNCATED: Final = 0.88  # standard deviation of a normal distribution truncated at two of its own


def frequencies(hidden_size: int) -> np.ndarray:
    """Returns the frequencies of the pairs in radians per position, [H // 2], from fast to slow."""
    return np.geomspace(_FASTEST, _SLOWEST, hidden_size // 2)


def sinusoids(positions: int, hidden_size: int, std: float) -> np.ndarray:
    """Returns a table [positions, H]: sines, then cosines; `std` over all elements."""
    angles = np.arange(positions)[:, None] * frequencies(hidden_size)
    table = np.zeros((positions, hidden_size))
    table[:, : 2 * (hidden_size // 2)] = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return std * 2**0.5 * table


def position_table(config: ModelConfig) -> np.ndarray:
    """Returns the position table of a model with positional heads, [positions, H]: sinusoids, the
    pairs that no head reads `unread` times as large."""
    start = config.positional_heads
    std = start.table * config.initializer_range
    table = sinusoids(config.max_position_embeddings, config.hidden_size, std)
    pairs = np.full(config.hidden_size // 2, start.unread)
    pairs[_read_pairs(config.hidden_size, config.head_dim)] = 1
    table[:, : 2 * len(pairs)] *= np.tile(pairs, 2)
    return table


def _read_pairs(hidden_size: int, head_dim: int) -> np.ndarray:
    """Returns the pairs that a head reads, each head the same."""
    return np.linspace(0, hidden_size // 2 - 1, head_dim // 2).astype(int)


def guided_kernels(hidden_size: int, head_dim: int, offsets: Sequence[int]) -> np.ndarray:
    """Returns query and key kernels [H, 2, A, D] with which head a attends to offset offsets[a].

    A head reads D // 2 pairs. If their sines and cosines have the amplitude 1, q · k peaks at that
    number.
    """
    half, pairs = hidden_size // 2, head_dim // 2
    chosen = _read_pairs(hidden_size, head_dim)
    kernels = np.zeros((hidden_size, 2, len(offsets), head_dim))
    for head, offset in enumerate(offsets):
        angle = frequencies(hidden_size)[chosen] * offset
        first, second = np.arange(pairs), pairs + np.arange(pairs)
        query, key = kernels[:, 0, head], kernels[:, 1, head]
        query[chosen, first], query[half + chosen, first] = np.cos(angle), np.sin(angle)
        query[chosen, second], query[half + chosen, second] = -np.sin(angle), np.cos(angle)
        key[chosen, first] = key[half + chosen, second] = 1
    return kernels


def guide(params: dict[str, Any], config: ModelConfig) -> dict[str, Any]:
    """Returns `params`, which are published initial values, with positional heads."""
    start = config.positional_heads
    params = jax.tree.map(lambda x: x, params)  # new dicts
    embeddings, layers = params["encoder"]["embeddings"], params["encoder"]["layers"]
    embeddings["position"] = jnp.asarray(position_table(config), jnp.float32)
    guided = guided_kernels(config.hidden_size, config.head_dim, config.head_offsets)
    kernel = layers["attention"]["qkv"]["kernel"]  # [L, H, 3, A, D]
    place = np.s_[: start.layers, :, :2]
    guided = start.noise * kernel[place] + jnp.asarray(_size(config) * guided, jnp.float32)[None]
    layers["attention"]["qkv"]["kernel"] = kernel.at[place].set(guided)
    return params


def _size(config: ModelConfig) -> float:
    """Returns the factor of guided kernels for which q · k / sqrt(D) peaks at `sharpness`.

    The sum of word, type and position embeddings is normalized to unit variance. If each pair were
    as large as those that are read, positions would have `share` of it, and a (sine, cosine) pair
    the squared size 2·share.
    """
    start, pairs = config.positional_heads, config.head_dim // 2
    positions = start.table**2
    read = pairs / (config.hidden_size // 2)
    mean = positions * (read + (1 - read) * start.unread**2) if start.unread < 1 else positions
    share = positions / (mean + 2 * TRUNCATED**2)
    return (
        float(config.positional_heads.sharpness * config.head_dim**0.5 / (2 * share * pairs)) ** 0.5
    )
