"""The pretraining heads, and the model that joins them to the encoder.

Sizes: B rows, S positions, H hidden, P prediction slots, N examples in a row, V padded vocabulary,
O offset size. Lines are of google-research/bert where no other file is named.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import truncated_normal, zeros

from bert_jax.config.schema import ComputeConfig, ModelConfig, Objective
from bert_jax.model.encoder import Encoder
from bert_jax.model.layers import Axes, Dense, Keys, LayerNorm, activation, param
from bert_jax.parallel.global_batch import Batch

# The published values (`--max-pair-targets 15`, `--pair-positional-embedding-size 200`).
SPAN_TARGETS = 15  # first tokens of a span that its boundary predicts
OFFSET_SIZE = 200  # width of the embedding of a token's place in its span


def pair_objective(objectives: Sequence[Objective]) -> Objective | None:
    """The one that is about sentence pairs and needs the pooler; None without such."""
    return next((name for name in objectives if name in ("nsp", "sop")), None)


class Transform(nnx.Module):
    """LayerNorm(activation(dense(x))), to the hidden size."""

    def __init__(self, config: ModelConfig, keys: Keys, size: int, axes: Axes):
        """size: of the input; axes: logical names of the kernel's two dimensions."""
        self.config = config
        self.dense = Dense(config, keys, (size,), (config.hidden_size,), axes)
        self.norm = LayerNorm(config, keys)

    def __call__(self, x_BxPxI: jax.Array) -> jax.Array:
        """[B, P, size] -> [B, P, H], in the type of x."""
        return self.norm(activation(self.config, self.dense(x_BxPxI)))


class MaskedLMHead(Transform):
    """Dense, activation, LayerNorm, word table, bias: run_pretraining.py:240-282."""

    def __init__(self, config: ModelConfig, keys: Keys):
        super().__init__(config, keys, config.hidden_size, ("embed", "pooled"))
        self.bias = param(keys, (config.padded_vocab_size,), ("vocab",), zeros)

    def __call__(self, x_BxPxH: jax.Array, table_VxH: jax.Array) -> jax.Array:  # type: ignore[override]
        """[B, P, H] -> float32 logits [B, P, V]."""
        y_BxPxH = super().__call__(x_BxPxH)
        return word_logits(self.config, y_BxPxH, table_VxH, self.bias[...])


class SpanBoundaryHead(nnx.Module):
    """A masked token from the states just outside its span and its place in it.

    [x_left; x_right; p_offset], twice dense, activation, LayerNorm; then the word table and a bias
    of its own: BertPairTargetPredictionHead, pair_bert.py:338-402 of SpanBERT (0670d8b).
    """

    def __init__(self, config: ModelConfig, keys: Keys):
        H, init = config.hidden_size, truncated_normal(config.initializer_range)
        self.config = config
        self.offset = param(keys, (SPAN_TARGETS, OFFSET_SIZE), ("position", "table"), init)
        # 2H + 200 divides by few mesh sizes, so it stays whole and the output is split.
        self.first = Transform(config, keys, 2 * H + OFFSET_SIZE, ("boundary", "embed"))
        self.second = Transform(config, keys, H, ("embed", "pooled"))
        self.bias = param(keys, (config.padded_vocab_size,), ("vocab",), zeros)

    def __call__(
        self,
        left_BxPxH: jax.Array,
        right_BxPxH: jax.Array,
        offsets_BxP: jax.Array,
        table_VxH: jax.Array,
    ) -> jax.Array:
        """States before and after each slot's span, the slot's place in it -> logits [B, P, V]."""
        offset_BxPxO = self.offset[...].astype(left_BxPxH.dtype)[offsets_BxP]
        x_BxPxI = jnp.concatenate([left_BxPxH, right_BxPxH, offset_BxPxO], axis=-1)
        y_BxPxH = self.second(self.first(x_BxPxI))
        return word_logits(self.config, y_BxPxH, table_VxH, self.bias[...])


