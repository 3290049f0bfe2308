"""A packed row of two examples gives what two rows give, with every attention kernel.

Flash attention elsewhere has ignored packing without a word (MaxText #4476, #4478). cuDNN's kernel
needs an NVIDIA GPU: `BERT_JAX_TEST_PLATFORM=cuda pytest -m gpu tests/ops`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.ops.attention import cudnn, local, pallas, splash, xla

S, A, D = 384, 4, 64
FIRST, SECOND = 150, 170  # tokens of the examples; the rest of each row is padding


KERNELS = [
    pytest.param(xla.attend, "float32", 1e-5, id="xla"),
    pytest.param(functools.partial(pallas.attend, interpret=True), "float32", 1e-5, id="pallas"),
    pytest.param(
        functools.partial(splash.attend, interpret=True),
        "float32",
        1e-5,
        id="splash",
        marks=pytest.mark.slow,
    ),
    pytest.param(functools.partial(local.attend, window=64), "float32", 1e-5, id="windows"),
    pytest.param(xla.attend, "bfloat16", 1e-2, id="xla-bfloat16"),
    pytest.param(cudnn.attend, "bfloat16", 1e-2, id="cudnn", marks=pytest.mark.gpu),
]


def two_rows(dtype: str, seed: int = 0) -> tuple[jax.Array, ...]:
    """(q, k, v, gradient of the result), each [2, S, A, D]."""
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.normal(size=(2, S, A, D)), dtype) for _ in range(4))


def packed(x_2xSxAxD: jax.Array) -> jax.Array:
    """Both examples in one row, [1, S, A, D]; what was padding stays."""
    x = x_2xSxAxD.at[0, FIRST : FIRST + SECOND].set(x_2xSxAxD[1, :SECOND])
    return x[:1]


def ids(*lengths: int) -> np.ndarray:
    row = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    return np.pad(row, (0, S - len(row))).astype(np.int32)


def both_ways(kernel: Any, arrays: tuple[jax.Array, ...], examples: np.ndarray) -> list:
    """The result and the gradients of q, k and v, in float32; padding has no gradient."""
    *qkv, dy = arrays
    ids_BxS = jnp.asarray(examples)
    dy = jnp.where((ids_BxS > 0)[:, :, None, None], dy, 0)

    def run(q: Any, k: Any, v: Any, dy: Any) -> tuple:
        y, gradients_of = jax.vjp(lambda q, k, v: kernel(q, k, v, ids_BxS), q, k, v)
        return y, *gradients_of(dy.astype(y.dtype))

    return [np.asarray(x, np.float32) for x in jax.jit(run)(*qkv, dy)]


def of_the_first(row: np.ndarray) -> np.ndarray:
    return row[0, :FIRST]


@pytest.mark.parametrize(("kernel", "dtype", "tolerance"), KERNELS)
def test_two_examples_in_a_row_equal_two_rows(kernel: Any, dtype: str, tolerance: float) -> None:
    arrays = two_rows(dtype)
    alone = both_ways(kernel, arrays, np.stack([ids(FIRST), ids(SECOND)]))
    together = both_ways(kernel, tuple(map(packed, arrays)), ids(FIRST, SECOND)[None])
    for rows, row in zip(alone, together, strict=True):
        expected = np.concatenate([rows[0, :FIRST], rows[1, :SECOND]])
        difference = np.linalg.norm(row[0, : FIRST + SECOND] - expected)
        assert difference < tolerance * np.linalg.norm(expected)


@pytest.mark.parametrize(("kernel", "dtype", "tolerance"), KERNELS)
def test_nothing_of_an_example_depends_on_the_other(
    kernel: Any, dtype: str, tolerance: float
) -> None:
    row = tuple(map(packed, two_rows(dtype)))
    other = tuple(
        x.at[:, FIRST:].set(y[:, FIRST:])
        for x, y in zip(row, map(packed, two_rows(dtype, seed=1)), strict=True)
    )
    examples = ids(FIRST, SECOND)[None]
    for a, b in zip(
        both_ways(kernel, row, examples), both_ways(kernel, other, examples), strict=True
    ):
        np.testing.assert_array_equal(of_the_first(a), of_the_first(b))
        assert (a[0, FIRST : FIRST + SECOND] != b[0, FIRST : FIRST + SECOND]).any()
