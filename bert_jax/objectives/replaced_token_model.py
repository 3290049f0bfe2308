"""ELECTRA (Clark et al. 2020, arXiv 2003.10555): a generator replaces tokens, and the model, its
discriminator, tells which.

The generator is a masked language model that shares the discriminator's embeddings, or whose tables
the discriminator adds its own to (`disentangled_embeddings.py`). Both are models of their own in a
checkpoint, an export and a task. Sizes: B rows, S positions, P prediction slots.

A position that is drawn twice has one sample here, since its key is the same, and weighs twice in
the generator's loss; google-research/electra replaces it by the mean of two sampled ids.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config.model_settings import generator_of
from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.model.layers import Keys
from bert_jax.objectives.disentangled_embeddings import GENERATOR, summed
from bert_jax.objectives.encoder_with_heads import PretrainingModel
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.positions import with_slots
from bert_jax.objectives.replaced_tokens import REPLACED_TOKENS, Detection
from bert_jax.ops.draws import draw
from bert_jax.ops.hashing import fold_key
from bert_jax.parallel.global_batch import Batch

_KEY: Final = 0x47  # of its dropout: the discriminator's layers have small numbers


class ReplacedTokenModel(PretrainingModel):
    """The discriminator, with its generator."""

    def __init__(
        self,
        config: ModelConfig,
        compute: ComputeConfig,
        objectives: Sequence[str],
        keys: Keys,
        *,
        pooler: bool = False,
    ):
        own = [name for name in objectives if name != MASKED_LM.name]
        super().__init__(config, compute, own, keys, pooler=pooler)
        self.disentangled = is_disentangled(config)
        self.generator = PretrainingModel(
            generator_of(config),
            compute,
            (MASKED_LM.name,),
            keys,
            embeddings=None if self.disentangled else self.encoder.embeddings,
        )

    def __call__(self, batch: Batch, key: jax.Array | None = None) -> dict[str, Any]:
        """Returns the generator's logits [B, P, V], and what the discriminator says of the tokens
        after its draws; batch: with `draw_keys`, uint32 [B, P]."""
        if not self.disentangled:
            return self._outputs(batch, key)
        graph, params = nnx.split(self)
        model: ReplacedTokenModel = nnx.merge(graph, summed(nnx.to_pure_dict(params)))
        return model._outputs(batch, key)

    def _outputs(self, batch: Batch, key: jax.Array | None) -> dict[str, Any]:
        own = None if key is None else fold_key(key, _KEY)
        logits_BxPxV = self.generator(batch, own)[MASKED_LM.name]
        drawn_BxP = draw(logits_BxPxV, batch["draw_keys"])
        replaced = replaced_batch(batch, drawn_BxP)
        outputs = self.logits(self.encoded(replaced, key), replaced, key)
        right_BxP = (drawn_BxP == batch["masked_labels"]) * batch["masked_weights"]
        logits_BxS = outputs[REPLACED_TOKENS.name]
        found = Detection(logits_BxS, replaced["replaced"], right_BxP)
        return {MASKED_LM.name: logits_BxPxV, REPLACED_TOKENS.name: found}


def replaced_batch(batch: Batch, drawn_BxP: jax.Array) -> Batch:
    """Returns a batch in which what was drawn stands at the chosen positions, all of them, and in
    which `replaced`, int32 [B, S], is 1 where it is another token than the original."""
    wrong_BxP = drawn_BxP != batch["masked_labels"]
    ids_BxS = with_slots(batch["input_ids"], batch, drawn_BxP)
    replaced_BxS = with_slots(jnp.zeros_like(ids_BxS), batch, wrong_BxP)
    return {**batch, "input_ids": ids_BxS, "replaced": replaced_BxS}


def generator_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of the generator as those of a masked language model.

    params: of both networks, as a checkpoint is read (`checkpoint.manager.load_params`).
    """
    own = params[GENERATOR]
    shared = {"embeddings": params["encoder"]["embeddings"]}
    return {**own, "encoder": {**shared, **own["encoder"]}}


def is_disentangled(config: ModelConfig) -> bool:
    """Returns whether a run of both networks trains the tables that the discriminator adds."""
    return config.generator.embedding_sharing == "gradient_disentangled"
