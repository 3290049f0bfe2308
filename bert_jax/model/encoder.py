"""The BERT encoder exactly as the original (modeling.py of google-research/bert): post-LayerNorm.

`config.model.position`, `.norm_position` and the settings of `config/layer_settings.py` name other
forms: rotary positions, pre-LayerNorm, windows, gates, layers that share their parameters.

NNX only declares the parameters and the forward pass: between steps the state is a plain dict of
arrays. The parameters of all layers are stacked and applied as `layer_loop.py` says.
Sizes: B rows, S positions, H hidden, I intermediate, V vocabulary, N examples in a row; L layers.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import glorot_uniform, truncated_normal

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.model.attention import Attention, Kind
from bert_jax.model.layer_loop import apply_layers
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
        E, init = config.table_width, truncated_normal(config.initializer_range)

        def words(key, shape, dtype=jnp.float32, out_sharding=None):
            del out_sharding
            real = jnp.arange(shape[0])[:, None] < config.vocab_size
            return jnp.where(real, init(key, shape, dtype), 0)  # padding rows stay zero

        positions, types = config.max_position_embeddings, config.type_vocab_size
        self.word = param(keys, (config.padded_vocab_size, E), ("vocab", "table"), words)
        if config.position == "learned":
            self.position = param(keys, (positions, E), ("position", "table"), init)
        if types:
            self.type = param(keys, (types, E), ("type", "table"), init)
        self.norm = LayerNorm(config, keys, E)

    def __call__(
        self,
        ids_BxS: jax.Array,
        types_BxS: jax.Array,
        positions_BxS: jax.Array,
        key: jax.Array | None,
    ) -> jax.Array:
        """Returns the embeddings, float32 [B, S, E], of three integer arrays [B, S].

        E is the width of the tables, H or `config.embedding_size`.
        """
        x_BxSxH = lookup(self.word[...], ids_BxS)
        if self.config.type_vocab_size:
            x_BxSxH = x_BxSxH + lookup(self.type[...], types_BxS)
        if self.config.position == "learned":
            x_BxSxH = x_BxSxH + lookup(self.position[...], positions_BxS)
        return dropout(self.norm(x_BxSxH), rate=self.config.hidden_dropout_prob, key=key)


class FeedForward(nnx.Module):
    """LayerNorm(x + dropout(dense(gelu(dense(x))))): modeling.py:866-880; see `residual`.

    Gated, gelu(x · a) is multiplied by x · b (GeGLU, Shazeer 2020, arXiv 2002.05202).
    """

    def __init__(self, config: ModelConfig, keys: Keys):
        H, I = config.hidden_size, config.intermediate_size  # noqa: E741
        self.config = config
        sizes, axes = ((2, I), ("gate", "mlp")) if config.gated_mlp else ((I,), ("mlp",))
        bias = config.linear_bias
        self.up = Dense(config, keys, (H,), sizes, ("embed", *axes), bias=bias)
        scale = config.near_identity.feed_forward * config.output_scale
        self.down = Dense(config, keys, (I,), (H,), ("mlp", "embed"), scale, bias)
        self.norm = LayerNorm(config, keys)

    def __call__(self, x_BxSxH: jax.Array, key: jax.Array | None) -> jax.Array:
        """Returns the hidden states [B, S, H] after the feed-forward network."""

        def branch(x_BxSxH: jax.Array) -> jax.Array:
            y_BxSxI = self.up(x_BxSxH)
            if self.config.gated_mlp:
                y_BxSxI, gate_BxSxI = y_BxSxI[..., 0, :], y_BxSxI[..., 1, :]
                y_BxSxI = activation(self.config, y_BxSxI) * gate_BxSxI
            else:
                y_BxSxI = activation(self.config, y_BxSxI)
            y_BxSxH = self.down(y_BxSxI)
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
        kind: Kind,
        key: jax.Array | None,
        between: Callable[[jax.Array], jax.Array] | None = None,
    ) -> jax.Array:
        """Returns the hidden states [B, S, H] after the layer; between: applied to those after the
        attention."""
        x_BxSxH = self.attention(x_BxSxH, examples_BxS, kind, key)
        if between is not None:
            x_BxSxH = between(x_BxSxH)
        return constrain_batch(self.mlp(x_BxSxH, None if key is None else fold_key(key, 2)))


class Encoder(nnx.Module):
    """Token ids to hidden states; `pooled` returns tanh(dense(h[CLS])) (modeling.py:218-232)."""

    def __init__(
        self,
        config: ModelConfig,
        compute: ComputeConfig,
        keys: Keys,
        *,
        pooler: bool,
        embeddings: Embeddings | None = None,
    ):
        """
        Args:
            pooler: whether to add a pooler; only sentence-pair objectives train it.
            embeddings: those of another model, which both share.
        """
        self.config, self.compute = config, compute
        self.num_layers = config.num_hidden_layers
        self.embeddings = embeddings or Embeddings(config, keys)
        # Every leaf of the stack gets a leading [L].
        self.layers = nnx.vmap(lambda key: Layer(config, compute, Keys(key)))(
            jax.random.split(keys(), config.layers_of_parameters)
        )
        if config.embedding_size:
            E, H = config.embedding_size, config.hidden_size
            # ELECTRA's program names no initial values here: TensorFlow draws them after Glorot.
            init = glorot_uniform() if config.layout == "electra" else None
            self.projection = Dense(config, keys, (E,), (H,), ("table", "embed"), init=init)
            if config.near_identity.head:
                self.projection.kernel[...] = jnp.eye(E, H, dtype=jnp.float32)
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
        embedded = self.embed(ids_BxS, types_BxS, positions_BxS, key)

        def body(x: jax.Array, layer: Layer, kind: Kind, layer_key: jax.Array | None) -> tuple:
            return layer(x, examples_BxS, kind, layer_key), None

        return self._last(self.layers, body, *embedded, key)

    def decode(
        self,
        ids_BxS: jax.Array,
        types_BxS: jax.Array,
        examples_BxS: jax.Array,
        positions_BxS: jax.Array,
        added: Any,
        add: Callable[[Any, jax.Array, jax.Array | None], jax.Array],
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Returns the hidden states [B, S, H] of these layers as those of a decoder: a position
        attends to no position after it. The other arguments are those of a call.

        Args:
            added: parameters of each layer, stacked as those of `layers`.
            add: (those of a layer, states after its attention, its key) -> states [B, S, H], which
                its feed-forward network reads.
        """
        x_BxSxH, kinds = self.embed(ids_BxS, types_BxS, positions_BxS, key)
        kinds = tuple(kind._replace(causal=True) for kind in kinds)

        def body(x: jax.Array, both: tuple, kind: Kind, layer_key: jax.Array | None) -> tuple:
            (layer, own), between_key = both, None if layer_key is None else fold_key(layer_key, 3)
            return layer(x, examples_BxS, kind, layer_key, lambda x: add(own, x, between_key)), None

        return self._last((self.layers, added), body, x_BxSxH, kinds, key)

    def _last(
        self,
        layers: Any,
        body: Callable,
        x_BxSxH: jax.Array,
        kinds: tuple[Kind, ...],
        key: jax.Array | None,
    ) -> jax.Array:
        """Returns the hidden states of the last layer, and of the LayerNorm after it if there is
        one."""
        layer_keys = None if key is None else fold_key(key, jnp.arange(1, self.num_layers + 1))
        x_BxSxH, _ = apply_layers(
            layers, kinds, body, x_BxSxH, layer_keys,
            unroll=self.compute.unroll_layers or self.num_layers, remat=self.compute.remat,
        )  # fmt: skip
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
        x_BxSxH, kinds = self.embed(ids_BxS, types_BxS, positions_BxS)

        def body(x: jax.Array, layer: Layer, kind: Kind, key: jax.Array | None) -> tuple:
            y_BxSxH = layer(x, examples_BxS, kind, key)
            return y_BxSxH, y_BxSxH

        _, states_LxBxSxH = apply_layers(self.layers, kinds, body, x_BxSxH)
        return jnp.concatenate([x_BxSxH[None], states_LxBxSxH])

    def embed(
        self,
        ids_BxS: jax.Array,
        types_BxS: jax.Array,
        positions_BxS: jax.Array,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, tuple[Kind, ...]]:
        """Returns the input [B, S, H] of the first layer, and the kind of each layer."""
        config = self.config
        embedding_key = None if key is None else fold_key(key, 0)
        x_BxSxH = self.embeddings(ids_BxS, types_BxS, positions_BxS, embedding_key)
        rotations: dict[float, rotary.Rotation] = {}

        def kind(layer: int) -> Kind:
            local = config.is_local(layer)
            theta = config.local_rope_theta if local else config.global_rope_theta
            if config.position == "rotary" and theta not in rotations:
                rotations[theta] = rotary.rotation(positions_BxS, config.head_dim, theta)
            normed = layer > 0 or config.first_attention_norm
            return Kind(config.local_attention if local else 0, normed, rotations.get(theta))

        kinds = tuple(kind(layer) for layer in range(self.num_layers))
        x_BxSxH = x_BxSxH.astype(self.compute.dtype)
        if config.embedding_size:
            x_BxSxH = self.projection(x_BxSxH)
        return constrain_batch(x_BxSxH), kinds

    def pooled(self, x_BxSxH: jax.Array, cls_positions_BxN: jax.Array) -> jax.Array:
        """Returns one vector per example, [B, N, H], from the hidden state of its [CLS]."""
        cls_BxNxH = jnp.take_along_axis(x_BxSxH, cls_positions_BxN[..., None], axis=1)
        return jnp.tanh(self.pooler(cls_BxNxH))
