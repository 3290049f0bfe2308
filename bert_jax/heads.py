"""The pretraining heads, and the model that joins them to the encoder.

Sizes: B rows, S positions, H hidden, P prediction slots, N examples in a row, V padded vocabulary.
Lines are of google-research/bert.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import zeros

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.encoder import Encoder
from bert_jax.layers import Dense, LayerNorm, activation, param

Batch = Mapping[str, jax.Array]  # as data_pipeline/batch.py makes it


class MaskedLMHead(nnx.Module):
    """Dense, activation, LayerNorm, word table, bias: run_pretraining.py:240-282."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        H = config.hidden_size
        self.config = config
        self.dense = Dense(config, rngs, (H,), (H,), ("embed", "pooled"))
        self.norm = LayerNorm(config, rngs)
        self.bias = param(rngs, (config.padded_vocab_size,), ("vocab",), zeros)

    def __call__(self, x_BxPxH: jax.Array, table_VxH: jax.Array) -> jax.Array:
        """[B, P, H] -> float32 logits [B, P, V]; rows added to the table for padding get -inf."""
        y_BxPxH = self.norm(activation(self.config, self.dense(x_BxPxH)))
        logits_BxPxV = jnp.einsum(
            "bph,vh->bpv", y_BxPxH, table_VxH.astype(y_BxPxH.dtype),
            preferred_element_type=jnp.float32,
        )  # fmt: skip
        bias_V = self.bias[...]
        if self.config.padded_vocab_size > self.config.vocab_size:
            real_V = jnp.arange(self.config.padded_vocab_size) < self.config.vocab_size
            bias_V = jnp.where(real_V, bias_V, -jnp.inf)
        return logits_BxPxV + bias_V[None, None, :]


class PretrainingModel(nnx.Module):
    """Encoder with a masked-language-model head and a sentence-pair head."""

    def __init__(self, config: ModelConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.encoder = Encoder(config, compute, rngs)
        self.mlm = MaskedLMHead(config, rngs)
        self.nsp = Dense(config, rngs, (config.hidden_size,), (2,), ("embed", "classes"))

    def __call__(self, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        """Masked-token logits [B, P, V] and pair logits [B, N, 2], both float32.

        Only the masked positions reach the vocabulary: they are gathered first, as in the original.
        """
        x_BxSxH = self.encoder(
            batch["input_ids"],
            batch["token_type_ids"],
            batch["example_ids"],
            batch["position_ids"],
            key,
        )
        masked_BxPxH = jnp.take_along_axis(x_BxSxH, batch["masked_positions"][..., None], axis=1)
        mlm_BxPxV = self.mlm(masked_BxPxH, self.encoder.embeddings.word[...])
        nsp_BxNx2 = self.nsp(self.encoder.pooled(x_BxSxH, batch["cls_positions"]))
        return mlm_BxPxV, nsp_BxNx2.astype(jnp.float32)


def declare(config: ModelConfig, compute: ComputeConfig) -> tuple[nnx.GraphDef, nnx.State]:
    """The model's structure and its parameters' shapes and logical axes; allocates nothing."""
    return nnx.split(nnx.eval_shape(lambda: PretrainingModel(config, compute, nnx.Rngs(0))))


def init_params(config: ModelConfig, compute: ComputeConfig, key: jax.Array) -> dict:
    """Fresh parameters as a plain nested dict of float32 arrays."""
    return nnx.to_pure_dict(nnx.state(PretrainingModel(config, compute, nnx.Rngs(key))))
