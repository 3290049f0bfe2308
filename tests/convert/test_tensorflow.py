"""Checkpoints of TensorFlow, read without it."""

import os
import random
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tensorflow_bundle import write_bundle

from bert_jax.convert.tensorflow.checkpoint import LazyTensor, TensorFlowCheckpoint
from bert_jax.errors import UserError

NOISE = np.random.default_rng(0)
TENSORS = {
    "a/kernel": NOISE.normal(size=(3, 4)).astype(np.float32),
    "a/kernel/adam_m": NOISE.normal(size=(3, 4)).astype(np.float64),
    "a/bias": NOISE.normal(size=5).astype(ml_dtypes.bfloat16),
    "b": NOISE.normal(size=(2, 1, 2)).astype(np.float16),
    "global_step": np.array(20, np.int64),
    "ids": np.arange(-3, 3, dtype=np.int32),
    "nothing": np.zeros((0, 7), np.float32),
}


def test_every_tensor_is_read_as_it_was_written(tmp_path):
    for shards in (1, 3):
        write_bundle(tmp_path / "model.ckpt", TENSORS, shards)
        checkpoint = TensorFlowCheckpoint(tmp_path / "model.ckpt")
        assert checkpoint.entries.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            read = checkpoint.read(name)
            assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
            np.testing.assert_array_equal(read, tensor)


def test_a_lazy_tensor_is_read_when_it_becomes_an_array(tmp_path):
    write_bundle(tmp_path / "model.ckpt", TENSORS)
    checkpoint = TensorFlowCheckpoint(tmp_path / "model.ckpt")
    kernel = LazyTensor(checkpoint, "a/kernel", transposed=True)
    assert (kernel.shape, kernel.dtype) == ((4, 3), np.float32)
    np.testing.assert_array_equal(np.asarray(kernel), TENSORS["a/kernel"].T)


def test_damage_is_never_read_as_numbers(tmp_path):
    """Flipped bits and lost ends, in the index and in the data."""
    write_bundle(tmp_path / "model.ckpt", TENSORS)
    files = sorted(tmp_path.iterdir())
    rng, refusals = random.Random(0), []
    for _ in range(1000):
        file = rng.choice(files)
        whole = file.read_bytes()
        damaged = bytearray(whole)
        if rng.random() < 0.2:
            del damaged[rng.randrange(len(damaged)) :]
        else:
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged)
        try:
            checkpoint = TensorFlowCheckpoint(tmp_path / "model.ckpt")
            read = {name: checkpoint.read(name) for name in checkpoint.entries}
        except UserError as error:
            refusals.append((file, str(error)))
        else:
            assert read.keys() == TENSORS.keys()
            for name, tensor in read.items():
                np.testing.assert_array_equal(tensor, TENSORS[name])
                assert tensor.dtype == TENSORS[name].dtype
        file.write_bytes(whole)
    assert len(refusals) > 900  # the rest fell on padding
    assert all(str(file) in line and "\n" not in line for file, line in refusals)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / "m.index").unlink(), "m.index: cannot be read"),
        (lambda p: (p / "m.index").write_bytes(b""), "does not end as the index"),
        (lambda p: (p / "m.data-00000-of-00001").unlink(), "of-00001: cannot be read"),
        (
            lambda p: (p / "m.data-00000-of-00001").write_bytes(b""),
            "of-00001: ends before a/kernel",
        ),
    ],
)
def test_a_missing_or_empty_file_is_one_line(damage, message, tmp_path):
    write_bundle(tmp_path / "m", TENSORS)
    damage(tmp_path)
    with pytest.raises(UserError, match=re.escape(message)):
        TensorFlowCheckpoint(tmp_path / "m").read("a/kernel")


def test_a_tensor_that_is_not_there_is_one_line(tmp_path):
    write_bundle(tmp_path / "m", TENSORS)
    with pytest.raises(UserError, match=r"m\.index: lists no a/gamma"):
        TensorFlowCheckpoint(tmp_path / "m").read("a/gamma")


@pytest.mark.skipif("BERT_JAX_REAL_DATA" not in os.environ, reason="needs BERT_JAX_REAL_DATA")
def test_a_checkpoint_of_google_research_bert_is_read():
    folder = Path(os.environ["BERT_JAX_REAL_DATA"]) / "checkpoints/tf1-tiny-bert"
    checkpoint = TensorFlowCheckpoint(folder / "bert_model.ckpt")
    tensors = {name: checkpoint.read(name) for name in checkpoint.entries}
    assert len(tensors) == 139
    assert int(tensors["global_step"]) == 20
    assert tensors["bert/embeddings/word_embeddings"].shape == (15, 4)
    assert tensors["bert/embeddings/LayerNorm/gamma/adam_v"].shape == (4,)
