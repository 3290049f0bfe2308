"""The parts of a sentence encoder that a run trained: what makes vectors as it did in training."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from bert_jax.config.schema import Config
from bert_jax.config.sentence_parts import Dense, Normalize, Part, Pooling
from bert_jax.config.task_model import TaskModelConfig, passage_prompt
from bert_jax.convert.sentence_encoder import SentenceEncoder
from bert_jax.model.vector_layers import weights_of

# Names of the prompts of a run. Since release 5 `encode_document` looks for "document", which a
# model always has there, before it looks for "passage".
QUERY: Final = "query"
PASSAGES: Final = ("passage", "document")


def encoder_of_run(
    config: Config, params: Mapping[str, Any] | None = None
) -> SentenceEncoder | None:
    """Returns what makes vectors of texts with the encoder of a run as it did in training; None if
    the run trained no vectors.

    params: of the run, with the weights of its dense layers; None: without weights.
    """
    head = config.model.head if isinstance(config.model, TaskModelConfig) else None
    if head is None or head.vectors is None:
        return None
    task, dense = config.task, head.vectors.dense
    pooling = Pooling(head.pools, True, config.model.hidden_size)
    norm = [Normalize()] if head.vectors.normalize else []
    parts: list[Part] = [pooling, *dense, *norm]
    own = weights_of(params[head.name], dense) if params and dense else [{}] * len(dense)
    weights: list[Mapping[str, np.ndarray]] = [{}, *own, *[{}] * len(norm)]
    passage = passage_prompt(task, head.vectors.loss)
    has_two = passage != task.query_prompt
    prompts = {QUERY: task.query_prompt, **dict.fromkeys(PASSAGES, passage)}
    given = {name: prompt for name, prompt in prompts.items() if prompt}
    return SentenceEncoder(
        tuple(parts),
        tuple(weights),
        max_length=config.phases[-1].seq_length,
        prompts=given,
        default_prompt=QUERY if given and not has_two else None,
        similarity="cosine",
    )


def dense_layers(
    encoder: SentenceEncoder,
) -> tuple[tuple[Dense, ...], tuple[Mapping[str, np.ndarray], ...]]:
    """Returns the dense layers between pool and normalization, with their weights."""
    found = []
    for part, weights in zip(encoder.parts, encoder.weights, strict=True):
        if isinstance(part, Normalize):
            break
        if isinstance(part, Dense):
            found.append((part, weights))
    layers, weights_of_each = zip(*found, strict=True) if found else ((), ())
    return layers, weights_of_each
