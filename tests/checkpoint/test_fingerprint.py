"""Tests of fingerprints: definition, independence of sharding, detection of changes."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.checkpoint.fingerprint import STRIDE, fingerprints, mesh_of, program

TYPES = ("float32", "bfloat16", "float16", "int32", "uint32", "int8", "uint8", "bool")


def mix(x: np.ndarray, which: int) -> np.ndarray:
    (a, b, c), (one, two) = [
        ((16, 13, 16), (0x85EBCA6B, 0xC2B2AE35)),
        ((16, 15, 15), (0x21F0AAAD, 0xD35A2D97)),
    ][which]
    x = (x.astype(np.uint64) ^ (x >> a)) * one % 2**32
    x = (x ^ (x >> b)) * two % 2**32
    return x ^ (x >> c)


def reference(x: np.ndarray) -> str:
    """The definition, element by element."""
    word = {1: np.uint8, 2: np.uint16, 4: np.uint32}[x.dtype.itemsize]
    words = x.reshape(-1).view(word).astype(np.uint64)
    said = ""
    for which in (0, 1):
        position = np.zeros(x.size, np.uint64)
        for dim, index in enumerate(np.unravel_index(np.arange(x.size), x.shape) if x.ndim else ()):
            position += mix((index.astype(np.uint64) + (dim + 1) * STRIDE) % 2**32, which)
        total = int(mix(words ^ position % 2**32, which).sum() % 2**32)
        said += f"{total:08x}"
    return said


def random_array(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Random bits: NaNs with payloads, denormals, -0.0; only true and false for bool."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return rng.integers(0, 256, (*shape, kind.itemsize), np.uint8).view(kind).reshape(shape)


def of(x: np.ndarray) -> str:
    (only,) = fingerprints({"x": x if isinstance(x, jax.Array) else jnp.asarray(x)}).values()
    return only


@settings(max_examples=40)
@given(
    st.sampled_from(TYPES),
    st.sampled_from([(), (1,), (7,), (0, 3), (5, 1, 2), (3, 4, 2, 2)]),
    st.integers(0, 2**32),
)
def test_it_is_what_it_is_defined_to_be(dtype, shape, seed):
    x = random_array(dtype, shape, seed)
    assert of(x) == reference(x)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
def test_the_layout_does_not_matter(dtype):
    x = random_array(dtype, (8, 16, 4), 1)
    devices = np.array(jax.devices()).reshape(2, 4)
    mesh = Mesh(devices, ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    turned = Mesh(devices.T[::-1], ("b", "a"), axis_types=(AxisType.Auto,) * 2)
    specs = (P(), P("a"), P(None, "b"), P("b", "a"), P(("a", "b")), P("a", None, "b"))
    layouts = [NamedSharding(m, s) for m in (mesh, turned) for s in specs]
    assert {of(jax.device_put(x, layout)) for layout in layouts} == {reference(x)}


def test_a_tree_is_one_program_and_names_its_leaves():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    split, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    arrays = {"w": random_array("float32", (8, 3), 2), "n": random_array("int32", (), 3)}
    tree = {
        "params": {"w": jax.device_put(arrays["w"], split)},
        "opt": [jax.device_put(arrays["n"], whole), ()],
    }
    assert fingerprints(tree) == {
        "params/w": reference(arrays["w"]),
        "opt/0": reference(arrays["n"]),
    }
    fingerprints(jax.tree.map(lambda x: x + 1, tree))
    of_mesh = program(mesh_of(tree))
    assert of_mesh._cache_size() == 1
    assert of_mesh(tree).sharding.is_fully_replicated


@settings(max_examples=60)
@given(st.data())
def test_any_changed_bit_and_any_two_swapped_elements_show(data):
    dtype = data.draw(st.sampled_from(["float32", "bfloat16", "uint8"]))
    x = random_array(dtype, (6, 10), data.draw(st.integers(0, 99)))
    changed = x.copy()
    flat = changed.reshape(-1).view(np.uint8)
    bit = data.draw(st.integers(0, flat.size * 8 - 1))
    flat[bit // 8] ^= 1 << bit % 8
    before, after = of(x), of(changed)
    assert before[:8] != after[:8]  # one element: both halves, always
    assert before[8:] != after[8:]
    one, other = (data.draw(st.integers(0, 59)) for _ in range(2))
    swapped = x.copy().reshape(-1)
    swapped[[one, other]] = swapped[[other, one]]
    same = swapped.tobytes() == x.tobytes()
    assert (of(swapped.reshape(x.shape)) == before) == same


def test_equal_values_at_other_places_show():
    """Permuted rows in an array of few values, and an array of another shape."""
    x = np.zeros((16, 16), np.float32)
    said = set()
    for row in range(16):
        for column in range(16):
            x[...] = 0.0
            x[row, column] = 1.0
            said.add(of(x))
    x[...] = 0.0
    said |= {of(x), of(x.reshape(8, 32)), of(-x)}
    assert len(said) == 16 * 16 + 3


def test_it_takes_no_second_copy_of_an_array():
    shape = jax.ShapeDtypeStruct((12, 256, 1024), jnp.float32)
    memory = program(None).lower({"x": shape}).compile().memory_analysis()
    assert memory.temp_size_in_bytes < memory.argument_size_in_bytes / 100


@pytest.mark.parametrize("dtype", [jnp.complex64, jnp.int4])
def test_types_it_does_not_know_are_refused(dtype):
    with pytest.raises(TypeError, match="no fingerprint of"):
        fingerprints({"x": jnp.zeros(3, dtype)})
