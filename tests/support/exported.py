"""Models, tokenizers and folders for the tests of what is exported."""

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path

import golden_case as cases
import jax
import numpy as np
from etils import epath
from golden_case import CASES
from small import COMPUTE, model_config, run_config
from stores import StoredDocument, write_store

from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.config.schema import CheckpointConfig, ModelConfig
from bert_jax.config.serialization import to_dict
from bert_jax.convert import weights
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.objectives.known_objectives import chosen
from bert_jax.objectives.pretraining_model import init_params
from bert_jax.workdir.layout import Workdir

PAIRS = ("mlm", "nsp")
TEXTS = [
    "Hello World! Naïve café, 3.14 (ÜBER)",
    "Привет, мир. Ёлка",
    "東京は日本の首都です。",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "Ελληνικά ΑΒΓ ἄλφα",
    "한국어 문장",
    "zero\u200bwidth\ttab \ufffd and [MASK] inside",
    "x" * 120 + " y",
    "",
]


def base_config() -> ModelConfig:
    return model_config(CASES["base"])


def large_config() -> ModelConfig:
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    return dataclasses.replace(base_config(), **sizes, intermediate_size=4096)


def random_params(config: ModelConfig, learned: tuple[str, ...] = PAIRS) -> dict:
    """A model whose every tensor, biases and scales too, has values of its own."""
    shapes = jax.eval_shape(lambda: init_params(config, COMPUTE, learned, jax.random.key(0)))
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)
    tensors = weights.to_transformers(zeros, config)
    named = {name: cases.weight(name, tensor.shape) for name, tensor in tensors.items()}
    named |= {name: x for name, x in tensors.items() if "embed_positions" in name}  # RoFormer's own
    return weights.from_transformers(named, config)


def tree_below(leaves: Mapping[str, np.ndarray], path: str) -> dict:
    """The nested dict of the arrays whose path begins with this one."""
    tree: dict = {}
    for name, array in leaves.items():
        if name.startswith(f"{path}/"):
            *groups, last = name.removeprefix(f"{path}/").split("/")
            functools.reduce(lambda part, key: part.setdefault(key, {}), groups, tree)[last] = array
    return tree


def leaves(tree: dict) -> dict[tuple[str, ...], np.ndarray]:
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {tuple(key.key for key in path): np.asarray(leaf) for path, leaf in flat}


def make_run(
    tokenizer: Tokenizer, tmp_path: Path, *, model: dict | None = None, **data: object
) -> tuple[epath.Path, dict]:
    """A workdir with two checkpoints, its store and its metrics; model, data: of its config."""
    ids = list(range(5, 15))
    store = write_store(
        tmp_path / "store",
        tokenizer=tokenizer,
        train=[StoredDocument([ids, ids]), StoredDocument([ids])],
        sources=("tales",),
        languages=("en",),
    )
    config = run_config()
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, vocab_size=tokenizer.vocab_size, **model or {}),
        data=dataclasses.replace(config.data, store=str(store.path), **data),
    )
    workdir = epath.Path(tmp_path / "run")
    params = jax.tree.map(jax.numpy.asarray, random_params(config.model, chosen(config.data)))
    meta = {
        "config": to_dict(config),
        "data": {"tokenizer": tokenizer.digest, "train": store.train.digest},
        "devices": {"kind": "TPU v5 lite", "mesh": {"data": 2, "fsdp": 2}},
        "versions": {"bert-jax": "0.1.0", "jax": "0.10.2"},
    }
    checkpoints = RunCheckpoints(
        Workdir.open(workdir),
        CheckpointConfig(
            every_steps=1, keep=2, keep_every_steps=0, keep_best=False, write_attempts=1
        ),
    )
    for step in (2, 4):
        scaled = jax.tree.map(lambda x, step=step: x * step, params)
        state = {"step": jax.numpy.int32(step), "params": scaled, "opt": {"x": params["mlm"]}}
        checkpoints.save(state, meta)
    checkpoints.close()
    tokenizer.save(Path(workdir / "tokenizer.json"))
    with (workdir / "metrics.jsonl").open("w") as file:
        for step in (2, 4):
            record = {"kind": "eval", "step": step, "time": 0.0, "mlm/loss": 10.0 + step}
            record |= {"attention/layer_0/head_0/left": 0.5, "padding": 0.25, "phase": 0}
            file.write(json.dumps(record) + "\n" + json.dumps(record | {"kind": "train"}) + "\n")
    return workdir, params


def blocks(language: str) -> list[str]:
    """The code in docs/export.md."""
    page = Path(__file__).parents[2] / "docs/export.md"
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
