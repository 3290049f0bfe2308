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


def test_every_tensor_is_the_one_that_tensorflow_reads(tmp_path: Path) -> None:
    """In one data file and in three. A variable in parts, which TensorFlow joins, is refused."""
    given, parts = many_tensors(), {"kernel": np.arange(12.0).reshape(4, 3)}
    whole, shards, sliced = (str(tmp_path / name) for name in ("whole", "shards", "sliced"))
    *read, joined = tensorflow.ask(
        tmp_path / "asked",
        "write",
        [
            (given, {"prefix": whole, "shards": 1, "sliced": False}),
            (given, {"prefix": shards, "shards": 3, "sliced": False}),
            (parts, {"prefix": sliced, "shards": 1, "sliced": True}),
        ],
    )
    for prefix, tensors in zip((whole, shards), read, strict=True):
        checkpoint = TensorFlowCheckpoint(prefix)
        assert tensors.keys() == given.keys() == checkpoint.entries.keys()
        for name, tensor in tensors.items():
            ours = checkpoint.read(name)
            assert (ours.dtype, ours.shape) == (tensor.dtype, tensor.shape)
            assert ours.tobytes() == tensor.tobytes() == given[name].tobytes()
    np.testing.assert_array_equal(joined["kernel"], parts["kernel"])
    with pytest.raises(UserError, match="a tensor is stored in slices; merge the checkpoint"):
        TensorFlowCheckpoint(sliced)