def word_logits(
    config: ModelConfig, y_BxPxH: jax.Array, table_VxH: jax.Array, bias_V: jax.Array
) -> jax.Array:
    """Float32 logits [B, P, V]; rows added to the table for padding get -inf."""
    logits_BxPxV = jnp.einsum(
        "bph,vh->bpv", y_BxPxH, table_VxH.astype(y_BxPxH.dtype),
        preferred_element_type=jnp.float32,
    )  # fmt: skip
    if config.padded_vocab_size > config.vocab_size:
        real_V = jnp.arange(config.padded_vocab_size) < config.vocab_size
        bias_V = jnp.where(real_V, bias_V, -jnp.inf)
    return logits_BxPxV + bias_V[None, None, :]


def pair_logits(x_BxNxH: jax.Array, kernel_Hx2: jax.Array, bias_2: jax.Array) -> jax.Array:
    """Float32 logits [B, N, 2], never rounded to the compute type."""
    logits_BxNx2 = jnp.einsum(
        "bnh,hc->bnc", x_BxNxH, kernel_Hx2.astype(x_BxNxH.dtype),
        preferred_element_type=jnp.float32,
    )  # fmt: skip
    return logits_BxNx2 + bias_2[None, None, :]


class PretrainingModel(nnx.Module):
    """The encoder with the heads of some objectives; the masked-language-model head always.

    A pair objective adds a pooler and the head `pair`, span boundaries add `sbo`.
    """

    def __init__(
        self,
        config: ModelConfig,
        compute: ComputeConfig,
        objectives: Sequence[Objective],
        keys: Keys,
    ):
        self.objectives = tuple(objectives)
        with_pairs = pair_objective(objectives) is not None
        self.encoder = Encoder(config, compute, keys, pooler=with_pairs)
        self.mlm = MaskedLMHead(config, keys)
        if with_pairs:
            self.pair = Dense(config, keys, (config.hidden_size,), (2,), ("embed", "classes"))
        if "sbo" in objectives:
            self.sbo = SpanBoundaryHead(config, keys)

    def __call__(self, batch: Batch, key: jax.Array | None = None) -> dict[Objective, jax.Array]:
        """Float32 logits of each objective: masked tokens [B, P, V], pairs [B, N, 2], spans as mlm.

        Only the masked positions reach the vocabulary: they, and the boundaries of their spans, are
        gathered first, as in the original.
        """
        x_BxSxH = self.encoder(
            batch["input_ids"],
            batch["token_type_ids"],
            batch["example_ids"],
            batch["position_ids"],
            key,
        )
        table_VxH = self.encoder.embeddings.word[...]
        masked_BxPxH = _at(x_BxSxH, batch["masked_positions"])
        logits: dict[Objective, jax.Array] = {"mlm": self.mlm(masked_BxPxH, table_VxH)}
        if pair := pair_objective(self.objectives):
            pooled_BxNxH = self.encoder.pooled(x_BxSxH, batch["cls_positions"])
            logits[pair] = pair_logits(pooled_BxNxH, self.pair.kernel[...], self.pair.bias[...])
        if "sbo" in self.objectives:
            left_BxPxH = _at(x_BxSxH, batch["span_left"])
            right_BxPxH = _at(x_BxSxH, batch["span_right"])
            logits["sbo"] = self.sbo(left_BxPxH, right_BxPxH, batch["span_offsets"], table_VxH)
        return logits


def _at(x_BxSxH: jax.Array, positions_BxP: jax.Array) -> jax.Array:
    """The states [B, P, H] at some positions of each row."""
    return jnp.take_along_axis(x_BxSxH, positions_BxP[..., None], axis=1)


def declare(
    config: ModelConfig, compute: ComputeConfig, objectives: Sequence[Objective]
) -> tuple[nnx.GraphDef, nnx.State]:
    """The model's structure and its parameters' shapes and logical axes; allocates nothing."""
    return nnx.split(
        nnx.eval_shape(
            lambda: PretrainingModel(config, compute, objectives, Keys(jax.random.key(0)))
        )
    )


def init_params(
    config: ModelConfig, compute: ComputeConfig, objectives: Sequence[Objective], key: jax.Array
) -> dict:
    """Fresh parameters as a plain nested dict of float32 arrays."""
    model = PretrainingModel(config, compute, objectives, Keys(key))
    return nnx.to_pure_dict(nnx.state(model))
