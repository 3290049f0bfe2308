"""The step gives the same numbers however it is split: devices, meshes, micro-batches, packing.

One device with one example a row is the reference. Rounding differs between the programs compared,
so losses agree to 1e-6 relative, and parameters after three steps to 1e-6 of the length of their
update: |p - q| / |p - p0| over all parameters together, the norm that gradients are clipped by.
"""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from handmade import VOCAB, batch

from bert_jax import sharding
from bert_jax.config import Config
from bert_jax.config_file import load
from bert_jax.errors import UserError
from bert_jax.objectives import Corpus
from bert_jax.step import Program, make_program

CORPUS = Corpus(("wiki", "books"), np.log(np.arange(1, VOCAB + 1) / 1830).astype(np.float32))
EXAMPLES = 48
STEPS = 3
GOLDEN = Path(__file__).parent / "goldens" / "losses.json"
REGENERATE = "python tests/test_step.py"
DATA: dict[str, dict[str, Any]] = {  # config.data of each set of objectives
    "mlm": {"pairing": "single"},
    "mlm+nsp": {"pairing": "nsp"},
    "mlm+sop": {"pairing": "sop"},
    "mlm+sbo": {"pairing": "single", "masking": "span", "span_boundary": True},
    "mlm+nsp+sbo": {"pairing": "nsp", "masking": "span", "span_boundary": True},
}


@dataclasses.dataclass
class Trained:
    """What three steps gave, and what gave it."""

    losses: list[float]
    before: Any
    after: Any
    program: Program
    text: str  # of the compiled step


def small(learned: str = "mlm+nsp", **changes: Any) -> Config:
    """Two layers, 32 wide, no dropout, guarded AdamW, padded rows on one device."""
    config = load("tiny")
    groups = {
        "model": {
            "vocab_size": VOCAB, "pad_vocab_to_multiple_of": 64, "hidden_size": 32,
            "num_attention_heads": 8, "intermediate_size": 64, "max_position_embeddings": 32,
            "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
            "initializer_range": 0.1,
        },
        "optimizer": {"name": "adamw", "eps": 1e-3, "learning_rate": 1e-2, "warmup_steps": 0},
        "mesh": {"data": 1},
        "compute": {"unroll_layers": 1},
        "data": DATA[learned],
    }  # fmt: skip
    for group, values in groups.items():
        values = values | changes.pop(group, {})
        config = dataclasses.replace(
            config, **{group: dataclasses.replace(getattr(config, group), **values)}
        )
    phase = {"steps": 10, "batch_size": EXAMPLES, "seq_length": 16, "max_predictions": 3}
    phase |= changes.pop("phase", {})
    assert not changes
    return dataclasses.replace(config, phases=(dataclasses.replace(config.phases[0], **phase),))


def rows_of(config: Config) -> dict[str, np.ndarray]:
    """The same examples whatever the phase: one a row, or several."""
    phase = config.phases[0]
    count = EXAMPLES // phase.batch_size
    rows = [range(b * count, (b + 1) * count) for b in range(phase.batch_size)]
    return batch(config.objectives, rows, length=phase.row_tokens, slots=phase.row_predictions)


def train(config: Config) -> Trained:
    """Three steps of the first phase, compiled as a run compiles it, on the mesh's devices."""
    phase, arrays = config.phases[0], rows_of(config)
    sizes = [getattr(config.mesh, axis) for axis in sharding.MESH_AXES]
    mesh = sharding.make_mesh(config.mesh, jax.devices()[: np.prod(sizes)])
    with jax.set_mesh(mesh):
        program = make_program(config, mesh, CORPUS)
        step = program.compile_train(arrays, phase)
        state = program.init()
        before = jax.tree.map(np.asarray, state["params"])
        placed = sharding.global_batch(
            lambda rows: {name: values[rows] for name, values in arrays.items()},
            program.rows,
            phase.batch_size,
        )
        losses = []
        for _ in range(STEPS):
            state, metrics = step(state, placed)
            losses.append(float(metrics["loss"]))
    return Trained(losses, before, state["params"], program, step.as_text())


@functools.cache
def reference(learned: str = "mlm+nsp") -> Trained:
    return train(small(learned))


def distance(a: Any, b: Any) -> float:
    return float(optax.tree.norm(jax.tree.map(lambda x, y: np.asarray(x) - np.asarray(y), a, b)))


def assert_same(one: Trained, other: Trained) -> None:
    assert one.text != other.text, "the programs compared are the same"
    np.testing.assert_allclose(other.losses, one.losses, rtol=1e-6)
    moved = distance(one.after, one.before)
    assert moved > 0.1
    assert distance(one.after, other.after) <= 1e-6 * moved
