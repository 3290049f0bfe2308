"""What both sides of the parity test compute: sizes, weights and batches, equal everywhere.

Nothing here depends on JAX or on torch. Base has 110 million weights, so they are not stored: each
tensor is made from its name by a counter-based generator whose raw bits numpy promises never to
change, turned into floats by exact arithmetic.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

FOLDER = Path(__file__).parents[1] / "goldens"
STEPS = 3
SAMPLES = 48  # elements kept of each tensor after the optimizer steps
KEEP = {"tiny": 10**9, "tiny_tanh": 10**9, "base": 8}  # positions of hidden states kept in a row
VOCAB_STRIDE = {"tiny": 1, "tiny_tanh": 1, "base": 37}  # every so many MLM logits are kept
PAD, UNK, CLS, SEP, MASK = 0, 1, 2, 3, 4


@dataclass(frozen=True)
class Case:
    name: str
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    positions: int
    act: Literal["gelu", "gelu_tanh"]
    rows: int
    length: int
    slots: int
    learning_rate: float


TINY = Case("tiny", 99, 32, 3, 4, 64, 40, "gelu", 4, 24, 5, 5e-3)
CASES = {
    "tiny": TINY,
    "tiny_tanh": Case(**{**TINY.__dict__, "name": "tiny_tanh", "act": "gelu_tanh"}),
    "base": Case("base", 30522, 768, 12, 12, 3072, 512, "gelu", 2, 64, 10, 1e-3),
}


@dataclass(frozen=True)
class Recipe:
    """The decay is large so that leaving it out, or putting it where it does not belong, shows."""

    name: Literal["bert_adamw", "adamw"]
    warmup_steps: int
    eps: float
    b1: float = 0.9
    b2: float = 0.999
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    total_steps: int = 8


RECIPES = {
    "bert_adamw": Recipe("bert_adamw", warmup_steps=2, eps=1e-6),
    "adamw": Recipe("adamw", warmup_steps=0, eps=1e-6),
}


def _generator(*words: object) -> np.random.Philox:
    digest = hashlib.sha256("/".join(map(str, words)).encode()).digest()
    return np.random.Philox(key=np.frombuffer(digest[:16], np.uint64))


def _uniform(generator: np.random.Philox, shape: tuple[int, ...]) -> np.ndarray:
    """[0, 1) in steps of 2**-24, exact in float32."""
    raw = generator.random_raw(int(np.prod(shape))) >> np.uint64(40)
    return (raw.astype(np.float64) * 2.0**-24).reshape(shape)


def _below(generator: np.random.Philox, limit: int, size: int) -> np.ndarray:
    return (generator.random_raw(size) % np.uint64(limit)).astype(np.int32)


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The values of one tensor of transformers' state dict; no bias is zero, no scale one."""
    x = (2 * _uniform(_generator("weight", name, *shape), shape) - 1) * np.sqrt(3)
    if name.endswith(("LayerNorm.weight", "norm.weight")):
        x = 1 + 0.1 * x
    elif len(shape) == 1:
        x = 0.1 * x
    elif "embeddings" in name:
        x = 0.05 * x
    else:
        x = 0.8 / np.sqrt(shape[1]) * x
    return x.astype(np.float32)


def batch(case: Case, step: int) -> dict[str, np.ndarray]:
    """Rows with two segments, padding and unused prediction slots, as data_pipeline makes them."""
    g = _generator("batch", case.length, case.vocab_size, step)
    B, S, P = case.rows, case.length, case.slots
    out = {
        name: np.zeros((B, S), np.int32)
        for name in ("input_ids", "token_type_ids", "example_ids", "position_ids")
    }
    out |= {name: np.zeros((B, P), np.int32) for name in ("masked_positions", "masked_labels")}
    out["masked_weights"] = np.zeros((B, P), np.float32)
    out["cls_positions"] = np.zeros((B, 1), np.int32)
    out["pair_labels"] = (np.arange(B, dtype=np.int32)[:, None] + step) % 2
    out["pair_weights"] = np.ones((B, 1), np.float32)
    out["pair_sources"] = np.zeros((B, 1), np.int32)
    for b in range(B):
        # The first row is full, the others end earlier and earlier.
        n = S - b * (S // (B + 1))
        first = 3 + int(_below(g, n - 6, 1)[0])  # length of [CLS] A [SEP]
        ids = 5 + _below(g, case.vocab_size - 5, n)
        ids[0], ids[first - 1], ids[n - 1] = CLS, SEP, SEP
        inner = np.array([i for i in range(1, n - 1) if i != first - 1])
        chosen = np.sort(inner[np.argsort(g.random_raw(len(inner)), kind="stable")[: P - b % 3]])
        out["masked_positions"][b, : len(chosen)] = chosen
        out["masked_labels"][b, : len(chosen)] = ids[chosen]
        out["masked_weights"][b, : len(chosen)] = 1
        ids[chosen[: -(len(chosen) // 5) or None]] = MASK  # the last fifth keeps its token
        out["input_ids"][b, :n] = ids
        out["token_type_ids"][b, first:n] = 1
        out["example_ids"][b, :n] = 1
        out["position_ids"][b, :n] = np.arange(n)
    return out


def kept_positions(case: Case, example_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the real positions whose hidden states are compared."""
    rows, columns = np.nonzero(example_ids)
    stride = -(-case.length // KEEP[case.name]) or 1
    wanted = columns % stride == 0
    return rows[wanted], columns[wanted]


def sampled(name: str, size: int) -> np.ndarray:
    """Which elements of a flattened tensor are compared after the optimizer steps."""
    if size <= SAMPLES:
        return np.arange(size)
    return np.sort((_generator("sample", name).random_raw(SAMPLES) % np.uint64(size)).astype(int))


def load(name: str) -> dict[str, Any]:
    with np.load(FOLDER / f"{name}.npz") as file:
        return dict(file)
