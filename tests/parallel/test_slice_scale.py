"""The step on hundreds of chips, through the real compiler; needs libtpu, but no TPU.

As test_slices.py, which says where the copy of libtpu comes from: this file, run as a
program, compiles; the tests judge what it prints, and what the compiler wrote to standard error.

The global batch is recognized by its size. 11 rows a chip, and 3 is a factor of every other size in
the model, so that no product of sizes that one chip has is 256 times its rows.
"""

import dataclasses
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from tpu_compiler import needs_libtpu, with_support

CHIPS = 256
ROWS = 11 * CHIPS
LENGTH, SLOTS, HEADS = 96, 15, 2
CASES: dict[str, dict[str, Any]] = {
    "whole optimizer": {"slice": f"v5e-{CHIPS}"},
    "split optimizer": {"slice": f"v5e-{CHIPS}", "shard_optimizer": True},
    "all axes": {
        "slice": f"v5e-{CHIPS}", "mesh": {"fsdp": 2, "tensor": 2}, "shard_optimizer": True,
    },
    "two slices": {"slice": f"2xv5e-{CHIPS}", "mesh": {"slice": 2}},
}  # fmt: skip
UNPARTITIONED = "moved rows"  # a program that must have what the others must not
MARK = "--- compiling: "
COMPLAINT = "nvoluntary full rematerialization"

# Compiling takes minutes; that nothing else has changed is seen with fewer chips (test_slices.py).
pytestmark = [
    pytest.mark.nightly,
    needs_libtpu,
]


@dataclasses.dataclass(frozen=True)
class Compiled:
    """found: what `compile_case` found. log: what the compiler had to say in the meantime."""

    found: dict[str, Any]
    log: str


