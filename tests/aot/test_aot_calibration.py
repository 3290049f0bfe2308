"""Programs of the real TPU compiler whose cycles, loops and bytes are known; needs no TPU.

libtpu is found as in test_slices.py, and used in a process of its own (this file, run as a
program).
"""

import json
from typing import Any

import pytest
from tpu_compiler import answer_of, needs_libtpu

from bert_jax.aot.cost.analysis import Analysis, analyse
from bert_jax.hardware.accelerators import BY_DEVICE_KIND

SIDE, TURNS = 4096, 5
V5E = BY_DEVICE_KIND["TPU v5 lite"]

pytestmark = [
    pytest.mark.slow,
    needs_libtpu,
]


def compiled() -> dict[str, str]:
    """The optimized texts of some programs for four chips of v5e."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention
    from jax.experimental.topologies import get_topology_desc
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    devices = get_topology_desc("v5e:2x2", platform="tpu").devices
    mesh = Mesh(np.array(devices).reshape(2, 2), ("data", "tensor"))

    def array(shape: tuple[int, ...], *axes: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*axes)))

    def text(function: Any, *arrays: jax.ShapeDtypeStruct) -> str:
        whole = NamedSharding(mesh, P())
        return jax.jit(function, out_shardings=whole).lower(*arrays).compile().as_text()

    square, heads = array((SIDE, SIDE)), array((1, 4, 512, 128))

    def flash(q: jax.Array) -> jax.Array:
        return flash_attention(q, q, q)

    def repeated(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, TURNS, lambda _, x: x @ b, a)

    kernel = jax.shard_map(flash, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    left, right = array((SIDE, SIDE), None, "tensor"), array((SIDE, SIDE), "tensor")
    return {
        "product": text(lambda a, b: a @ b, square, square),
        "loop": text(repeated, square, square),
        "kernel": text(kernel, heads),
        "sum": text(lambda a, b: a @ b, left, right),
    }


@pytest.fixture(scope="module")
def found() -> dict[str, Analysis]:
    return {
        name: analyse(text, mesh_shape={"data": 2, "tensor": 2}, accelerator=V5E)
        for name, text in answer_of(__file__).items()
    }


def test_a_product_runs_at_the_published_share_of_the_peak(found: dict[str, Analysis]) -> None:
    flops = 2 * SIDE**3
    assert flops / found["product"].cycles == pytest.approx(126_898, rel=0.01)
    assert flops / found["product"].cycles == pytest.approx(V5E.flops_per_cycle, rel=0.01)
    assert found["product"].compute_seconds > flops / V5E.bf16_flops


def test_a_loop_counts_as_often_as_it_turns(found: dict[str, Analysis]) -> None:
    assert list(found["loop"].trips.values()) == [TURNS]
    product = found["loop"].operations[0]  # the other is the copy of what goes from turn to turn
    assert "dot_general" in product.op_name
    assert product.total == TURNS * product.cycles
    assert product.cycles == pytest.approx(found["product"].cycles, rel=0.02)
    assert found["loop"].cycles == sum(one.total for one in found["loop"].operations)


def test_a_kernel_is_bounded_by_its_own_estimate(found: dict[str, Analysis]) -> None:
    (kernel,) = (one for one in found["kernel"].unestimated if one.kind == "tpu_custom_call")
    products = 2 * 2 * 4 * 512 * 512 * 128  # scores and values, of four heads
    assert kernel.flops == pytest.approx(products, rel=0.05)
    assert kernel.seconds >= products / V5E.bf16_flops


def test_a_contraction_over_devices_is_summed_over_their_axis(found: dict[str, Analysis]) -> None:
    (one,) = found["sum"].collectives
    assert (one.kind, one.axes, one.devices, one.network) == ("all-reduce", ("tensor",), 2, "ici")
    assert one.bytes in (2 * SIDE**2, 4 * SIDE**2)
    assert one.sent == one.bytes  # 2 (n - 1) / n
    assert one.seconds == pytest.approx(one.bytes / 200e9)


if __name__ == "__main__":
    print(json.dumps(compiled()))
