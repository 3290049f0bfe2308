"""A task small enough for a test: pairs of sentences of made-up words, and a tiny model for it."""

from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.config.files import load
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

WORDS = [f"{a}{b}{c}" for a in "bdfg" for b in "aeiou" for c in "lmnr"]
TRAIN, DEV = 77, 21  # no multiples of the batch size


def write_task(folder: Path, *, seed: int = 0) -> Path:
    """Writes RTE's files and a tokenizer.json; a pair entails if its first words are the same."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", TRAIN), ("dev", DEV)):
        lines = ["index\tsentence1\tsentence2\tlabel"]
        for i in range(count):
            first, second = (list(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(2))
            same = rng.random() < 0.5
            second[0] = first[0] if same else second[0]
            label = "entailment" if first[0] == second[0] else "not_entailment"
            lines.append(f"{i}\t{' '.join(first)}\t{' '.join(second)}\t{label}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    Tokenizer.from_vocab(entries, lowercase=True).save(folder / "tokenizer.json")
    return folder


def task_config(folder: Path, **changes: Any) -> Config:
    """The config `glue` with a model of two layers, without dropout, in float32 on one device.

    changes: by key, with "__" for a dot.
    """
    return load(
        "glue",
        {
            "task.name": "rte",
            "task.data": str(folder),
            "task.tokenizer": str(folder / "tokenizer.json"),
            "model.hidden_size": 32,
            "model.num_hidden_layers": 2,
            "model.num_attention_heads": 4,
            "model.intermediate_size": 64,
            "model.max_position_embeddings": 64,
            "model.hidden_dropout_prob": 0.0,
            "model.attention_probs_dropout_prob": 0.0,
            "model.initializer_range": 0.1,
            "phases[0].batch_size": 8,
            "phases[0].examples_per_row": 8,
            "phases[0].seq_length": 32,
            "mesh.data": 1,
            "compute.dtype": "float32",
            "optimizer.learning_rate": 1e-3,
            **{key.replace("__", "."): value for key, value in changes.items()},
        },
    )
