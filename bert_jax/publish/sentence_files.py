"""Writes the parts of a sentence encoder as every release of sentence-transformers reads them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.config.sentence_parts import (
    ACTIVATIONS,
    POOLS,
    Dense,
    Dropout,
    Part,
    Pooling,
)
from bert_jax.convert.folders.sentence_keys import NO_POOLER
from bert_jax.convert.sentence_encoder import (
    ABOUT,
    CONFIG,
    ENCODER,
    FIRST_POOL_KEYS,
    LIBRARY,
    MODULES,
    POOL_KEYS,
    SentenceEncoder,
)
from bert_jax.convert.tokenizer_files import json_bytes
from bert_jax.convert.weight_files import SAFETENSORS
from bert_jax.publish.weight_writer import as_dtype


def sentence_files(
    encoder: SentenceEncoder | None, length: int, dtype: str, *, lacks_pooler: bool = False
) -> tuple[dict[str, bytes], dict[str, Mapping[str, np.ndarray]]]:
    """Returns the contents of JSON files, and the tensors of files of weights, by name; none
    without an encoder.

    Args:
        length: of the encoder's longest row in tokens, for texts without another limit.
        dtype: of the weights.
        lacks_pooler: whether the class of transformers has a pooler and the weights have none,
            which would be random there, with a warning.
    """
    if encoder is None:
        return {}, {}
    files: dict[str, Any] = {
        MODULES: [_entry(0, "", "Transformer")],
        ENCODER: {
            "max_seq_length": min(encoder.max_length or length, length),
            "do_lower_case": encoder.lowercase,
            **({"model_args": NO_POOLER} if lacks_pooler else {}),
        },
        ABOUT: {
            "__version__": {"sentence_transformers": "2.0.0"},  # of this form
            "prompts": dict(encoder.prompts),
            "default_prompt_name": encoder.default_prompt,
            "similarity_fn_name": encoder.similarity,
            **({"truncate_dim": encoder.dimensions} if encoder.dimensions else {}),
        },
    }
    weights: dict[str, Mapping[str, np.ndarray]] = {}
    for number, (part, tensors) in enumerate(
        zip(encoder.parts, encoder.weights, strict=True), start=1
    ):
        kind = type(part).__name__
        folder = f"{number}_{kind}"
        files[MODULES].append(_entry(number, folder, kind))
        if values := _values(part):
            files[f"{folder}/{CONFIG}"] = values
        if tensors:
            weights[f"{folder}/{SAFETENSORS}"] = as_dtype(tensors, dtype)
    return {name: json_bytes(values) for name, values in files.items()}, weights


def _entry(number: int, folder: str, kind: str) -> dict[str, Any]:
    return {
        "idx": number, "name": str(number), "path": folder, "type": f"{LIBRARY}models.{kind}",
    }  # fmt: skip


def _values(part: Part) -> dict[str, Any]:
    """Returns the contents of a part's config.json; empty if it has none."""
    match part:
        case Pooling():
            return _pooling_values(part)
        case Dense():
            return {
                "in_features": part.width_before,
                "out_features": part.width,
                "bias": part.bias,
                "activation_function": f"{ACTIVATIONS[part.activation]}.{part.activation}",
                **({"use_residual": True} if part.residual else {}),
            }
        case Dropout():
            return {"dropout": part.rate}
        case _:
            return {}


def _pooling_values(part: Pooling) -> dict[str, Any]:
    further = {} if part.include_prompt else {"include_prompt": False}
    if part.pools != tuple(pool for pool in POOLS if pool in part.pools):
        # Only release 6 has another order; older ones fail with this key.
        pools = part.pools[0] if len(part.pools) == 1 else [*part.pools]
        return {"embedding_dimension": part.state_width, "pooling_mode": pools, **further}
    keys = {
        key: pool in part.pools
        for pool, key in POOL_KEYS.items()
        if key in FIRST_POOL_KEYS or pool in part.pools
    }
    return {"word_embedding_dimension": part.state_width, **keys, **further}
