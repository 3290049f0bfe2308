"""Logits of a fine-tuned model for new texts. Sizes: B texts, S positions, E texts in all."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.convert.layouts.layout import CLASSIFIER
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.finetune.encoding import Encoded, encode
from bert_jax.objectives.pretraining_model import declare
from bert_jax.objectives.registry import task_of

_SHORTEST = 16  # tokens of a row; longer ones have a power of two, so few shapes are compiled


class Predictor:
    """Classifies or scores texts as their model was trained to; computes in float32.

    Attributes:
        labels: names of the outputs.
        is_regression: whether there is one output, a score.
    """

    def __init__(self, config: ModelConfig, params: Mapping[str, Any], tokenizer: Tokenizer):
        """Raises UserError if the model has no head that classifies texts."""
        if not isinstance(config, TaskModelConfig) or config.head.name != CLASSIFIER:
            raise UserError(
                "the model has no head that classifies texts; fine-tune it first: "
                "bert-jax finetune --config=glue --config.init=… --config.task.name=…"
            )
        self.labels, objective = config.head.labels, task_of(config.head)
        self.is_regression = objective == "regression"
        self._config, self._tokenizer = config, tokenizer
        graph, abstract = declare(config, ComputeConfig.plain(), (objective,))
        self._params = jax.device_put(_part(params, nnx.to_pure_dict(abstract)))
        self._logits = jax.jit(partial(_logits, graph))

    def logits(
        self, texts: Sequence[tuple[str, ...]], *, length: int | None = None, batch_size: int = 32
    ) -> np.ndarray:
        """Returns float32 [E, C]; length: most tokens of a text or pair, by default all positions
        of the model.

        Raises:
            UserError: the model outputs values that are not finite.
        """
        limit = min(length or self._config.max_position_embeddings, self._positions)
        encoded = encode(self._tokenizer, self._config, texts, limit)
        order = np.argsort(encoded.lengths, kind="stable")
        found = np.zeros((len(order), len(self.labels)), np.float32)
        for first in range(0, len(order), batch_size):
            chosen = order[first : first + batch_size]
            batch = self._batch(encoded, chosen, batch_size, limit)
            found[chosen] = np.asarray(self._logits(self._params, batch))[: len(chosen)]
        if not np.isfinite(found).all():
            raise UserError("the model outputs NaN or infinite values; give an earlier step")
        return found

    @property
    def _positions(self) -> int:
        return self._config.max_position_embeddings

    def _batch(
        self, encoded: Encoded, chosen: np.ndarray, rows: int, limit: int
    ) -> dict[str, np.ndarray]:
        """Returns a batch of one text in each row, the rest of the rows empty."""
        longest = int(encoded.lengths[chosen].max())
        width = min(max(_SHORTEST, 1 << (longest - 1).bit_length()), limit)
        ids = np.full((rows, width), self._tokenizer.special.pad, np.int32)
        types, examples = np.zeros((2, rows, width), np.int32)
        for line, example in enumerate(chosen.tolist()):
            first, end = encoded.starts[example : example + 2].tolist()
            ids[line, : end - first] = encoded.ids[first:end]
            types[line, : end - first] = encoded.types[first:end]
            examples[line, : end - first] = 1
        return {
            "input_ids": ids,
            "token_type_ids": types,
            "example_ids": examples,
            "position_ids": np.tile(np.arange(width, dtype=np.int32), (rows, 1)),
            "cls_positions": np.zeros((rows, 1), np.int32),
        }


@jax.default_matmul_precision("highest")
def _logits(graph: nnx.GraphDef, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
    """Returns [B, C]."""
    (logits_Bx1xC,) = nnx.merge(graph, params)(batch).values()
    return logits_Bx1xC[:, 0]


def _part(params: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters that `like` has: an import may have a pooler that no head reads."""
    return {
        name: _part(params[name], below) if isinstance(below, dict) else params[name]
        for name, below in like.items()
    }


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Returns the probabilities of classes, [E, C]."""
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)
