"""Checkpoints that TensorFlow writes, read by TensorFlow and without it."""

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow_itself as tensorflow

from bert_jax.convert.tensorflow.checkpoint import TensorFlowCheckpoint
from bert_jax.errors import UserError

pytestmark = [pytest.mark.slow, pytest.mark.processes, tensorflow.needs_tensorflow]

DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64)


def many_tensors() -> Mapping[str, np.ndarray]:
    """Enough that the index has several blocks, of every type that is read and of any shape."""
    rng, tensors = np.random.default_rng(0), {}
    for i in range(400):
        shape = rng.integers(0, 6, rng.integers(0, 4))
        values = rng.normal(0, 100, shape).astype(DTYPES[i % len(DTYPES)])
        tensors[f"bert/encoder/layer_{i}/{'ab'[i % 2]}/kernel"] = values
    return tensors | {"global_step": np.array(2**40), "large": rng.normal(size=(300, 2000))}


@pytest.mark.parametrize("shards", [1, 3])
def test_every_tensor_is_the_one_that_tensorflow_reads(shards: int, tmp_path: Path) -> None:
    given, prefix = many_tensors(), str(tmp_path / "model.ckpt")
    arguments = {"prefix": prefix, "shards": shards, "sliced": False}
    read = tensorflow.ask(tmp_path / "write", "write", given, **arguments)
    checkpoint = TensorFlowCheckpoint(prefix)
    assert read.keys() == given.keys() == checkpoint.entries.keys()
    for name, tensor in read.items():
        ours = checkpoint.read(name)
        assert (ours.dtype, ours.shape) == (tensor.dtype, tensor.shape)
        assert ours.tobytes() == tensor.tobytes() == given[name].tobytes()


def test_a_partitioned_variable_is_refused(tmp_path: Path) -> None:
    prefix = str(tmp_path / "model.ckpt")
    given = {"kernel": np.arange(12.0).reshape(4, 3)}
    read = tensorflow.ask(tmp_path / "write", "write", given, prefix=prefix, shards=1, sliced=True)
    np.testing.assert_array_equal(read["kernel"], given["kernel"])
    with pytest.raises(UserError, match="a tensor is stored in slices; merge the checkpoint"):
        TensorFlowCheckpoint(prefix)
