"""TensorFlow as the reference, in a process of its own: nothing else here imports it.

`python tensorflow_itself.py COMMAND FOLDER` reads the arguments and arrays of some cases from the
folder and writes those that it found there; `ask` starts it.

BERT_JAX_TENSORFLOW names the folder with its packages, which `make .venv/tensorflow` installs.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

PACKAGES = os.environ.get("BERT_JAX_TENSORFLOW", "")
MOMENTS = ("adam_m", "adam_v")

needs_tensorflow = pytest.mark.skipif(
    not (Path(PACKAGES) / "tensorflow").is_dir(),
    reason="BERT_JAX_TENSORFLOW names no folder with TensorFlow",
)


def ask(
    folder: Path, command: str, cases: Sequence[tuple[Mapping[str, np.ndarray], Mapping[str, Any]]]
) -> list[dict[str, np.ndarray]]:
    """Runs a command of this file with TensorFlow, which takes seconds to start, for several cases.

    cases: arrays and arguments of each. Returns the arrays that were found for each.
    """
    folder.mkdir()
    arrays = {f"{i}:{n}": x for i, (given, _) in enumerate(cases) for n, x in given.items()}
    save(folder / "given", arrays)
    (folder / "arguments.json").write_text(json.dumps([arguments for _, arguments in cases]))
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
    done = subprocess.run(
        [sys.executable, __file__, command, str(folder)],
        env=environment | {"PYTHONPATH": PACKAGES},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = load(folder / "found")
    return [
        {n.partition(":")[2]: x for n, x in found.items() if n.startswith(f"{i}:")}
        for i in range(len(cases))
    ]


def save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays of any dtype, bfloat16 too."""
    about = {name: (str(array.dtype), array.shape) for name, array in arrays.items()}
    path.with_suffix(".json").write_text(json.dumps(about))
    path.with_suffix(".bin").write_bytes(b"".join(a.tobytes() for a in arrays.values()))


def load(path: Path) -> dict[str, np.ndarray]:
    about, data = json.loads(path.with_suffix(".json").read_text()), path.with_suffix(".bin")
    arrays, at, content = {}, 0, data.read_bytes()
    for name, (kind, shape) in about.items():
        dtype = np.dtype(getattr(ml_dtypes, kind, kind))
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(content, dtype, count, at).reshape(shape)
        at += count * dtype.itemsize
    return arrays


def write(tensors: Mapping[str, np.ndarray], prefix: str, shards: int, sliced: bool) -> None:
    """Writes a checkpoint as the Saver of several machines does: each writes a data file.

    sliced: every tensor is the two parts of a partitioned variable.
    """
    import tensorflow as tf

    files = [f"{prefix}_part/part-{i:05}-of-{shards:05}" for i in range(shards)]
    for shard, file in enumerate(files):
        mine = sorted(tensors)[shard::shards]
        parts = [part for name in mine for part in _parts(name, tensors[name], sliced)]
        names, places, values = (list(column) for column in zip(*parts, strict=True))
        tf.raw_ops.SaveV2(prefix=file, tensor_names=names, shape_and_slices=places, tensors=values)
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=files, destination_prefix=prefix)


def _parts(name: str, value: np.ndarray, sliced: bool) -> list[tuple[str, str, np.ndarray]]:
    """Name, place in the whole variable, and values of each part."""
    if not sliced:
        return [(name, "", value)]
    shape, rest = " ".join(map(str, value.shape)), ":-" * (value.ndim - 1)
    first = (name, f"{shape} 0,1{rest}", value[:1])
    return [first, (name, f"{shape} 1,{len(value) - 1}{rest}", value[1:])]


def read(prefix: str) -> dict[str, np.ndarray]:
    import tensorflow as tf

    reader = tf.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_dtype_map()}


def take_step(
    tensors: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray], recipe: Mapping
) -> dict[str, np.ndarray]:
    """Returns the tensors after the next update of google-research/bert, by TensorFlow's functions.

    The update is that of `create_optimizer` and `AdamWeightDecayOptimizer` in optimization.py at
    eedf571: linear decay, overridden in the warmup; gradients clipped to global norm 1; Adam
    without bias correction; decoupled decay, except of LayerNorm and biases.
    """
    import tensorflow as tf

    step, peak, warmup = tensors["global_step"], recipe["learning_rate"], recipe["warmup_steps"]
    decay = tf.compat.v1.train.polynomial_decay(
        tf.constant(peak), tf.constant(step), recipe["steps"], 0.0, power=1.0, cycle=False
    )
    rate = decay() if callable(decay) else decay
    if step < warmup:
        rate = tf.constant(peak) * (tf.cast(step, tf.float32) / tf.cast(warmup, tf.float32))
    names = sorted(gradients)
    clipped, _ = tf.clip_by_global_norm([tf.constant(gradients[name]) for name in names], 1.0)
    after = {"global_step": step + 1}
    for name, gradient in zip(names, clipped, strict=True):
        value, m, v = (tf.constant(tensors[name + end]) for end in ("", "/adam_m", "/adam_v"))
        m = tf.multiply(0.9, m) + tf.multiply(1.0 - 0.9, gradient)
        v = tf.multiply(0.999, v) + tf.multiply(1.0 - 0.999, tf.square(gradient))
        update = m / (tf.sqrt(v) + 1e-6)
        if not re.search("LayerNorm|layer_norm|bias", name):
            update += 0.01 * value
        new = (value - rate * update, m, v)
        ends = ("", *(f"/{moment}" for moment in MOMENTS))
        after |= {name + end: x.numpy() for end, x in zip(ends, new, strict=True)}
    return after


def parse_examples(
    files: Sequence[str], seq_length: int, predictions: int
) -> dict[str, np.ndarray]:
    """Reads TFRecord files with the features of google-research/bert's run_pretraining.py at
    eedf571 (`input_fn_builder`)."""
    import tensorflow as tf

    spec = {
        "input_ids": tf.io.FixedLenFeature([seq_length], tf.int64),
        "input_mask": tf.io.FixedLenFeature([seq_length], tf.int64),
        "segment_ids": tf.io.FixedLenFeature([seq_length], tf.int64),
        "masked_lm_positions": tf.io.FixedLenFeature([predictions], tf.int64),
        "masked_lm_ids": tf.io.FixedLenFeature([predictions], tf.int64),
        "masked_lm_weights": tf.io.FixedLenFeature([predictions], tf.float32),
        "next_sentence_labels": tf.io.FixedLenFeature([1], tf.int64),
    }
    records = tf.data.TFRecordDataset(files)
    rows = [tf.io.parse_single_example(record, spec) for record in records]
    return {name: np.stack([row[name].numpy() for row in rows]) for name in spec}


def main(command: str, folder: Path) -> None:
    given = load(folder / "given")
    found = {}
    for i, arguments in enumerate(json.loads((folder / "arguments.json").read_text())):
        mine = {n.partition(":")[2]: x for n, x in given.items() if n.startswith(f"{i}:")}
        if command == "write":
            write(mine, **arguments)
            arrays = read(arguments["prefix"])
        elif command == "examples":
            arrays = parse_examples(**arguments)
        else:
            arrays = take_step(read(arguments["prefix"]), mine, arguments["recipe"])
        found |= {f"{i}:{name}": array for name, array in arrays.items()}
    save(folder / "found", found)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
