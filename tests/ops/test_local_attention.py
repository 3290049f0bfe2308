"""Attention within a window: blocks of keys give what a mask over all keys gives."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.ops.attention import local, xla


@dataclasses.dataclass(frozen=True)
class Case:
    rows: int = 2
    length: int = 700
    heads: int = 3
    head_dim: int = 8
    window: int = 128
    dtype: str = "float32"
    examples: int = 1


CASES = [
    Case(),
    Case(length=512, examples=5),
    Case(length=301, window=7),
    pytest.param(Case(length=300, window=128), id="shorter-than-the-blocks"),
    pytest.param(Case(length=1100, window=300, rows=1, heads=1), marks=pytest.mark.slow),
    pytest.param(Case(dtype="bfloat16", examples=3), marks=pytest.mark.slow),
]


def arrays_of(case: Case) -> tuple[jax.Array, ...]:
    """(q, k, v, examples, gradient of the result); rows end in padding of different length."""
    rng = np.random.default_rng(case.length)
    shape = (case.rows, case.length, case.heads, case.head_dim)
    q, k, v, dy = (jnp.asarray(rng.normal(size=shape), case.dtype) for _ in range(4))
    position, real = np.arange(case.length), case.length - 13 * np.arange(case.rows)[:, None]
    examples = np.where(position < real, 1 + position * case.examples // real, 0)
    return q, k, v, jnp.asarray(examples, jnp.int32), dy


def plain(q: jax.Array, k: jax.Array, v: jax.Array, examples: jax.Array, window: int) -> jax.Array:
    """Softmax over a matrix of all scores."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    scores = jnp.einsum("bqad,bkad->baqk", q, k, precision="highest") * q.shape[-1] ** -0.5
    i = jnp.arange(q.shape[1])[None]
    allowed = jnp.abs(i[:, :, None] - i[:, None]) <= window // 2
    allowed = allowed & (examples[:, :, None] == examples[:, None, :])
    weights = jax.nn.softmax(jnp.where(allowed[:, None], scores, -jnp.inf))
    return jnp.einsum("baqk,bkad->bqad", weights, v, precision="highest")


def both_ways(form: object, arrays: tuple[jax.Array, ...], window: int) -> list[np.ndarray]:
    *qkv, examples, dy = arrays

    def run(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple:
        y, gradients_of = jax.vjp(lambda q, k, v: form(q, k, v, examples, window=window), q, k, v)
        return y, *gradients_of(dy.astype(y.dtype))

    with jax.default_matmul_precision("highest"):
        return [np.asarray(x, np.float32) for x in jax.jit(run)(*qkv)]


@pytest.mark.parametrize("case", CASES)
def test_blocks_equal_a_mask(case: Case) -> None:
    arrays = arrays_of(case)
    limit = 1e-5 if case.dtype == "float32" else 2e-2
    expected = both_ways(plain, arrays, case.window)
    for e, g in zip(expected, both_ways(local.attend, arrays, case.window), strict=True):
        np.testing.assert_allclose(g, e, atol=limit * max(1, np.abs(e).max()))


def test_a_window_of_the_row_is_attention_to_all() -> None:
    q, k, v, examples, _ = arrays_of(Case(length=300))
    np.testing.assert_array_equal(
        local.attend(q, k, v, examples, window=600), xla.attend(q, k, v, examples)
    )


def test_a_position_may_read_another_example() -> None:
    """As with `xla.attend`, [B, 2, S]: the example that is read, and a position's own."""
    q, k, v, own, _ = arrays_of(Case(examples=4))
    reads = jnp.where(own == 0, 4, own)
    y = local.attend(q, k, v, jnp.stack([reads, own], axis=1), window=128)
    all_own = plain(q, k, v, own, 128)
    np.testing.assert_allclose(
        np.where((own > 0)[:, :, None, None], y, 0),
        np.where((own > 0)[:, :, None, None], all_own, 0), atol=1e-5,
    )  # fmt: skip
    padding = np.asarray(own == 0)
    assert not np.allclose(np.asarray(y)[padding], np.asarray(all_own)[padding], atol=1e-3)


def test_dropout_keeps_its_share_of_what_is_seen() -> None:
    q, k, _, examples, _ = arrays_of(Case(rows=1, length=640, heads=1))
    ones = jnp.ones((1, 640, 1, 8))
    y = local.attend(q * 0, k, ones, examples, window=128, rate=0.25, key=jnp.uint32(3))
    assert float(y.mean()) == pytest.approx(1, abs=0.02)
    assert float(y.std()) > 0.01


@pytest.mark.parametrize("length", [320, 1000, 1024, 4096])
def test_each_query_is_multiplied_by_what_is_counted(length: int) -> None:
    """`pairs`, from which FLOPs are computed, is what the products have."""
    case = Case(rows=1, length=length, heads=2, head_dim=4)
    q, k, v, examples, _ = arrays_of(case)
    jaxpr = jax.make_jaxpr(lambda *a: local.attend(*a, window=128))(q, k, v, examples)
    scores = max(
        np.prod(variable.aval.shape)
        for equation in jaxpr.jaxpr.eqns[-1:] + jaxpr.jaxpr.eqns
        for variable in equation.outvars
        if equation.primitive.name in ("custom_vjp_call", "dot_general")
        for inner in [equation.params.get("call_jaxpr")]
        if inner is not None
        for e in inner.eqns
        if e.primitive.name == "dot_general"
        for variable in e.outvars
    )
    assert scores == 2 * local.pairs(length, 128)