@pytest.fixture(scope="module")
def compiled() -> dict[str, Compiled]:
    # By default libtpu keeps its warnings to itself.
    quiet = {"TPU_STDERR_LOG_LEVEL": "0", "TPU_MIN_LOG_LEVEL": "0"}
    environment = with_support({**os.environ, **quiet})
    done = subprocess.run(
        [sys.executable, __file__],
        env=environment, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    logs = dict(part.split("\n", 1) for part in done.stderr.split(MARK)[1:])
    return {name: Compiled(one, logs[name]) for name, one in json.loads(done.stdout).items()}


@pytest.mark.parametrize("case", CASES)
def test_no_operation_has_the_shape_of_the_global_batch(case: str, compiled: dict) -> None:
    """Nor of all its tokens, predictions or heads, which would be as bad."""
    assert compiled[case].found["global"] == []


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_rematerialized_against_its_will(case: str, compiled: dict) -> None:
    assert COMPLAINT not in compiled[case].log


def test_what_must_not_be_would_be_seen(compiled: dict) -> None:
    """The same search and the same log, of a program that moves rows between chips."""
    assert compiled[UNPARTITIONED].found["global"]
    assert COMPLAINT in compiled[UNPARTITIONED].log


def test_between_slices_a_chip_sends_its_share_of_the_gradients(compiled: dict) -> None:
    """A gradient is summed within a slice first, of which every chip then has its part: a 256th.

    That, padded to the hardware's tiles, goes over the network between slices once: in all no more
    than if every gradient were float32 (most are bfloat16). Without the first sum a chip would send
    everything.
    """
    found = compiled["two slices"].found
    between = [one for one in found["collectives"] if one["network"] == "dcn"]
    assert between
    assert {tuple(one["axes"]) for one in between} == {("slice",)}
    sent = sum(one["sent"] for one in between)
    share = found["parameters"] / CHIPS  # float32, as the parameters are
    assert 0.5 * share < sent < 1.25 * share
    within = sum(one["sent"] for one in found["collectives"] if one["network"] == "ici")
    assert within > 100 * sent


@pytest.mark.parametrize("case", ["whole optimizer", "split optimizer", "all axes"])
def test_within_a_slice_nothing_goes_over_another_network(case: str, compiled: dict) -> None:
    assert {one["network"] for one in compiled[case].found["collectives"]} == {"ici"}


# What this file does when run as a program.


def main() -> None:
    from bert_jax.aot import topology

    topology.prepare()
    found = {}
    for name, case in CASES.items():
        print(f"{MARK}{name}", file=sys.stderr, flush=True)
        found[name] = compile_case(**case)
    print(f"{MARK}{UNPARTITIONED}", file=sys.stderr, flush=True)
    found[UNPARTITIONED] = compile_moved()
    print(json.dumps(found))


def compile_case(
    slice: str, mesh: dict[str, int] | None = None, shard_optimizer: bool = False
) -> dict[str, Any]:
    """A step of two layers of `base`, with dropout, on a slice."""
    from bert_jax.aot import lower, topology
    from bert_jax.aot.cost import analysis
    from bert_jax.aot.cost.memory import ResidentBytes
    from bert_jax.config.config_files import load
    from bert_jax.hardware import slices
    from bert_jax.parallel.mesh import make_mesh

    of, base = slices.find(slice), load("base")
    model = dataclasses.replace(
        base.model, vocab_size=3000, pad_vocab_to_multiple_of=3072, num_hidden_layers=2,
        num_attention_heads=HEADS, intermediate_size=1536, max_position_embeddings=LENGTH,
    )  # fmt: skip
    assert model.hidden_dropout_prob > 0
    assert model.attention_probs_dropout_prob > 0
    phase = dataclasses.replace(
        base.phases[0], batch_size=ROWS * of.count, seq_length=LENGTH, max_predictions=SLOTS
    )
    config = dataclasses.replace(
        base, model=model, phases=(phase,),
        mesh=dataclasses.replace(base.mesh, **mesh or {}),
        compute=dataclasses.replace(base.compute, shard_optimizer=shard_optimizer),
    )  # fmt: skip
    laid = make_mesh(config.mesh, topology.devices(of))
    built = lower.build(config, laid)
    held = ResidentBytes.of(config, phase, built)
    text = lower.lower(config, phase, laid, built).compile().as_text() or ""
    accelerator = of.generation.accelerator
    found = analysis.analyse(text, mesh_shape=dict(laid.shape), accelerator=accelerator)
    return {
        "parameters": held.parameters,
        "collectives": [dataclasses.asdict(one) for one in found.collectives],
        "global": global_shapes(text, phase.batch_size),
    }


def global_shapes(text: str, rows: int) -> list[str]:
    """Operations with a dimension that counts rows of the whole batch, or what is in them."""
    import shape_search

    inside = (1, LENGTH, SLOTS, HEADS, HEADS * LENGTH)
    sizes = {rows * n for n in inside}
    found = shape_search.computed(text, lambda shape: not sizes.isdisjoint(shape.dims))
    return [f"{one.name}: {shape}" for one, shape in found]


def compile_moved() -> dict[str, Any]:
    """Rows split over all chips, then laid out in another way that keeps nothing where it is."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    from bert_jax.aot import topology
    from bert_jax.hardware import slices

    devices = topology.devices(slices.find("v5e-16"))
    types = (AxisType.Auto,) * 3
    mesh = jax.make_mesh((2, 2, 4), ("a", "b", "c"), axis_types=types, devices=devices)
    laid, other = (
        NamedSharding(mesh, P(*axes)) for axes in ((("a", "c"), "b"), (None, "c", ("b", "a")))
    )

    def move(x: jax.Array) -> jax.Array:
        x = jnp.sort(x, axis=0).reshape(ROWS // 8, 8, 64)
        return 2 * jax.lax.with_sharding_constraint(x, other)

    rows = jax.ShapeDtypeStruct((ROWS, 64), jnp.float32, sharding=laid)
    text = jax.jit(move).lower(rows).compile().as_text() or ""
    return {"global": global_shapes(text, ROWS)}


if __name__ == "__main__":
    main()
