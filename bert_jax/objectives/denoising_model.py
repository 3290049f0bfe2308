"""The model of TSDAE: the encoder reads what is left of a sentence, and its own layers restore it.

See `objectives/denoising.py` for the sizes. The head of the word scores has the name of that of
masked tokens, so that a pretrained model gives it its values, as in sentence-transformers.
"""

from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.model.layer_states import pool
from bert_jax.model.layers import Keys
from bert_jax.objectives.denoising import (
    DENOISING,
    KEPT,
    Decoder,
    Restored,
    next_token,
    token_losses,
)
from bert_jax.objectives.encoder_with_heads import PretrainingModel, encoder_rows
from bert_jax.objectives.masked_lm import MaskedLMHead
from bert_jax.ops.hashing import fold_key
from bert_jax.parallel.global_batch import Batch

_KEY: Final = 0x44  # of the decoder's dropout: the encoder's layers have small numbers


class DenoisingModel(PretrainingModel):
    """The encoder, which is also the decoder, with what only a decoder has."""

    decoder: Decoder

    def __init__(
        self,
        config: ModelConfig,
        compute: ComputeConfig,
        objectives: Sequence[str],
        keys: Keys,
        *,
        pooler: bool = False,
    ):
        super().__init__(config, compute, objectives, keys, pooler=pooler)
        self.mlm = MaskedLMHead(config, keys)

    def __call__(self, batch: Batch, key: jax.Array | None = None) -> dict[str, Any]:
        """Returns the loss of each token, and in evaluation, which has no key, the vectors of whole
        sentences; of a batch that says nothing of deletions, these alone.

        `kept_ids`, in the batch: int32 as input_ids, the tokens of each sentence that are left, in
        the first of its positions, and -1 in the others.
        """
        if KEPT not in batch:
            return super().__call__(batch, key)
        labels, _ = next_token(batch)
        x_RxSxH = self._restored(batch, key)
        found = token_losses(
            self.mlm, x_RxSxH, self.encoder.embeddings.word[...],
            labels.reshape(-1, labels.shape[-1]),
        )  # fmt: skip
        loss, correct = (x.reshape(labels.shape) for x in found)
        whole = super().__call__(batch)[DENOISING.name] if key is None else None
        return {DENOISING.name: Restored(whole, loss, correct)}

    def _restored(self, batch: Batch, key: jax.Array | None) -> jax.Array:
        """Returns the decoder's states [R, S, H]."""
        config, read = self.encoder.config, encoder_rows(batch)
        assert isinstance(config, TaskModelConfig)
        left = {
            **batch,
            "input_ids": jnp.maximum(batch[KEPT], 0),
            "example_ids": jnp.where(batch[KEPT] >= 0, batch["example_ids"], 0),
        }
        x_BxSxH = self.encoded(left, key)
        examples_BxS = left["example_ids"].reshape(len(x_BxSxH), -1)
        places = (
            examples_BxS,
            batch["cls_positions"],
            batch["position_ids"].reshape(len(x_BxSxH), -1),
        )
        pooled_BxNxP = pool(x_BxSxH, *places, config.head.pools)
        vectors_BxNxV = self.decoder.of_pooled(pooled_BxNxP.astype(jnp.float32))
        own_RxS = read["example_ids"]
        strips = len(own_RxS) // len(x_BxSxH)
        vectors_RxNxV = jnp.repeat(vectors_BxNxV.astype(x_BxSxH.dtype), strips, axis=0)
        places_N = 1 + jnp.arange(vectors_RxNxV.shape[1])
        own_RxNxS = (own_RxS[:, None] == places_N[None, :, None]).astype(x_BxSxH.dtype)
        return self.encoder.decode(
            read["input_ids"],
            read["token_type_ids"],
            own_RxS,
            read["position_ids"],
            self.decoder.layers,
            lambda layer, x, own_key: layer(x, vectors_RxNxV, own_RxNxS, own_key),
            None if key is None else fold_key(key, _KEY),
        )
