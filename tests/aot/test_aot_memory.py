"""Memory by kind, what the compiler says when it is too little, and what would help."""

import dataclasses
import math

import jax
import pytest
from nightly import others_nightly

from bert_jax.aot import lower
from bert_jax.aot.cost.memory import GIB, CompileOOM, Memory, ResidentBytes
from bert_jax.aot.memory_advice import bytes_with, remedies
from bert_jax.config.config_files import load
from bert_jax.config.schema import Config
from bert_jax.config.serialization import from_dict, to_dict
from bert_jax.parallel.mesh import make_mesh

# What libtpu 0.0.42.1 said of a program, and the form that XLA's buffer assignment has.
REFUSAL = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
    "(40.23G) exceeds available HBM (15.75G)."
)
OLDER = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
    "Used 31.46G of 15.75G hbm. Exceeded hbm capacity by 15.71G."
)


def tiny(**changes: object) -> Config:
    """The tiny config with 64 rows; changes by key, as on the command line."""
    plain = to_dict(load("tiny"))
    plain["phases"][0]["batch_size"] = 64
    for key, value in changes.items():
        group, name = key.split("__")
        (plain["phases"][0] if group == "phase" else plain[group])[name] = value
    return from_dict(plain, Config)


def held(config: Config) -> ResidentBytes:
    mesh = make_mesh(config.mesh, jax.devices())
    built = lower.build(config, mesh)
    return ResidentBytes.of(config, config.phases[0], built)


@pytest.fixture(scope="module")
def mesh() -> jax.sharding.Mesh:
    return make_mesh(load("tiny").mesh, jax.devices())


def test_what_goes_into_a_step_is_counted_by_kind(mesh) -> None:
    config = tiny()
    built = lower.build(config, mesh)
    numbers = sum(math.prod(x.shape) for x in jax.tree.leaves(built.abstract["params"]))
    found = held(config)
    assert found.parameters == 4 * numbers
    assert found.optimizer == pytest.approx(8 * numbers, rel=1e-4)  # two moments, and a count
    rows = 64 // 8
    assert found.batch == rows * 4 * (4 * 128 + 3 * 20 + 4)


def test_what_is_split_takes_its_part_on_each_device() -> None:
    whole = held(tiny())
    split = held(tiny(compute__shard_optimizer=True))
    # What 8 does not divide, such as the two biases of the pair head, stays whole.
    assert whole.parameters / 8 <= split.parameters < 1.1 * whole.parameters / 8
    assert whole.optimizer / 8 <= split.optimizer < 1.1 * whole.optimizer / 8
    both = held(tiny(mesh__data=2, mesh__fsdp=4))
    assert both.parameters < 0.95 * whole.parameters  # most are in tables, which stay whole
    assert both.batch == whole.batch


SMALL = {"model__num_hidden_layers": 1, "model__hidden_size": 32, "model__vocab_size": 500}


def test_kinds_of_a_compiled_step_add_up(mesh) -> None:
    config = tiny(**SMALL)
    found = held(config)
    compiled = lower.lower(config, config.phases[0], mesh).compile()
    taken = Memory.of_compiled(found, compiled, 16 * GIB)
    analysis = compiled.memory_analysis()
    assert analysis is not None
    assert taken.fits
    assert sum(taken.kinds.values()) == taken.total
    assert taken.temporaries == analysis.temp_size_in_bytes > 0
    written = analysis.output_size_in_bytes - analysis.alias_size_in_bytes  # the state is donated
    assert taken.total == pytest.approx(
        analysis.argument_size_in_bytes
        + analysis.temp_size_in_bytes
        + analysis.generated_code_size_in_bytes
        + written,
        rel=1e-3,
    )


@pytest.mark.parametrize(
    ("message", "needed", "limit"), [(REFUSAL, 40.23, 15.75), (OLDER, 31.46, 15.75)]
)
def test_what_the_compiler_refuses_is_read(message: str, needed: float, limit: float) -> None:
    refused = CompileOOM.read(message)
    assert refused == CompileOOM(round(needed * GIB), round(limit * GIB))
    found = ResidentBytes(parameters=GIB, optimizer=2 * GIB, batch=1000)
    taken = Memory.of_refused(found, refused)
    assert not taken.fits
    assert taken.total == refused.needed
    assert taken.limit == refused.limit
    assert taken.parameters == GIB


