"""BERT as a textbook has it, for tests: no kernel, no gradient by hand.

Nothing is imported from bert_jax but the bits of dropout, which both sides must share. In float64
this is the reference that gradients are compared with; in float32 and bfloat16 it is what plain
autodiff gives. Parameters and batches are those of bert_jax.
Sizes: B rows, S positions, H hidden, A heads, D head dimension, P prediction slots, V vocabulary.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.ops.dropout import keep_mask
from bert_jax.ops.hashing import fold_key


@dataclasses.dataclass(frozen=True)
class Plain:
    """An encoder with the masked-language-model head and the head of sentence pairs.

    Attributes:
        dtype: of activations and of the matrices they are multiplied with.
        wide: of softmax, LayerNorm, GELU and losses.
        attention_dropout, hidden_dropout: rates, used where a key is given.
    """

    dtype: str = "float64"
    wide: str = "float64"
    tanh: bool = False
    eps: float = 1e-12
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0

    def hidden(self, params: Mapping, batch: Mapping, key: jax.Array | None = None) -> jax.Array:
        """States [B, S, H] of the last layer."""
        of = params["encoder"]["embeddings"]
        x = of["word"].astype(self.wide)[batch["input_ids"]]
        x = x + of["type"].astype(self.wide)[batch["token_type_ids"]]
        x = x + of["position"].astype(self.wide)[batch["position_ids"]]
        x = self._drop(self._norm(of["norm"], x), key, 0, self.hidden_dropout).astype(self.dtype)
        layers = params["encoder"]["layers"]
        count = layers["mlp"]["up"]["kernel"].shape[0]
        keys = None if key is None else fold_key(key, jnp.arange(1, count + 1))

        def body(x: jax.Array, layer_and_key: tuple) -> tuple[jax.Array, None]:
            return self._layer(layer_and_key[0], x, batch["example_ids"], layer_and_key[1]), None

        return jax.lax.scan(body, x, (layers, keys))[0]

    def _layer(self, params: Mapping, x: jax.Array, examples: jax.Array, key: Any) -> jax.Array:
        attention, mlp = params["attention"], params["mlp"]
        y = self._attention(attention, x, examples, key)
        x = self._norm(attention["norm"], x + self._drop(y, key, 1, self.hidden_dropout))
        y = self._dense(mlp["down"], self._gelu(self._dense(mlp["up"], x)))
        return self._norm(
            mlp["norm"],
            x + self._drop(y, None if key is None else fold_key(key, 2), None, self.hidden_dropout),
        )

    def _attention(self, params: Mapping, x: jax.Array, examples: jax.Array, key: Any) -> jax.Array:
        kernel, bias = params["qkv"]["kernel"], params["qkv"]["bias"]
        q, k, v = (
            jnp.einsum("bsh,had->bsad", x, kernel[:, i].astype(self.dtype))
            + bias[i].astype(self.dtype)[None, None]
            for i in range(3)
        )
        scores = jnp.einsum("bqad,bkad->baqk", q * q.shape[-1] ** -0.5, k)
        allowed = (examples[:, :, None] == examples[:, None, :])[:, None]
        p = jax.nn.softmax(jnp.where(allowed, scores.astype(self.wide), -1e9), axis=-1)
        p = self._drop(p, key, 0, self.attention_dropout)
        y = jnp.einsum("baqk,bkad->bqad", p.astype(self.dtype), v)
        y = jnp.einsum("bqad,adh->bqh", y, params["output"]["kernel"].astype(self.dtype))
        return y + params["output"]["bias"].astype(self.dtype)[None, None]

    def _dense(self, params: Mapping, x: jax.Array) -> jax.Array:
        bias = params["bias"].astype(self.dtype)
        return x @ params["kernel"].astype(self.dtype) + bias.reshape((1,) * (x.ndim - 1) + (-1,))

    def _norm(self, params: Mapping, x: jax.Array) -> jax.Array:
        dtype, x = x.dtype, x.astype(self.wide)
        scale, bias = (params[n].astype(self.wide)[None, None] for n in ("scale", "bias"))
        x = x - x.mean(-1, keepdims=True)
        deviation = jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + self.eps)
        return (x / deviation * scale + bias).astype(dtype)

    def _gelu(self, x: jax.Array) -> jax.Array:
        return jax.nn.gelu(x.astype(self.wide), approximate=self.tanh).astype(x.dtype)

    def _drop(self, x: jax.Array, key: Any, word: int | None, rate: float) -> jax.Array:
        """word: which of the keys made of this one; None for the key itself."""
        if key is None or rate == 0:
            return x
        key = key if word is None else fold_key(key, word)
        scaled = x.astype(self.wide) / (1 - rate)
        return jnp.where(keep_mask(key, x.shape, rate), scaled, 0).astype(x.dtype)

    def outputs(
        self, params: Mapping, batch: Mapping, key: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """hidden [B, S, H], pooled [B, H], logits of masked tokens [B, P, V] and pairs [B, 2]."""
        x, table = self.hidden(params, batch, key), params["encoder"]["embeddings"]["word"]
        at = jnp.take_along_axis(x, batch["masked_positions"][..., None], axis=1)
        at = self._norm(params["mlm"]["norm"], self._gelu(self._dense(params["mlm"]["dense"], at)))
        logits = jnp.einsum("bph,vh->bpv", at, table.astype(self.dtype)).astype(self.wide)
        first = jnp.take_along_axis(x, batch["cls_positions"][..., None], axis=1)[:, 0]
        pooled = jnp.tanh(self._dense(params["encoder"]["pooler"], first))
        pairs = pooled @ params["pair"]["kernel"].astype(self.dtype)
        return {
            "hidden": x,
            "pooled": pooled,
            "mlm": logits + params["mlm"]["bias"].astype(self.wide)[None, None],
            "nsp": pairs.astype(self.wide) + params["pair"]["bias"].astype(self.wide)[None],
        }

    def losses(
        self, params: Mapping, batch: Mapping, key: jax.Array | None = None, vocab_size: int = 0
    ) -> dict[str, jax.Array]:
        """Means over the predictions of a batch: mlm, nsp.

        Args:
            vocab_size: without the rows that pad the table.
        """
        found = self.outputs(params, batch, key)
        mlm = self._entropy(found["mlm"][..., :vocab_size], batch["masked_labels"])
        nsp = self._entropy(found["nsp"], batch["pair_labels"][:, 0])
        weights = batch["masked_weights"].astype(self.wide)
        return {"mlm": (mlm * weights).sum() / weights.sum(), "nsp": nsp.mean()}

    def _entropy(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)[..., 0]
