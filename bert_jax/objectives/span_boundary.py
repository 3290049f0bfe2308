"""SpanBERT's span boundary objective: predicts masked tokens from the states around their span.

Sizes: B rows, P prediction slots, H hidden, E the width of the word embeddings, O offset size, V
padded vocabulary.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import truncated_normal, zeros

from bert_jax.config.schema import ModelConfig, PhaseConfig
from bert_jax.data_pipeline.masking.masking_settings import SPAN_TARGETS
from bert_jax.model.heads import Transform, word_logits
from bert_jax.model.layers import Keys, param
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.masked_lm import token_baseline_rows, token_baselines, token_sums
from bert_jax.objectives.objective import Objective, States, Tensor, has_bias, has_norm_bias
from bert_jax.parallel.global_batch import Batch

OFFSET_SIZE = 200  # width of the position embedding (`--pair-positional-embedding-size 200`)


class SpanBoundaryHead(nnx.Module):
    """Predicts a token from the states at its span's outer boundary and its position in the span.

    [x_left; x_right; p_offset], twice dense, activation, LayerNorm; then the word embeddings and a
    separate bias: BertPairTargetPredictionHead, pair_bert.py:338-402 of SpanBERT (0670d8b).
    """

    def __init__(self, config: ModelConfig, keys: Keys):
        H, init = config.hidden_size, truncated_normal(config.initializer_range)
        self.config = config
        self.offset = param(keys, (SPAN_TARGETS, OFFSET_SIZE), ("position", "table"), init)
        # Few mesh sizes divide 2H + 200, so this dimension is replicated and the output is sharded.
        self.first = Transform(config, keys, 2 * H + OFFSET_SIZE, ("boundary", "embed"))
        self.second = Transform(config, keys, config.table_width, ("embed", "pooled"))
        self.bias = param(keys, (config.padded_vocab_size,), ("vocab",), zeros)

    def __call__(
        self,
        left_BxPxH: jax.Array,
        right_BxPxH: jax.Array,
        offsets_BxP: jax.Array,
        table_VxE: jax.Array,
    ) -> jax.Array:
        """Returns logits [B, P, V] from the states around each slot's span and its offset."""
        offset_BxPxO = self.offset[...].astype(left_BxPxH.dtype)[offsets_BxP]
        x_BxPxI = jnp.concatenate([left_BxPxH, right_BxPxH, offset_BxPxO], axis=-1)
        y_BxPxE = self.second(self.first(x_BxPxI))
        return word_logits(self.config, y_BxPxE, table_VxE, self.bias[...])


def _logits(head: SpanBoundaryHead, states: States, batch: Batch) -> jax.Array:
    """Returns logits [B, P, V]."""
    left_BxPxH, right_BxPxH = states.at(batch["span_left"]), states.at(batch["span_right"])
    return head(left_BxPxH, right_BxPxH, batch["span_offsets"], states.table)


def _sums(logits_BxPxV: jax.Array, batch: Batch, corpus: Corpus) -> dict[str, jax.Array]:
    return token_sums(logits_BxPxV, batch["masked_labels"], batch["span_weights"], corpus)


def _flops(model: ModelConfig, phase: PhaseConfig) -> float:
    H, E, V = model.hidden_size, model.table_width, model.vocab_size
    slots = phase.batch_size * phase.row_predictions
    return 2 * slots * ((2 * H + OFFSET_SIZE) * E + E * E + E * V)


SPAN_BOUNDARY = Objective(
    name="sbo",
    title="Span boundary (SBO)",
    head="sbo",
    weights="span_weights",
    has_labels=lambda data: data.span_boundary,
    make_head=SpanBoundaryHead,
    logits=_logits,
    sums=_sums,
    baselines=token_baselines,
    baseline_rows=token_baseline_rows,
    flops=_flops,
    task="which tokens were masked in a span, given only the two tokens next to it",
    # count + 1 as published: spanbert_loss.py:61-66 of SpanBERT.
    denominator=lambda count: count + 1,
    tensors=(
        Tensor("sbo.offset", "cls.span_boundary.offset.weight"),
        *(
            Tensor(f"sbo.{layer}.{ours}", f"cls.span_boundary.{layer}.{theirs}", inputs, exists=has)
            for layer in ("first", "second")
            for ours, theirs, inputs, has in (
                ("dense.kernel", "dense.weight", 1, lambda config: True),
                ("dense.bias", "dense.bias", None, has_bias),
                ("norm.scale", "LayerNorm.weight", None, lambda config: True),
                ("norm.bias", "LayerNorm.bias", None, has_norm_bias),
            )
        ),
        Tensor("sbo.bias", "cls.span_boundary.bias", of_vocabulary=True),
    ),
    head_title="span-boundary",
    card="The span boundary head predicts the tokens of a span from the states on both sides of it "
    "and from their places in it.",
    pytorch="""\
left, right = 2, 5  # positions of the tokens on both sides of a span
offsets = torch.arange(right - left - 1)  # places of its tokens, up to 14
sides = hidden[0, [left, right]].flatten().expand(len(offsets), -1)
x = torch.cat([sides, heads["cls.span_boundary.offset.weight"][offsets]], dim=-1)
for layer in ("first", "second"):
    name = f"cls.span_boundary.{{layer}}"
    x = F.gelu(dense(f"{{name}}.dense", x), approximate="{approximate}")
    norm = [heads.get(f"{{name}}.LayerNorm.{{kind}}") for kind in ("weight", "bias")]
    x = F.layer_norm(x, x.shape[-1:], *norm, eps={eps})
words = model.get_input_embeddings().weight
span_logits = x @ words.T + heads["cls.span_boundary.bias"]
""",
)