def test_other_errors_of_the_compiler_are_not_about_memory() -> None:
    assert CompileOOM.read("INTERNAL: Mosaic failed to compile TPU kernel") is None
    assert CompileOOM.read("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem.") is None


def memory_of(config: Config, activations: int, limit: int) -> Memory:
    """A refused step with so many bytes of activations beside its state and two of gradients."""
    found = held(config)
    temporaries = 2 * found.parameters + activations
    kinds = (found.parameters, found.optimizer, found.batch, temporaries, 0)
    return Memory(*kinds, limit, fits=False)


MIB = 2**20


def test_the_mildest_change_of_each_kind_is_named_and_estimated(mesh) -> None:
    config = tiny()
    state = held(config).parameters
    # Room for the state, five copies of the gradients and a third of the activations.
    taken = memory_of(config, 300 * MIB, limit=8 * state + 100 * MIB)
    found = {next(iter(r.changes)): r for r in remedies(config, 0, mesh, taken)}
    parts = found["phases[0].micro_batches"]
    assert parts.flags == "'--config.phases[0].micro_batches=4'"  # with 2, half of them is left
    assert parts.needed == pytest.approx(8 * state + 75 * MIB, rel=0.01)
    for remedy in found.values():
        assert taken.limit is not None
        assert remedy.needed <= taken.limit < taken.total


def test_splitting_the_optimizer_helps_by_what_it_splits(mesh) -> None:
    config = tiny(compute__remat="full")
    found = held(config)
    taken = memory_of(config, 0, limit=4 * found.parameters)
    (remedy,) = (r for r in remedies(config, 0, mesh, taken) if "shard_optimizer" in r.flags)
    assert remedy.changes == {"compute.shard_optimizer": True}
    split = held(tiny(compute__remat="full", compute__shard_optimizer=True))
    gradients = 2 * found.parameters  # each device has all of them until they are summed
    assert remedy.needed == gradients + split.parameters + split.optimizer + split.batch


def test_where_no_change_is_enough_all_are_tried_together(mesh) -> None:
    config = tiny()
    taken = memory_of(config, 10_000 * MIB, limit=MIB)
    (remedy,) = remedies(config, 0, mesh, taken)
    assert remedy.needed > MIB
    assert set(remedy.changes) == {
        "phases[0].micro_batches", "compute.remat", "compute.shard_optimizer", "mesh.fsdp",
    }  # fmt: skip
    assert remedy.changes["phases[0].micro_batches"] == 8  # a row of each device at a time


@pytest.mark.slow
@pytest.mark.parametrize("dtype", others_nightly(["float32", "bfloat16"], keep=["float32"]))
def test_parameters_that_are_split_are_whole_while_a_step_runs(dtype: str, mesh) -> None:
    """So smaller parts of a batch do not divide what they and their gradients take."""
    split = {
        "model__num_hidden_layers": 1, "compute__shard_optimizer": True, "compute__dtype": dtype,
    }  # fmt: skip
    config, changed = tiny(**split), tiny(**split, phase__micro_batches=8)
    before, after = (
        Memory.of_compiled(held(c), lower.lower(c, c.phases[0], mesh).compile(), None)
        for c in (config, changed)
    )
    estimate = bytes_with(config, 0, mesh, before, {"phases[0].micro_batches": 8})
    assert estimate is not None
    assert after.total <= estimate


@pytest.mark.slow
def test_a_remedy_makes_a_step_fit(mesh) -> None:
    """Compiled with it, the step takes no more than the limit."""
    config = tiny(**SMALL)
    step = lower.lower(config, config.phases[0], mesh).compile()
    before = Memory.of_compiled(held(config), step, None)
    limit = before.total - before.temporaries // 3
    remedy = remedies(config, 0, mesh, dataclasses.replace(before, limit=limit, fits=False))[0]
    (parts,) = remedy.changes.values()
    assert remedy.flags == f"'--config.phases[0].micro_batches={parts}'"
    changed = tiny(**SMALL, phase__micro_batches=parts)
    after = lower.lower(changed, changed.phases[0], mesh).compile()
    assert Memory.of_compiled(held(changed), after, None).total <= limit
