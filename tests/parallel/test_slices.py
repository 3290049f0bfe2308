"""Which rows of a batch each process of a real TPU slice makes; needs libtpu, but no TPU.

libtpu describes a slice: its devices, their coordinates and the process each belongs to. Loading it
changes how JAX starts, so it is asked in a process of its own (this file, run as a program). Where
it is installed JAX complains on every start without a TPU, so `make slow` keeps a copy elsewhere:

    pip install --no-deps --target=DIR "libtpu==0.0.42.*"  # the one that jax 0.10.2 names
    BERT_JAX_LIBTPU=DIR/libtpu/libtpu.so pytest -m slow tests/parallel/test_slices.py
"""

import itertools
import json
from typing import Any

import numpy as np
import pytest
from tpu_compiler import answer_of, needs_libtpu

ROWS_PER_DEVICE = 2
LAID: dict[str, dict[str, Any]] = {
    "v5e-16 data": {"topology": "v5e:4x4", "mesh": {"data": 16}},
    "v5e-16 all axes": {"topology": "v5e:4x4", "mesh": {"data": 4, "fsdp": 2, "tensor": 2}},
    "v5e-16 tensor over hosts": {"topology": "v5e:4x4", "mesh": {"data": 2, "tensor": 8}},
    "v5e-128 data": {"topology": "v5e:8x16", "mesh": {"data": 128}},
    "v5e-128 all axes": {"topology": "v5e:8x16", "mesh": {"data": 8, "fsdp": 4, "tensor": 4}},
    "two v5e-16": {"topology": "v5e:4x4", "slices": 2, "mesh": {"slice": 2, "data": 8, "fsdp": 2}},
}
REFUSED: dict[str, dict[str, Any]] = {
    "two v5e-16 as one": {"topology": "v5e:4x4", "slices": 2, "mesh": {"data": 32}},
    "v5p-128, side 4, by 2 and 32": {"topology": "v5p:4x4x4", "mesh": {"data": 2, "fsdp": 32}},
}
CHIPS_PER_HOST = 4

pytestmark = [
    pytest.mark.slow,
    needs_libtpu,
]


def describe(topology: str, mesh: dict[str, int], slices: int = 1) -> dict[str, Any]:
    """The processes of a mesh laid as for training, and the rows that each would make."""
    from jax.experimental.topologies import get_topology_desc

    from bert_jax.config.schema import MeshConfig
    from bert_jax.errors import UserError
    from bert_jax.parallel import global_batch
    from bert_jax.parallel.mesh import MESH_AXES, make_mesh

    devices = get_topology_desc(topology, platform="tpu", num_slices=slices).devices
    config = MeshConfig(**{axis: mesh.get(axis, 1) for axis in MESH_AXES})
    try:
        laid = make_mesh(config, devices)
    except UserError as error:
        return {"error": str(error)}
    rows, size = global_batch.batch_sharding(laid), ROWS_PER_DEVICE * len(devices)
    processes = sorted({device.process_index for device in devices})
    return {
        "process": np.vectorize(lambda device: device.process_index)(laid.devices).tolist(),
        "slice": np.vectorize(lambda device: getattr(device, "slice_index", 0))(
            laid.devices
        ).tolist(),
        "rows": {p: global_batch.local_rows(rows, size, process=p).tolist() for p in processes},
    }


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return answer_of(__file__)


@pytest.mark.parametrize("case", LAID)
def test_every_process_makes_exactly_the_rows_its_devices_hold(case: str, described: dict) -> None:
    result = described[case]
    process = np.array(result["process"])  # [slice, data, fsdp, tensor]
    size = ROWS_PER_DEVICE * process.size
    each = size // np.prod(process.shape[:3])  # rows of a device
    held: dict[int, set[int]] = {}
    for block, (s, d, f) in enumerate(itertools.product(*map(range, process.shape[:3]))):
        for owner in process[s, d, f]:
            held.setdefault(int(owner), set()).update(range(block * each, (block + 1) * each))
    made = {int(p): rows for p, rows in result["rows"].items()}
    assert len(made) == process.size // CHIPS_PER_HOST
    assert made == {p: sorted(rows) for p, rows in held.items()}
    assert set().union(*made.values()) == set(range(size))
    if process.shape[3] == 1:
        assert sum(map(len, made.values())) == size, "a row is made twice"


@pytest.mark.parametrize("case", ["v5e-16 data", "v5e-128 data"])
def test_rows_of_a_process_are_no_contiguous_block(case: str, described: dict) -> None:
    """So whoever gives process p the p-th part of a batch is wrong, and the test above can fail."""
    rows = described[case]["rows"].values()
    assert any(max(r) - min(r) >= len(r) for r in rows)


def test_the_slice_axis_follows_the_slices(described: dict) -> None:
    slices = np.array(described["two v5e-16"]["slice"])
    assert slices.shape == (2, 8, 2, 1)
    assert (slices == np.arange(2).reshape(2, 1, 1, 1)).all()


@pytest.mark.parametrize("case", REFUSED)
def test_a_mesh_that_cannot_be_laid_is_one_line(case: str, described: dict) -> None:
    assert "cannot be mapped to these" in described[case]["error"]


if __name__ == "__main__":
    print(json.dumps({name: describe(**case) for name, case in (LAID | REFUSED).items()}))
