"""The table of mesh axes, where the arrays of every config lie, which rows a process makes."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from bert_jax.config.config_files import load
from bert_jax.config.schema import Config, MeshConfig
from bert_jax.config.shipped import shipped
from bert_jax.errors import UserError
from bert_jax.objectives.corpus import Corpus
from bert_jax.parallel import global_batch, partition
from bert_jax.parallel.mesh import MESH_AXES, make_mesh
from bert_jax.training.step import StepFunctions, compiler_options, make_step_functions


class FakeGpu(SimpleNamespace):
    """A device that a mesh can hold."""

    def __hash__(self) -> int:
        return hash(self.id)


GOLDENS = Path(__file__).parents[1] / "goldens" / "shardings"
REGENERATE = "PYTHONPATH=tests/support python tests/parallel/test_sharding.py"
SIZES = {"slice": 2, "data": 8, "fsdp": 4, "tensor": 2}  # of the mesh of the golden texts


def abstract_mesh(**sizes: int) -> AbstractMesh:
    shape = tuple(sizes.get(axis, 1) for axis in MESH_AXES)
    return AbstractMesh(shape, MESH_AXES, axis_types=(AxisType.Auto,) * len(shape))


def program_on(config: Config, **sizes: int) -> StepFunctions:
    """The program of a config on a mesh that no device stands behind."""
    config = changed(config, "compute", attention="xla")  # "auto" asks the devices
    return make_step_functions(config, abstract_mesh(**sizes), Corpus((), np.zeros(1, np.float32)))


def changed(config: Config, group: str, **values: object) -> Config:
    return dataclasses.replace(
        config, **{group: dataclasses.replace(getattr(config, group), **values)}
    )


def described(program: StepFunctions) -> dict[str, str]:
    """Each array of the state: its shape, with the mesh axes that split a dimension behind it."""

    def leaf(x: jax.ShapeDtypeStruct) -> str:
        split = (*x.sharding.spec, *[None] * (x.ndim - len(x.sharding.spec)))
        sizes = (f"{n}/{a}" if a else str(n) for n, a in zip(x.shape, split, strict=True))
        return " ".join((str(x.dtype), *sizes))

    leaves = jax.tree_util.tree_leaves_with_path(program.abstract)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf(x) for path, x in leaves}


def sizes_of(config: Config) -> dict[str, int]:
    """The generator of ELECTRA-small has one head, which no axis can split."""
    one_head = config.model.generator.num_attention_heads == 1
    return {**SIZES, "tensor": 1} if one_head else SIZES


def golden_text(name: str) -> str:
    """One line an array; below, what `shard_optimizer` changes."""
    config = load(name)
    sizes = sizes_of(config)
    whole, split = (
        described(program_on(changed(config, "compute", shard_optimizer=on), **sizes))
        for on in (False, True)
    )
    assert whole.keys() == split.keys()
    other = {key: value for key, value in split.items() if value != whole[key]}
    lines = [
        f"# {', '.join(f'{axis}={size}' for axis, size in sizes.items())}",
        *(f"{key} = {value}" for key, value in whole.items()),
        "# with compute.shard_optimizer",
        *(f"{key} = {value}" for key, value in other.items()),
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", shipped())
def test_every_array_of_a_shipped_config_lies_where_it_did(name: str) -> None:
    path = GOLDENS / f"{name}.txt"
    golden = path.read_text(encoding="utf-8") if path.exists() else ""
    assert golden_text(name) == golden, f"if the change is meant: {REGENERATE}, and commit {path}"


def test_no_golden_outlives_its_config() -> None:
    assert {path.stem for path in GOLDENS.iterdir()} == set(shipped())


def test_an_axis_may_span_hosts_with_gpus() -> None:
    """JAX calls each host a slice there, and lists devices in any order."""
    kind = {"platform": "gpu", "device_kind": "NVIDIA L4", "client": None}
    gpus: Any = [FakeGpu(id=i, process_index=i // 2, slice_index=i // 2, **kind) for i in range(4)]
    mesh = make_mesh(MeshConfig(), gpus[::-1])
    assert mesh.shape["data"] == 4
    assert [device.id for device in mesh.devices.flat] == [0, 1, 2, 3]


def test_an_unknown_axis_is_an_error():
    with pytest.raises(KeyError, match="hidden"):
        partition.spec("batch", "hidden")


@pytest.mark.parametrize("error", [RuntimeError("no libtpu.so"), AssertionError()])
def test_a_platform_that_is_not_there_is_one_line(error, monkeypatch) -> None:
    def devices() -> list:
        raise error

    monkeypatch.setattr(jax, "devices", devices)
    with pytest.raises(UserError, match=r"^JAX finds no devices for JAX_PLATFORMS=.*extra[^\n]*$"):
        make_mesh(load("tiny").mesh)


def test_all_mesh_axes_of_the_table_exist():
    used = {
        axis
        for value in partition.AXES.values()
        for axis in (value if isinstance(value, tuple) else [value])
    }
    assert used - {None} <= set(MESH_AXES)


def test_a_global_batch_asks_for_local_rows_and_puts_each_in_place():
    mesh = make_mesh(load("tiny").mesh)
    rows = global_batch.batch_sharding(mesh)
    asked = []

    def make(wanted: np.ndarray) -> dict[str, np.ndarray]:
        asked.append(wanted)
        return {"x": np.stack([wanted * 10, wanted * 10 + 1], axis=1)}

    batch = global_batch.global_batch(make, rows, 16)
    np.testing.assert_array_equal(asked, [np.arange(16)])
    np.testing.assert_array_equal(batch["x"][:, 1], np.arange(16) * 10 + 1)
    for shard in batch["x"].addressable_shards:
        assert shard.data.shape == (2, 2)


@dataclasses.dataclass(frozen=True)
class _Device:
    process_index: int
    id: int


class _Rows:
    """A sharding over two processes, whose devices hold rows in any order."""

    held = ((0, 12), (1, 4), (0, 0), (1, 8), (0, 12))  # process, first of two rows

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict:
        return {
            _Device(process, i): (slice(start, start + 2),)
            for i, (process, start) in enumerate(self.held)
        }


def test_the_rows_of_a_process_need_not_be_one_block():
    np.testing.assert_array_equal(global_batch.local_rows(_Rows(), 16), [0, 1, 12, 13])
    np.testing.assert_array_equal(global_batch.local_rows(_Rows(), 16, process=1), [4, 5, 8, 9])


def test_a_process_reads_each_of_its_rows_once():
    """Sharded over two axes, replicated over another."""
    rows = global_batch.batch_sharding(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2)))
    array = jax.device_put(np.arange(32.0).reshape(16, 2), rows)
    np.testing.assert_array_equal(global_batch.local_values(array), array)


def test_values_of_all_processes_are_gathered_in_the_order_of_the_rows(monkeypatch):
    """Of two batches in three processes, whose rows are not blocks."""
    own = [np.array([0, 5]), np.array([1, 4]), np.array([2, 3])]
    batches = np.arange(12, dtype=np.float32).reshape(2, 6)
    sent = np.stack([batches[:, rows] for rows in own])
    monkeypatch.setattr(global_batch.multihost_utils, "process_allgather", lambda local: sent)
    monkeypatch.setattr(global_batch, "local_rows", lambda rows, size, process: own[process])
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    np.testing.assert_array_equal(global_batch.gather_batches(sent[0], None, 6), batches)


@pytest.mark.parametrize(
    ("name", "mesh", "message"),
    [
        (
            "base",
            {"tensor": 8},
            'config.mesh.tensor=8 does not divide "heads"=12 of encoder.layers.attention.output.'
            "kernel [12, 12, 64, 768]; set config.mesh.tensor to a divisor of it",
        ),
        (
            "base",
            {"fsdp": 5},
            'config.mesh.fsdp=5 does not divide "embed"=768 of encoder.layers.attention.output.'
            "bias [12, 768]; set config.mesh.fsdp to a divisor of it",
        ),
        (
            "tiny",
            {"tensor": 4},
            'config.mesh.tensor=4 does not divide "vocab"=30522 of encoder.embeddings.word '
            "[30522, 128]; make config.model.pad_vocab_to_multiple_of a multiple of "
            "config.mesh.tensor",
        ),
    ],
    ids=["heads", "width", "vocabulary"],
)
def test_an_axis_that_does_not_divide_is_one_line(name: str, mesh: dict, message: str) -> None:
    with pytest.raises(UserError) as error:
        program_on(load(name), **mesh)
    assert str(error.value) == message


def test_a_batch_that_does_not_divide_into_micro_batches_is_one_line() -> None:
    mesh = abstract_mesh(data=4, fsdp=2, tensor=2)
    global_batch.check_divides(mesh, 64, 4)
    with pytest.raises(UserError) as error:
        global_batch.check_divides(mesh, 48, 4)
    assert str(error.value) == (
        "batch_size=48 is not divisible by 8 devices * micro_batches=4; nearest multiple: 64"
    )


@pytest.mark.parametrize(
    ("split", "shape", "expected"),
    [
        (P(None, None), (12, 768), P(None, "data")),
        (P(None, "fsdp", None), (12, 768, 64), P(None, "fsdp", "data")),
        (P(None, "fsdp"), (12, 768), P(None, "fsdp")),  # 12 does not divide by 8
        (P(None, "fsdp"), (16, 768), P("data", "fsdp")),
        (P("tensor", None), (30592, 30), P("tensor", None)),
        (P(), (), P()),
    ],
)
def test_what_is_shared_is_split_along_its_first_free_dimension(split, shape, expected) -> None:
    mesh = abstract_mesh(**SIZES)
    assert partition.over_data(mesh, split, shape) == expected


def test_without_data_parallelism_moments_stay() -> None:
    assert partition.over_data(abstract_mesh(fsdp=8), P(None, None), (8, 8)) == P(None, None)


def test_micro_batches_take_an_equal_share_of_every_device() -> None:
    rows = global_batch.batch_sharding(make_mesh(load("tiny").mesh))
    batch = global_batch.global_batch(lambda wanted: {"x": wanted}, rows, 32)
    split = jax.jit(lambda b: global_batch.micro_batches(b, 2, rows))(batch)["x"]
    np.testing.assert_array_equal(split, [np.arange(0, 32, 2), np.arange(1, 32, 2)])
    for shard in split.addressable_shards:
        (whole,) = (s for s in batch["x"].addressable_shards if s.device == shard.device)
        np.testing.assert_array_equal(np.sort(shard.data, axis=None), whole.data)


class Described:
    """A device that is only a name."""

    def __init__(self, kind: str):
        self.device_kind, self.platform = kind, "cpu" if kind == "cpu" else "tpu"


VMEM = {"xla_tpu_scoped_vmem_limit_kib": "32768"}
ASYNC = {"xla_tpu_enable_async_all_to_all": "true"}


@pytest.mark.parametrize(
    ("kind", "name", "options"),
    [
        ("TPU v5 lite", "adamw", VMEM),
        ("TPU v5 lite", "muon", VMEM | ASYNC),
        ("TPU v4", "adamw", None),
        ("TPU v4", "muon", ASYNC),
        ("cpu", "muon", {"xla_cpu_copy_insertion_use_region_analysis": True}),
    ],
)
def test_a_compiler_is_told_what_its_devices_have(
    kind: str, name: str, options: dict | None
) -> None:
    mesh = SimpleNamespace(devices=np.array([Described(kind)]))
    optimizer = dataclasses.replace(load("base").optimizer, name=name)
    assert compiler_options(mesh, optimizer) == options


if __name__ == "__main__":
    GOLDENS.mkdir(parents=True, exist_ok=True)
    for old in GOLDENS.iterdir():
        old.unlink()
    for name in shipped():
        (GOLDENS / f"{name}.txt").write_text(golden_text(name), encoding="utf-8")
