"""Restores a sentence from the vector of what is left of it: TSDAE.

A sentence with deleted tokens is encoded and pooled; a decoder predicts each token of the whole
sentence from those before it and from that vector alone (Wang, Reimers and Gurevych 2021, arXiv
2104.06979; sentence-transformers' DenoisingAutoEncoderLoss with `tie_encoder_decoder`). The decoder
is the encoder's own layers, causal, each with an attention to the vector between its self-attention
and its feed-forward network. A softmax over one key is 1, so this attention is a linear map of the
vector. Only the maps and the head of the word scores are not the encoder's, and no export has them.

Sizes: B rows, S positions, R strips of rows that the encoder reads, N places for sentences, H
hidden, E the width of the word embeddings, V padded vocabulary.
"""

from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config.schema import PhaseConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.model.heads import word_logits
from bert_jax.model.layers import Dense, Keys, LayerNorm
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.masked_lm import MaskedLMHead, token_baselines, unigram_sums
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.sentence_vectors import (
    SentenceHead,
    Vectors,
    dense_flops,
    sentence_vectors,
    width_axis,
)
from bert_jax.ops.cross_entropy import log_loss
from bert_jax.ops.dropout import dropout
from bert_jax.parallel.global_batch import Batch

KEPT: Final = "kept_ids"  # in a batch: see `objectives/denoising_model.py`
_PIECE: Final = 16  # positions of each row whose logits are in memory at a time


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Restored:
    """The output of the model, in place of logits.

    Attributes:
        vectors: in evaluation those of the whole sentences.
        loss: -log p of the next token, nats, float32, and whether no other is more probable; of
            each position, as the batch's input_ids.
    """

    vectors: Vectors | None
    loss: jax.Array
    correct: jax.Array


class FromVector(nnx.Module):
    """LayerNorm(x + dropout(dense(vector))): the attention of a layer to one key. Its queries and
    keys have no effect, and its values and its output layer are one matrix; with pre-LayerNorm,
    whose norm is of the queries alone, it has none."""

    def __init__(self, config: TaskModelConfig, keys: Keys):
        self.rate = config.hidden_dropout_prob
        shapes = (config.head_width,), (config.hidden_size,)
        scale, bias = config.output_scale, config.linear_bias
        self.dense = Dense(config, keys, *shapes, (width_axis(config), "pooled"), scale, bias)
        self.norm = LayerNorm(config, keys) if config.norm_position == "post" else None

    def __call__(
        self, x_RxSxH: jax.Array, vectors_RxNxV: jax.Array, own_RxNxS: jax.Array, key: Any
    ) -> jax.Array:
        """Returns the hidden states; own: 1 where a position is of a place's sentence, else 0."""
        # A product in which each position has one term that is not 0.
        y_RxSxH = jnp.einsum("rns,rnh->rsh", own_RxNxS, self.dense(vectors_RxNxV))
        x_RxSxH = x_RxSxH + dropout(y_RxSxH, rate=self.rate, key=key)
        return self.norm(x_RxSxH) if self.norm else x_RxSxH


class Decoder(SentenceHead):
    """The pool over a sentence's tokens, and what the decoder's layers read of its result."""

    def __init__(self, config: TaskModelConfig, keys: Keys):
        super().__init__(config, keys)
        # Stacked as the layers, which share theirs where the layers do.
        self.layers = nnx.vmap(lambda key: FromVector(config, Keys(key)))(
            jax.random.split(keys(), config.layers_of_parameters)
        )


def next_token(batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Returns the id after each position, and 1 where it is of the same sentence, else 0, float32:
    its second token to the separator. As input_ids, with any leading dimensions."""
    ids, own = batch["input_ids"], batch["example_ids"]
    follows = (own[..., 1:] == own[..., :-1]) & (own[..., :-1] > 0)
    last = jnp.zeros_like(follows[..., :1])
    weights = jnp.concatenate([follows, last], -1).astype(jnp.float32)
    return jnp.roll(ids, -1, axis=-1), weights


def token_losses(
    head: MaskedLMHead, x_RxSxH: jax.Array, table_VxE: jax.Array, labels_RxS: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns -log p(label) of each position, nats, and whether no other is more probable, [R, S].

    Logits are of all positions, so they are computed piece by piece, and again in the backward
    pass. table: whose gradients are added up in float32.
    """
    S, table_VxE = labels_RxS.shape[1], table_VxE.astype(jnp.float32)
    pieces = -(-S // _PIECE)

    def cut(x: jax.Array) -> jax.Array:
        """[R, S, …] -> [pieces, R, _PIECE, …]"""
        padding = [(0, 0), (0, pieces * _PIECE - S), *[(0, 0)] * (x.ndim - 2)]
        return jnp.moveaxis(jnp.pad(x, padding).reshape(len(x), pieces, -1, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def piece(xs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        y_RxPxE, labels_RxP = xs
        logits_RxPxV = word_logits(head.config, y_RxPxE, table_VxE, head.bias[...])
        return log_loss(logits_RxPxV, labels_RxP)

    found = jax.lax.map(piece, (cut(head.transformed(x_RxSxH)), cut(labels_RxS)))
    loss, correct = (jnp.moveaxis(x, 0, 1).reshape(len(labels_RxS), -1)[:, :S] for x in found)
    return loss, correct


def _sums(restored: Restored, batch: Batch, corpus: Corpus) -> dict[str, jax.Array]:
    labels, weights = next_token(batch)
    return {
        "loss": jnp.sum(restored.loss * weights),
        "correct": jnp.sum(restored.correct * weights),
        **unigram_sums(labels, weights, corpus),
    }


def _flops(model: TaskModelConfig, phase: PhaseConfig) -> float:
    """Dense layers, the maps and the word scores; the decoder's layers are counted as a second
    encoder."""
    H, E, V, D = model.hidden_size, model.table_width, model.vocab_size, model.head_width
    examples, layers = phase.batch_size * phase.examples_per_row, model.num_hidden_layers
    tokens = phase.batch_size * phase.row_tokens
    own = 2.0 * (examples * layers * D * H + tokens * (H * E + E * V))
    return dense_flops(model, phase, texts=1) + own


DENOISING = Objective(
    name="denoising",
    title="Denoising (TSDAE)",
    head="decoder",
    weights=lambda batch: next_token(batch)[1],
    make_head=Decoder,
    logits=sentence_vectors,
    sums=_sums,
    baselines=token_baselines,
    flops=_flops,
    tensors=(),
    of_task=True,
    head_title="reconstruction",
)
