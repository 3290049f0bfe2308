"""Models, tokenizers and folders for the tests of what is exported."""

import dataclasses
import functools
import re
from collections.abc import Mapping
from pathlib import Path

import golden_case as cases
import jax
import numpy as np
from golden_case import CASES
from small import COMPUTE, model_config

from bert_jax.config.schema import ModelConfig
from bert_jax.convert import weights
from bert_jax.objectives.pretraining_model import init_params

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
    return weights.from_transformers(named, config)


def tree_below(leaves: Mapping[str, np.ndarray], path: str) -> dict:
    """The nested dict of the arrays whose path begins with this one."""
    tree: dict = {}
    for name, array in leaves.items():
        if name.startswith(f"{path}/"):
            *groups, last = name.removeprefix(f"{path}/").split("/")
            functools.reduce(lambda part, key: part.setdefault(key, {}), groups, tree)[last] = array
    return tree


def blocks(language: str) -> list[str]:
    """The code in docs/export.md."""
    page = Path(__file__).parents[2] / "docs/export.md"
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
