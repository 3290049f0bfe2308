"""ELECTRA's replaced-token detection (RTD): tells the tokens that were replaced from the others.

Sizes: B rows, S positions, H hidden, C bins of a histogram.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn.initializers import glorot_uniform

from bert_jax.config.schema import ModelConfig, PhaseConfig
from bert_jax.model.heads import class_logits
from bert_jax.model.layers import Dense, Keys, activation
from bert_jax.objectives.class_labels import binary_loss, class_baselines, constant_rows
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.objective import Objective, States, Tensor, has_bias
from bert_jax.objectives.positions import real_tokens
from bert_jax.parallel.global_batch import Batch

# The bins of the logits' histograms are equal parts of [-LIMIT, LIMIT]; logits beyond it are in the
# first or the last one. Their number is a square: see `_histograms`.
LIMIT: Final = 16.0
_ROOT: Final = 16
BINS: Final = _ROOT**2


class Detection(NamedTuple):
    """Answers of the discriminator, and the right ones."""

    logits: jax.Array  # float32 [B, S], positive where a token seems to be replaced
    replaced: jax.Array  # int32 [B, S], 1 where the token is another than in the text
    right: jax.Array | None = None  # float32 [B, P], 1 where the generator drew the original


class ReplacedTokensHead(nnx.Module):
    """Dense, activation, output layer: `_get_discriminator_output` in run_pretraining.py of
    google-research/electra."""

    def __init__(self, config: ModelConfig, keys: Keys):
        H, self.config = config.hidden_size, config
        scale, bias = config.output_scale, config.linear_bias
        self.dense = Dense(config, keys, (H,), (H,), ("embed", "pooled"), scale, bias)
        # There it is the one layer, besides the one after the tables, that names no initial values.
        self.output = Dense(config, keys, (H,), (1,), ("embed", "classes"), init=glorot_uniform())

    def __call__(self, x_BxSxH: jax.Array) -> jax.Array:
        """Returns float32 logits [B, S], positive where a token seems to be replaced."""
        return class_logits(self.output, activation(self.config, self.dense(x_BxSxH)))[..., 0]


def _logits(head: ReplacedTokensHead, states: States, batch: Batch) -> jax.Array:
    """Returns float32 logits of every position, [B, S]."""
    return head(states.hidden)


def _sums(found: jax.Array | Detection, batch: Batch, corpus: Corpus) -> dict[str, jax.Array]:
    """Returns sums over tokens: loss (nats), correct, count; how many are original and replaced
    [2], seem to be replaced, and are so; the histograms [C] of the logits of both kinds; of a
    generator, its draws, and how many are the original tokens.

    found: of a discriminator alone the logits; the batch has what is `replaced`, int32 [B, S].
    """
    if not isinstance(found, Detection):
        found = Detection(found, batch["replaced"].reshape(found.shape))
    logits_BxS, replaced_BxS, right_BxP = found
    weights_BxS = real_tokens(batch).reshape(logits_BxS.shape)
    predicted_BxS = logits_BxS > 0
    negatives_C, positives_C = _histograms(logits_BxS, replaced_BxS, weights_BxS)
    draws = {}
    if right_BxP is not None:
        draws = {"draws": jnp.sum(batch["masked_weights"]), "right_draws": jnp.sum(right_BxP)}
    return draws | {
        "loss": jnp.sum(binary_loss(logits_BxS, replaced_BxS) * weights_BxS),
        "correct": jnp.sum((predicted_BxS == (replaced_BxS > 0)) * weights_BxS),
        "count": jnp.sum(weights_BxS),
        "labels": jnp.stack([negatives_C.sum(), positives_C.sum()]),
        "predicted": jnp.sum(predicted_BxS * weights_BxS),
        "true_positives": jnp.sum(predicted_BxS * replaced_BxS * weights_BxS),
        "negatives": negatives_C,
        "positives": positives_C,
    }


def _histograms(
    logits_BxS: jax.Array, labels_BxS: jax.Array, weights_BxS: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns how many logits of label 0 and of label 1 are in each bin, float32 [C] each.

    A matrix product counts them: one side has a column for each label and row of a square of bins,
    the other for each column of it, so that no array is as large as logits times bins.
    """
    scaled_BxS = (logits_BxS + LIMIT) * (BINS / (2 * LIMIT))
    bins_BxS = jnp.clip(scaled_BxS, 0, BINS - 1).astype(jnp.int32)
    rows = jax.nn.one_hot(labels_BxS * _ROOT + bins_BxS // _ROOT, 2 * _ROOT)
    columns = jax.nn.one_hot(bins_BxS % _ROOT, _ROOT)
    # Zeros and ones are exact in any precision, and the sums are float32.
    counts = jnp.einsum("...r,...c->rc", rows * weights_BxS[..., None], columns)
    negatives_C, positives_C = counts.reshape(2, BINS)
    return negatives_C, positives_C


def _baselines(sums: Mapping[str, Any], sources: Sequence[str]) -> dict[str, float]:
    """Returns accuracy and loss of the best constant, and what accuracy hides where few tokens are
    replaced: precision, recall and the area under the ROC curve, 1/2 without both kinds; and the
    share of draws that are the original tokens."""
    right = float(sums["true_positives"])
    drawn = {}
    if "draws" in sums:
        drawn = {"right_draws": float(sums["right_draws"]) / max(float(sums["draws"]), 1.0)}
    return drawn | {
        **class_baselines(sums, sources),
        "precision": right / max(float(sums["predicted"]), 1.0),
        "recall": right / max(float(sums["labels"][1]), 1.0),
        "auc": area_under_curve(sums["negatives"], sums["positives"]),
    }


def area_under_curve(negatives: np.ndarray, positives: np.ndarray) -> float:
    """Returns the share of pairs of a negative and a positive in which the positive is in the
    higher bin; a pair in one bin counts half. 1/2 if there is no pair.

    Args:
        negatives, positives: histograms [C].
    """
    negatives, positives = (np.asarray(x, np.float64) for x in (negatives, positives))
    below = np.cumsum(negatives) - negatives / 2
    pairs = negatives.sum() * positives.sum()
    return float((positives * below).sum() / pairs) if pairs else 0.5


def _flops(model: ModelConfig, phase: PhaseConfig) -> float:
    H = model.hidden_size
    return 2 * phase.batch_size * phase.row_tokens * (H * H + H)


REPLACED_TOKENS = Objective(
    name="rtd",
    title="Replaced tokens (RTD)",
    head="rtd",
    weights=real_tokens,
    make_head=ReplacedTokensHead,
    logits=_logits,
    sums=_sums,
    baselines=_baselines,
    baseline_rows=lambda rows: constant_rows(rows["labels"]),
    flops=_flops,
    task="which tokens were replaced",
    denominator=lambda count: count + 1e-6,  # as published
    has_labels=lambda data: data.replaced_tokens,
    tensors=(
        Tensor("rtd.dense.kernel", "discriminator_predictions.dense.weight", 1),
        Tensor("rtd.dense.bias", "discriminator_predictions.dense.bias", exists=has_bias),
        Tensor("rtd.output.kernel", "discriminator_predictions.dense_prediction.weight", 1),
        Tensor("rtd.output.bias", "discriminator_predictions.dense_prediction.bias"),
    ),
    head_title="replaced-token",
    card="The replaced-token head gives each token a score, positive if it seems not to be that of "
    "the original text.",
    pytorch="""\
x = dense("discriminator_predictions.dense", hidden[0])
x = F.gelu(x, approximate="{approximate}")
replaced_logits = dense("discriminator_predictions.dense_prediction", x)[..., 0]
""",
)


def to_give(heads: Collection[str]) -> str:
    """Returns what to give in place of a model with these heads, where masked tokens are predicted,
    for a message."""
    generator = " (of ELECTRA the generator in an export)" if REPLACED_TOKENS.head in heads else ""
    return f"give a model that has one{generator}"
