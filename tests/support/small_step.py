"""A small training step and its batch, for tests of the step and of what it computes."""

import dataclasses
from typing import Any

import jax
import numpy as np
from handmade import VOCAB, batch

from bert_jax.config.config_files import load
from bert_jax.config.schema import Config
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.known_objectives import chosen
from bert_jax.parallel import global_batch
from bert_jax.parallel.mesh import MESH_AXES, make_mesh
from bert_jax.training.step import StepFunctions

EXAMPLES = 48
PACKED = {"batch_size": 16, "examples_per_row": 3, "row_length": 32}
CORPUS = Corpus(("wiki", "books"), np.log(np.arange(1, VOCAB + 1) / 1830).astype(np.float32))
DATA: dict[str, dict[str, Any]] = {  # config.data of each set of objectives
    "mlm": {"pairing": "single"},
    "mlm+nsp": {"pairing": "nsp"},
    "mlm+sop": {"pairing": "sop"},
    "mlm+sbo": {"pairing": "single", "masking": "span", "span_boundary": True},
    "mlm+nsp+sbo": {"pairing": "nsp", "masking": "span", "span_boundary": True},
}
# Of two networks, which have no stored losses.
TWO_NETWORKS: dict[str, dict[str, Any]] = {
    "mlm+rtd": {"pairing": "single", "replaced_tokens": True}
}


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
        "data": {**DATA, **TWO_NETWORKS}[learned],
    }  # fmt: skip
    phase = {"steps": 10, "batch_size": EXAMPLES, "seq_length": 16, "max_predictions": 3}
    phase |= changes.pop("phase", {})
    replaced: dict[str, Any] = {
        group: dataclasses.replace(getattr(config, group), **values | changes.pop(group, {}))
        for group, values in groups.items()
    }
    assert not changes
    phases = (dataclasses.replace(config.phases[0], **phase),)
    return dataclasses.replace(config, phases=phases, **replaced)


def rows_of(config: Config) -> dict[str, np.ndarray]:
    """The same examples whatever the phase: one a row, or several."""
    phase = config.phases[0]
    count = EXAMPLES // phase.batch_size
    rows = [range(b * count, (b + 1) * count) for b in range(phase.batch_size)]
    return batch(chosen(config.data), rows, length=phase.row_tokens, slots=phase.row_predictions)


def mesh_of(config: Config) -> jax.sharding.Mesh:
    """The config's mesh on as many of the eight devices as it names."""
    sizes = [getattr(config.mesh, axis) for axis in MESH_AXES]
    return make_mesh(config.mesh, jax.devices()[: np.prod(sizes)])


def place(program: StepFunctions, arrays: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    size = len(arrays["input_ids"])
    return global_batch.global_batch(
        lambda rows: {name: values[rows] for name, values in arrays.items()}, program.rows, size
    )


ALL_AT_ONCE = {
    "mesh": {"data": 2, "fsdp": 2, "tensor": 2},
    "phase": {**PACKED, "micro_batches": 2},
    "compute": {"unroll_layers": 0, "remat": "full", "shard_optimizer": True},
}
