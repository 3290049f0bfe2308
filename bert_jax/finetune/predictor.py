"""Logits of a fine-tuned model for new texts.

Sizes: B examples of C sequences, S positions, n tokens of a sequence, L outputs.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.config.task_settings import TaskConfig
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.finetune.tasks.encoding import Encoded, check_no_padding
from bert_jax.finetune.tasks.kind import Prepared, TaskContext, TaskKind
from bert_jax.finetune.tasks.labeled_examples import Examples
from bert_jax.finetune.tasks.task_kinds import kind_of_model
from bert_jax.objectives.known_objectives import task_of
from bert_jax.objectives.pretraining_model import declare, part_of
from bert_jax.parallel.local_devices import power_of_two, replicate, rounded_up, shard_rows

_SHORTEST = 16  # tokens of a row; longer ones have a power of two, so few shapes are compiled


class Predictor:
    """Computes what a model predicts for texts, in float32.

    Attributes:
        kind: of the task that the model was trained for.
        labels: names of the outputs.
    """

    def __init__(
        self,
        config: ModelConfig,
        params: Mapping[str, Any],
        tokenizer: Tokenizer,
        pad: int | None = None,
        kind: TaskKind | None = None,
        longest: int | None = None,
    ):
        """Raises UserError if the model has no head of a task, or one with several answers.

        Args:
            pad: see `check_no_padding`.
            kind: None is the one that makes the predictions of such heads.
            longest: tokens of an example unless others are asked for; None: the model's positions.
        """
        of_model = kind_of_model(config)
        self.kind = kind or of_model
        assert isinstance(config, TaskModelConfig)
        self.labels = config.head.labels
        several = self.kind.problem_type == "regression" and len(self.labels) > 1
        if several or config.head.problem_type == "multi_label_classification":
            raise UserError(
                f"the model predicts {len(self.labels)} scores or labels for a text; give a model "
                "that predicts one"
            )
        self._config, self._tokenizer, self._pad = config, tokenizer, pad
        self.longest = min(longest or self._positions, self._positions)
        graph, abstract = declare(config, ComputeConfig.plain(), (task_of(config.head),))
        self._params = replicate(part_of(params, nnx.to_pure_dict(abstract)))
        self._logits = jax.jit(partial(_logits, graph))

    def predictions(
        self, task: TaskConfig, examples: Examples, *, length: int | None = None
    ) -> tuple[Sequence[Any], tuple[str, ...]]:
        """Returns a prediction for each example, see `kind.TaskKind`, and what was cut, in words.

        Args:
            length: most tokens of an example or of a window, by default `longest`.

        Raises:
            UserError: the model outputs values that are not finite, or its rows are too short.
        """
        prepared, logits = self.outputs(task, examples, length=length)
        return self.kind.predictions(task, examples, prepared, logits), prepared.notes

    def outputs(
        self,
        task: TaskConfig,
        examples: Examples,
        *,
        length: int | None = None,
        advance: Callable[[], None] = lambda: None,
    ) -> tuple[Prepared, list[np.ndarray]]:
        """Returns the examples as the model reads them, and its logits for all that was prepared;
        arguments and errors as `predictions`, and `advance` as `logits`."""
        limit = min(length or self.longest, self._positions)
        context = TaskContext(task, self._tokenizer, self._config, limit)
        prepared = self.kind.prepare(context, examples)
        return prepared, self.logits(prepared.encoded, advance=advance)

    def predictions_of(self, examples: tuple[Any, ...], **settings: Any) -> Sequence[Any]:
        """Returns the predictions for examples without labels; settings: of `config.task`."""
        task = self.kind.with_settings(TaskConfig(name=self.kind.name), settings)
        return self.predictions(task, Examples("", self.kind.name, self.labels, examples, {}))[0]

    def logits(
        self,
        encoded: Encoded,
        *,
        batch_size: int = 32,
        advance: Callable[[], None] = lambda: None,
    ) -> list[np.ndarray]:
        """Returns the logits of each example, [L]; of its tokens, [n, L]; of its sequences, where
        it has several, [C, L], unless the model has logits of the example, [L].

        Args:
            batch_size: examples per batch; rounded up to an equal number for each device.
            advance: called after each batch.

        Raises:
            UserError: the model outputs values that are not finite; or as `check_no_padding`.
        """
        check_no_padding(encoded.by_sequence(), self._tokenizer, self._config, self._pad)
        lengths = encoded.lengths.reshape(-1, encoded.sequences)
        order = np.argsort(lengths.max(1), kind="stable")
        found = [np.empty(0, np.float32)] * len(order)
        several = encoded.sequences > 1 and not self.kind.per_example
        all_or_first = slice(None) if several else 0
        rows = rounded_up(batch_size, jax.local_device_count())
        for first in range(0, len(order), rows):
            chosen = order[first : first + rows].tolist()
            batch = shard_rows(self._batch(encoded, chosen, rows))
            logits = np.asarray(self._logits(self._params, batch))
            for line, example in enumerate(chosen):
                own = slice(int(lengths[example, 0])) if self.kind.per_token else all_or_first
                found[example] = logits[line, own]
            advance()
        if not all(np.isfinite(one).all() for one in found):
            raise UserError("the model outputs NaN or infinite values; give an earlier step")
        return found

    @property
    def _positions(self) -> int:
        return self._config.max_position_embeddings

    def _batch(self, encoded: Encoded, chosen: list[int], rows: int) -> dict[str, np.ndarray]:
        """Returns a batch of one example in each row, the rest of the rows empty."""
        C = encoded.sequences
        wanted = [example * C + number for example in chosen for number in range(C)]
        longest = int(encoded.lengths[wanted].max())
        width = min(max(_SHORTEST, power_of_two(longest)), self._positions)
        ids = np.full((rows * C, width), self._tokenizer.special.pad, np.int32)
        types, examples = np.zeros((2, rows * C, width), np.int32)
        for line, sequence in enumerate(wanted):
            first, end = encoded.starts[sequence : sequence + 2].tolist()
            ids[line, : end - first] = encoded.ids[first:end]
            types[line, : end - first] = encoded.types[first:end]
            examples[line, : end - first] = 1 + line % C
        tokens = {
            "input_ids": ids,
            "token_type_ids": types,
            "example_ids": examples,
            "position_ids": np.tile(np.arange(width, dtype=np.int32), (rows * C, 1)),
        }
        if C > 1:  # see `ExampleBatches`
            tokens = {name: values.reshape(rows, C, width) for name, values in tokens.items()}
        firsts = np.arange(C, dtype=np.int32) * width
        return tokens | {"cls_positions": np.tile(firsts, (rows, 1))}


@jax.default_matmul_precision("highest")
def _logits(graph: nnx.GraphDef, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
    """Returns [B, C, L], or of each token [B, S, L]."""
    (logits,) = jax.tree.leaves(nnx.merge(graph, params)(batch))
    return logits
