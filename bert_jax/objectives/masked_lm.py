"""Masked language modelling: predicts masked tokens from their hidden states.

Sizes: B rows, P prediction slots, H hidden, E the width of the word embeddings, V padded
vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import zeros

from bert_jax.config.schema import ModelConfig, PhaseConfig
from bert_jax.model.heads import Transform, word_logits
from bert_jax.model.layers import Keys, param
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.objective import Objective, States, Tensor, has_bias, has_norm_bias
from bert_jax.ops.cross_entropy import log_loss
from bert_jax.parallel.global_batch import Batch


class MaskedLMHead(Transform):
    """Dense, activation, LayerNorm, word embeddings, bias: run_pretraining.py:240-282."""

    def __init__(self, config: ModelConfig, keys: Keys):
        super().__init__(config, keys, config.hidden_size, ("embed", "pooled"))
        if config.near_identity.head:
            H, E = config.hidden_size, config.table_width
            self.dense.kernel[...] = jnp.eye(H, E, dtype=jnp.float32)
        self.bias = param(keys, (config.padded_vocab_size,), ("vocab",), zeros)

    def __call__(self, x_BxPxH: jax.Array, table_VxE: jax.Array) -> jax.Array:  # type: ignore[override]
        """[B, P, H] -> float32 logits [B, P, V]."""
        return word_logits(self.config, self.transformed(x_BxPxH), table_VxE, self.bias[...])

    def transformed(self, x_BxPxH: jax.Array) -> jax.Array:
        """[B, P, H] -> what the word embeddings are multiplied by, [B, P, E]."""
        return super().__call__(x_BxPxH)


def _logits(head: MaskedLMHead, states: States, batch: Batch) -> jax.Array:
    """Returns logits [B, P, V]; masked positions are gathered before the vocabulary projection."""
    return head(states.at(batch["masked_positions"]), states.table)


def token_sums(
    logits_BxPxV: jax.Array, labels_BxP: jax.Array, weights_BxP: jax.Array, corpus: Corpus
) -> dict[str, jax.Array]:
    """Returns sums over predicted tokens: loss (nats), correct, count, and the unigram baseline.

    The baseline's loss is the cross-entropy of the labels under the training frequencies; its
    accuracy is that of always predicting the most frequent token.
    """
    loss_BxP, correct_BxP = log_loss(logits_BxPxV, labels_BxP)
    return {
        "loss": jnp.sum(loss_BxP * weights_BxP),
        "correct": jnp.sum(correct_BxP * weights_BxP),
        **unigram_sums(labels_BxP, weights_BxP, corpus),
    }


def unigram_sums(
    labels_BxP: jax.Array, weights_BxP: jax.Array, corpus: Corpus
) -> dict[str, jax.Array]:
    """Returns the sums of `token_sums` that depend on no model."""
    unigram_BxP = -jnp.asarray(corpus.log_unigram)[labels_BxP]
    return {
        "baseline_loss": jnp.sum(unigram_BxP * weights_BxP),
        "baseline_correct": jnp.sum((labels_BxP == corpus.log_unigram.argmax()) * weights_BxP),
        "count": jnp.sum(weights_BxP),
    }


def token_baselines(sums: Mapping[str, Any], sources: Sequence[str]) -> dict[str, float]:
    """Returns loss and accuracy of the unigram baseline."""
    count = max(float(sums["count"]), 1.0)
    return {
        "baseline_loss": float(sums["baseline_loss"]) / count,
        "baseline_accuracy": float(sums["baseline_correct"]) / count,
    }


def token_baseline_rows(rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns loss and right answers of the unigram baseline, [N] each."""
    named = {what: f"baseline_{what}" for what in ("loss", "correct")}
    return {what: rows[key] for what, key in named.items() if key in rows}


def _sums(logits_BxPxV: jax.Array, batch: Batch, corpus: Corpus) -> dict[str, jax.Array]:
    return token_sums(logits_BxPxV, batch["masked_labels"], batch["masked_weights"], corpus)


def _flops(model: ModelConfig, phase: PhaseConfig) -> float:
    E, V = model.table_width, model.vocab_size
    return 2 * phase.batch_size * phase.row_predictions * (model.hidden_size * E + E * V)


MASKED_LM = Objective(
    name="mlm",
    title="Masked tokens (MLM)",
    head="mlm",
    weights="masked_weights",
    has_labels=lambda data: True,
    make_head=MaskedLMHead,
    logits=_logits,
    sums=_sums,
    baselines=token_baselines,
    baseline_rows=token_baseline_rows,
    flops=_flops,
    tensors=(
        Tensor("mlm.dense.kernel", "cls.predictions.transform.dense.weight", 1),
        Tensor("mlm.dense.bias", "cls.predictions.transform.dense.bias", exists=has_bias),
        Tensor("mlm.norm.scale", "cls.predictions.transform.LayerNorm.weight"),
        Tensor("mlm.norm.bias", "cls.predictions.transform.LayerNorm.bias", exists=has_norm_bias),
        Tensor("mlm.bias", "cls.predictions.bias", of_vocabulary=True),
    ),
    task="which tokens were masked",
    head_title="masked-language-model",
    pipeline="fill-mask",
)
