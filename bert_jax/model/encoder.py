"""The BERT encoder exactly as the original (modeling.py of google-research/bert): post-LayerNorm.

`config.model.position` and `.norm_position` name other forms: rotary positions, pre-LayerNorm.

NNX only declares the parameters and the forward pass: between steps the state is a plain dict of
arrays. The parameters of all layers are stacked and applied by one `lax.scan`, which
`compute.unroll_layers` can unroll.
Sizes: B rows, S positions, H hidden, I intermediate, L layers, V vocabulary, N examples in a row.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import truncated_normal

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.model.attention import Attention
from bert_jax.model.layers import Dense, Keys, LayerNorm, activation, param, residual
from bert_jax.ops import rotary
from bert_jax.ops.dropout import dropout
from bert_jax.ops.embedding_lookup import lookup
from bert_jax.ops.hashing import fold_key
from bert_jax.parallel.partition import constrain_batch


class Embeddings(nnx.Module):
    """dropout(LayerNorm(word + position + type)): modeling.py:385-521.

    Rotary positions are not added here; attention rotates queries and keys by them.
    """

    def __init__(self, config: ModelConfig, keys: Keys):
        self.config = config
        H, init = config.hidden_size, truncated_normal(config.initializer_range)

        def words(key, shape, dtype=jnp.float32, out_sharding=None):
            del out_sharding
            real = jnp.arange(shape[0])[:, None] < config.vocab_size
            return jnp.where(real, init(key, shape, dtype), 0)  # padding rows stay zero

        positions, types = config.max_position_embeddings, config.type_vocab_size
        self.word = param(keys, (config.padded_vocab_size, H), ("vocab", "table"), words)
        if config.position == "learned":
            self.position = param(keys, (positions, H), ("position", "table"), init)
        if types:
            self.type = param(keys, (types, H), ("type", "table"), init)
        self.norm = LayerNorm(config, keys)

    def __call__(
        self,
        ids_BxS: jax.Array,
        types_BxS: jax.Array,
        positions_BxS: jax.Array,
        key: jax.Array | None,
    ) -> jax.Array:
        """Returns the embeddings, float32 [B, S, H], of three integer arrays [B, S]."""
        x_BxSxH = lookup(self.word[...], ids_BxS)
        if self.config.type_vocab_size:
            x_BxSxH = x_BxSxH + lookup(self.type[...], types_BxS)
        if self.config.position == "learned":
            x_BxSxH = x_BxSxH + lookup(self.position[...], positions_BxS)
        return dropout(self.norm(x_BxSxH), rate=self.config.hidden_dropout_prob, key=key)


class FeedForward(nnx.Module):
    """LayerNorm(x + dropout(dense(gelu(dense(x))))): modeling.py:866-880; see `residual`."""

    def __init__(self, config: ModelConfig, keys: Keys):
        H, I = config.hidden_size, config.intermediate_size  # noqa: E741
        self.config = config
        self.up = Dense(config, keys, (H,), (I,), ("embed", "mlp"))
        scale = config.near_identity.feed_forward
        self.down = Dense(config, keys, (I,), (H,), ("mlp", "embed"), scale)
        self.norm = LayerNorm(config, keys)

    def __call__(self, x_BxSxH: jax.Array, key: jax.Array | None) -> jax.Array:
        """Returns the hidden states [B, S, H] after the feed-forward network."""

        def branch(x_BxSxH: jax.Array) -> jax.Array:
            y_BxSxH = self.down(activation(self.config, self.up(x_BxSxH)))
            return dropout(y_BxSxH, rate=self.config.hidden_dropout_prob, key=key)

        return residual(self.config, self.norm, x_BxSxH, branch)


class Layer(nnx.Module):
    """One transformer layer: attention, then the feed-forward network."""

    def __init__(self, config: ModelConfig, compute: ComputeConfig, keys: Keys):
        self.attention = Attention(config, compute, keys)
        self.mlp = FeedForward(config, keys)

    def __call__(
        self,
        x_BxSxH: jax.Array,
        examples_BxS: jax.Array,
        rotation: rotary.Rotation | None,
        key: jax.Array | None,
    ) -> jax.Array:
        """Returns the hidden states [B, S, H] after the layer."""
        x_BxSxH = self.attention(x_BxSxH, examples_BxS, rotation, key)
        return constrain_batch(self.mlp(x_BxSxH, None if key is None else fold_key(key, 2)))


_POLICIES = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots_saveable": jax.checkpoint_policies.dots_saveable,
    "dots_with_no_batch_dims_saveable": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def _rematerialized(body: Callable, remat: str, *, looped: bool) -> Callable:
    """Returns the body of the layer loop, rematerialized by a checkpoint policy.

    The forward and backward passes of a scan are two loops, and XLA does no common-subexpression
    elimination between them. In unrolled code it would merge the recomputed values with the first
    ones and keep those in memory, so barriers are needed there (`prevent_cse`); inside a loop they
    only add cost. On CPUs unrolled code saves no memory even so: XLA schedules the recomputation
    too early.
    """
    if remat == "none":
        return body
    return jax.checkpoint(body, policy=_POLICIES[remat], prevent_cse=not looped)


class Encoder(nnx.Module):
    """Token ids to hidden states; `pooled` returns tanh(dense(h[CLS])) (modeling.py:218-232)."""

    def __init__(self, config: ModelConfig, compute: ComputeConfig, keys: Keys, *, pooler: bool):
        """pooler: whether to add a pooler; only sentence-pair objectives train it."""
        self.config, self.compute = config, compute
        self.num_layers = config.num_hidden_layers
        self.embeddings = Embeddings(config, keys)
        # Every leaf of the stack gets a leading [L].
        self.layers = nnx.vmap(lambda key: Layer(config, compute, Keys(key)))(
            jax.random.split(keys(), self.num_layers)
        )
        if config.norm_position == "pre":
            self.norm = LayerNorm(config, keys)
        if pooler:
            H = config.hidden_size
            self.pooler = Dense(config, keys, (H,), (H,), ("embed", "pooled"))

    def __call__(
        self,
        ids_BxS: jax.Array,
        types_BxS: jax.Array,
        examples_BxS: jax.Array,
        positions_BxS: jax.Array,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Returns the hidden states [B, S, H] of the last layer, in the compute dtype.

        Args:
            examples_BxS: id of the example of each position, 0 for padding; a position attends
                only to positions of its own example.
            key: uint32 dropout key of this step, None in evaluation.
        """
        layer_keys = None if key is None else fold_key(key, jnp.arange(1, self.num_layers + 1))
        x_BxSxH, rotation = self.embed(ids_BxS, types_BxS, positions_BxS, key)

        def body(x, layer_and_key):
            layer, layer_key = layer_and_key
            return layer(x, examples_BxS, rotation, layer_key), None

        unroll = min(self.compute.unroll_layers or self.num_layers, self.num_layers)
        body = _rematerialized(body, self.compute.remat, looped=self._looped(unroll))
        x_BxSxH, _ = jax.lax.scan(body, x_BxSxH, (self.layers, layer_keys), unroll=unroll)
        return self.norm(x_BxSxH) if self.config.norm_position == "pre" else x_BxSxH

    def states(
        self,
        ids_BxS: jax.Array,
        types_BxS: jax.Array,
        examples_BxS: jax.Array,
        positions_BxS: jax.Array,
    ) -> jax.Array:
        """Returns the input of the first layer and the output of every layer, [L+1, B, S, H].

        The arguments are those of a call in evaluation. A pre-LayerNorm encoder's final LayerNorm
        is not applied.
        """
        x_BxSxH, rotation = self.embed(ids_BxS, types_BxS, positions_BxS)

        def apply(x_BxSxH: jax.Array, layer: Layer) -> tuple[jax.Array, jax.Array]:
            y_BxSxH = layer(x_BxSxH, examples_BxS, rotation, None)
            return y_BxSxH, y_BxSxH

        _, states_LxBxSxH = jax.lax.scan(apply, x_BxSxH, self.layers)
        return jnp.concatenate([x_BxSxH[None], states_LxBxSxH])

    def embed(
        self,
        ids_BxS: jax.Array,
        types_BxS: jax.Array,
        positions_BxS: jax.Array,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, rotary.Rotation | None]:
        """Returns the input [B, S, H] of the first layer, and the rotation of each position."""
        embedding_key = None if key is None else fold_key(key, 0)
        x_BxSxH = self.embeddings(ids_BxS, types_BxS, positions_BxS, embedding_key)
        rotation = None
        if self.config.position == "rotary":
            rotation = rotary.rotation(positions_BxS, self.config.head_dim)
        return constrain_batch(x_BxSxH.astype(self.compute.dtype)), rotation

    def _looped(self, unroll: int) -> bool:
        """Returns whether every layer is in a compiled loop: no remainder, over one iteration."""
        return self.num_layers % unroll == 0 and self.num_layers > unroll

    def pooled(self, x_BxSxH: jax.Array, cls_positions_BxN: jax.Array) -> jax.Array:
        """Returns one vector per example, [B, N, H], from the hidden state of its [CLS]."""
        cls_BxNxH = jnp.take_along_axis(x_BxSxH, cls_positions_BxN[..., None], axis=1)
        return jnp.tanh(self.pooler(cls_BxNxH))
