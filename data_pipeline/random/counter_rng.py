"""Stateless random numbers: draw `n` of a key is a pure function, the same on every machine.

The generator is splitmix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014) in counter mode: draw `n` of key `k` is `mix(k + (n + 1)·GOLDEN)`. It has no state,
so documents and examples can be processed in any order, by any number of threads or hosts.

All functions are called from compiled code; Python calls them only to create keys. numba turns
int64 ⊕ uint64 into float64, hence every constant below is a uint64.
"""

import math
from typing import Final, Literal

import numpy as np

from bert_jax.data_pipeline.random.numba_jit import compiled

GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_LOW_HALF: Final = np.uint64(0xFFFFFFFF)
_ONE: Final = np.uint64(1)
_HALF: Final = np.uint64(32)
_ROUNDS: Final = np.uint64(8)  # 4 suffice for large n; small halves of 1-3 bits need more to mix

# The word after (seed, phase, epoch) in a key: one stream per purpose.
PAIRING: Final = 1
ORDER: Final = 2
MASKING: Final = 3
MIXING: Final = 4
PACKING: Final = 5


@compiled
def hash64(x: np.uint64) -> np.uint64:
    """The finalizer of splitmix64, a bijection on 64-bit integers."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compiled
def draw(key: np.uint64, n: int) -> np.uint64:
    """Returns draw `n` (from 0) of `key`: 64 random bits."""
    return hash64(key + (np.uint64(n) + _ONE) * GOLDEN)


@compiled
def fold_key(key: np.uint64, word: int) -> np.uint64:
    """Returns a new key from a key and a number, such as a document's number."""
    return hash64(hash64(key + GOLDEN) ^ (np.uint64(word) + GOLDEN))


@compiled
def below(bits: np.uint64, n: int) -> np.int64:
    """Returns an integer in [0, n) from 64 bits: the high word of bits·n, for n ≤ 2**32. No draw is
    rejected, so the number of draws never depends on their values (bias below n / 2**64)."""
    size = np.uint64(n)
    high = (bits >> _HALF) * size
    low = ((bits & _LOW_HALF) * size) >> _HALF
    return np.int64((high + low) >> _HALF)


@compiled
def below_sum(bits: np.uint64, total: int) -> np.int64:
    """Returns an integer in [0, total) as `below`, for a `total` up to 2**63."""
    size = np.uint64(total)
    size_high, size_low = size >> _HALF, size & _LOW_HALF
    high, low = bits >> _HALF, bits & _LOW_HALF
    upper = high * size_low + ((low * size_low) >> _HALF)
    lower = low * size_high + (upper & _LOW_HALF)
    return np.int64(high * size_high + (upper >> _HALF) + (lower >> _HALF))


@compiled
def chance(bits: np.uint64, limit: np.uint64) -> np.bool_:
    """Returns whether 64 bits, as a fraction in [0, 1), are below a probability; see
    `threshold`."""
    return (bits >> _ONE) < limit


def threshold(probability: float) -> np.uint64:
    """Returns the limit for which `chance` is true with this probability, 0 and 1 included.

    63 bits, so that 1.0 can be represented; exact: chance(bits) == (bits >> 1) / 2**63 < p.
    """
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"probability is {probability}, must be between 0 and 1")
    return np.uint64(math.ceil(probability * 2.0**63))


Purpose = Literal[1, 2, 3, 4, 5]


def stream_key(seed: int, phase: int, epoch: int, purpose: Purpose) -> np.uint64:
    """Returns the key of all draws for one purpose in one epoch of a phase."""
    key = np.uint64(0)
    for word in (seed, phase, epoch, purpose):
        key = np.uint64(fold_key(key, np.uint64(word % 2**64)))
    return key


@compiled
def _permuted(key: np.uint64, index: np.uint64, n: np.uint64, half_bits: np.uint64) -> np.uint64:
    mask = (_ONE << half_bits) - _ONE
    while True:  # cycle walking: the domain is below 4n, so under 4 iterations on average
        left, right = index >> half_bits, index & mask
        for step in range(_ROUNDS):
            scrambled = draw(key, right * _ROUNDS + np.uint64(step))
            left, right = right, left ^ (scrambled & mask)
        index = (left << half_bits) | right
        if index < n:
            return index


@compiled
def permute(key: np.uint64, indices: np.ndarray, n: int) -> np.ndarray:
    """Applies a keyed permutation of range(n) to each index: int64 [k] → int64 [k].

    A Feistel network over the next even number of bits, with cycle walking until the result is in
    range (Black & Rogaway, "Ciphers with arbitrary finite domains", 2002): constant time per index
    and no table. Every index must be in [0, n).
    """
    half_bits = _ONE
    while (_ONE << (half_bits + half_bits)) < np.uint64(n):
        half_bits += _ONE
    out = np.empty(len(indices), np.int64)
    for k in range(len(indices)):
        out[k] = np.int64(_permuted(key, np.uint64(indices[k]), np.uint64(n), half_bits))
    return out
