"""The compiled functions of a `Model`: token states, text vectors, predictions of masks; and those
of scores of texts.

Sizes as in model.py. "highest" because accelerators otherwise multiply float32 matrices in lower
precision, and the outputs are compared with other libraries'.
"""

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.api.text_rows import Rows
from bert_jax.config.task_settings import Join
from bert_jax.errors import UserError
from bert_jax.model.encoder import Encoder
from bert_jax.model.layer_states import joined_states, pool
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.ops.cross_entropy import log_loss

Pooling = Literal["mean", "cls", "max", "pooled"]


def check_choice(name: str, value: str, choices: Any) -> None:
    """Raises UserError for a value that is none of a Literal's."""
    if value not in get_args(choices):
        raise UserError(f"{name}={value!r}; choose one of {', '.join(get_args(choices))}")


@jax.default_matmul_precision("highest")
def states(
    graph: nnx.GraphDef, params: Any, rows: Rows, *, layers: tuple[int, ...], join: Join
) -> jax.Array:
    """Returns the joined states of the chosen layers, [B, S, D]."""
    encoder: Encoder = nnx.merge(graph, params).encoder
    ids, examples, positions = map(jnp.asarray, (rows.ids, rows.examples, rows.positions))
    inputs = (ids, jnp.zeros_like(ids), examples, positions)
    if layers == (encoder.num_layers,):
        return encoder(*inputs)
    return joined_states(encoder, inputs, layers, join)


@jax.default_matmul_precision("highest")
def vectors(
    graph: nnx.GraphDef,
    params: Any,
    rows: Rows,
    *,
    layers: tuple[int, ...],
    join: Join,
    pooling: Pooling,
) -> jax.Array:
    """Returns the vector of the text in each place, [B, N, D]."""
    x_BxSxD = states(graph, params, rows, layers=layers, join=join)
    if pooling == "pooled":
        return nnx.merge(graph, params).encoder.pooled(x_BxSxD, rows.starts)
    examples, starts, positions = map(jnp.asarray, (rows.examples, rows.starts, rows.positions))
    return pool(x_BxSxD, examples, starts, positions, (pooling,))


@jax.default_matmul_precision("highest")
def fills(
    graph: nnx.GraphDef,
    params: Any,
    rows: Rows,
    positions_P: jax.Array,
    *,
    entries: int,
    top_k: int,
) -> tuple[jax.Array, jax.Array]:
    """Ids and probabilities [P, top_k] of the tokenizer's entries, in descending order, of a batch
    of one text."""
    model = nnx.merge(graph, params)
    last = (model.encoder.num_layers,)
    x_1xPxH = states(graph, params, rows, layers=last, join="concat")[:, positions_P]
    head = getattr(model, MASKED_LM.head)
    logits_PxV = head(x_1xPxH, model.encoder.embeddings.word[...])[0]
    probabilities, ids = jax.lax.top_k(jax.nn.softmax(logits_PxV)[:, :entries], top_k)
    return ids, probabilities


@jax.default_matmul_precision("highest")
def log_probabilities(
    graph: nnx.GraphDef, params: Any, rows: Rows, positions_B: jax.Array, labels_B: jax.Array
) -> jax.Array:
    """Returns log p of an entry at a position of each row: float32 [B]."""
    model = nnx.merge(graph, params)
    last = (model.encoder.num_layers,)
    x_BxSxD = states(graph, params, rows, layers=last, join="concat")
    x_Bx1xD = jnp.take_along_axis(x_BxSxD, positions_B[:, None, None], axis=1)
    logits_Bx1xV = getattr(model, MASKED_LM.head)(x_Bx1xD, model.encoder.embeddings.word[...])
    return -log_loss(logits_Bx1xV[:, 0], labels_B)[0]
