"""Compares what two models compute from the same text, after each layer and in each head.

Both are computed here, in float32: what differs is their parameters. Training applies all layers in
one loop that keeps no states; here the same layers are applied, and the states after each are kept.
Sizes: B rows, S positions, H hidden, L layers.
"""

# Over 300 lines: what is computed with both models and how it differs are one comparison.

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from flax import nnx

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.config.sentence_parts import Part
from bert_jax.config.task_model import TaskModelConfig, probe_of
from bert_jax.convert.sources import ReadModel
from bert_jax.convert.weights import groups_in, title
from bert_jax.data_pipeline.masking.masking_settings import SPAN_TARGETS
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.model import vector_layers
from bert_jax.model.encoder import Encoder
from bert_jax.model.layer_states import joined
from bert_jax.objectives.encoder_with_heads import PretrainingModel
from bert_jax.objectives.known_objectives import OBJECTIVES, task_of, with_heads
from bert_jax.objectives.pretraining_model import declare
from bert_jax.parallel.global_batch import Batch
from bert_jax.parallel.local_devices import power_of_two

Text = tuple[str, ...]  # one text, or two that form a pair
Layers = Sequence[Mapping[str, Any]]  # weights of the parts of a sentence encoder

_ROWS: Final = 4  # of a batch
_MASKED_EVERY: Final = 7  # tokens: about the 15 % of BERT's training
_SHORTEST: Final = 16  # positions of a batch: few lengths, so few shapes are compiled
# Settings that change nothing here: of training, and rows of the vocabulary for the hardware. A
# generator is a model of its own.
_IGNORED: Final = {
    "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "initializer",
    "positional_heads", "word_initializer", "output_bias_initializer", "cooccurrence",
    "near_identity", "pad_vocab_to_multiple_of", "generator",
}  # fmt: skip
VECTOR: Final = "sentence vector"
_POOLER: Final = "pooler"
_VOCABULARY: Final = "vocab_size"


class _Row(NamedTuple):
    """The tokens of a text, and the segment of each."""

    ids: list[int]
    types: list[int]


class Difference(NamedTuple):
    """A difference between two models in one place."""

    where: str
    value: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    Attributes:
        outputs: of each output that both models have, in the order in which they are computed:
            "embeddings", "layer 1", …, "pooler", "masked-language-model head", …, and "sentence
            vector" if both are sentence encoders of the same parts. A value is the
            largest absolute difference over all tokens, divided by the larger of 1 and the largest
            absolute value of the first model; NaN if one of them computes NaN or infinite values.
        weights: of each tensor of their parameters, the largest absolute difference.
        only_in: by source, the parts that the other model lacks.
        tokens: number of tokens at which they were compared.
    """

    outputs: tuple[Difference, ...]
    weights: tuple[Difference, ...]
    only_in: Mapping[str, Sequence[str]]
    tokens: int

    def first_above(self, tolerance: float) -> Difference | None:
        """Returns the first output that differs more, or is NaN; None if there is none."""
        return next((output for output in self.outputs if not output.value <= tolerance), None)


def compare(model: ReadModel, other: ReadModel, texts: Sequence[Text]) -> Comparison:
    """Compares the embeddings, the states after each layer and the outputs of all heads, at every
    token of the texts; one token in seven is masked.

    Args:
        texts: those longer than the models' positions are cut off there.

    Raises:
        UserError: the models differ in architecture, or their tokenizers split a text differently.
    """
    config = _common_config(model, other)
    rows = _common_rows(model, other, texts, config)
    parts, others = _groups(model), _groups(other)
    heads, pooler = with_heads(parts & others), _POOLER in parts & others
    graph, abstract = declare(config, ComputeConfig.plain(), heads, pooler=pooler)
    shapes = nnx.to_pure_dict(abstract)
    ours, theirs = _shaped(model.params, shapes), _shaped(other.params, shapes)
    vectors, layers, other_layers = _common_parts(model, other)
    outputs = jax.jit(partial(_outputs, graph, vectors))
    placed, placed_other = jax.device_put((ours, layers)), jax.device_put((theirs, other_layers))
    largest: dict[str, np.ndarray] = {}  # difference and reference value of each output
    for batch in _batches(rows, config.max_position_embeddings, model.tokenizer.special.pad):
        found = outputs(*placed_other, batch)
        for output, wanted in outputs(*placed, batch).items():
            here = _largest(wanted, found[output], batch["example_ids"] > 0)
            largest[output] = np.maximum(largest.get(output, 0), here)  # NaN stays NaN
    return Comparison(
        tuple(Difference(name, _relative(*values)) for name, values in largest.items()),
        tuple(_compare_weights({**ours, **_named(layers)}, {**theirs, **_named(other_layers)})),
        {
            model.source: _titles(parts - others),
            other.source: _titles(others - parts),
        },
        sum(len(row.ids) for row in rows),
    )


def _groups(model: ReadModel) -> set[str]:
    """Returns the parts of a model without a head that trained vectors of texts."""
    head = model.config.head if isinstance(model.config, TaskModelConfig) else None
    return groups_in(model.params) - ({head.name} if head and head.vectors else set())


def _common_parts(model: ReadModel, other: ReadModel) -> tuple[tuple[Part, ...], Layers, Layers]:
    """Returns what makes vectors of texts with both models, and the weights of each; nothing if it
    differs."""
    ours, theirs = model.sentence, other.sentence
    if ours is None or theirs is None or ours.parts != theirs.parts:
        return (), (), ()
    return ours.parts, ours.weights, theirs.weights


def _named(layers: Layers) -> dict[str, Any]:
    return {"sentence_encoder": {str(number): dict(own) for number, own in enumerate(layers)}}


def _common_config(model: ReadModel, other: ReadModel) -> ModelConfig:
    """Returns the architecture of both, without rows for the hardware, and without rows that have
    no entry if one of both has fewer; UserError if it differs."""
    settings, others = _settings(model.config), _settings(other.config)
    entries = model.tokenizer.vocab_size
    if settings[_VOCABULARY] != others[_VOCABULARY] and entries == other.tokenizer.vocab_size:
        settings[_VOCABULARY], others[_VOCABULARY] = (
            min(one[_VOCABULARY], entries) for one in (settings, others)
        )
    differ = [
        f"{name} {value} and {others[name]}"
        for name, value in settings.items()
        if others.get(name, value) != value
    ]
    if differ:
        raise UserError(
            f"{model.source} and {other.source} differ in architecture ({', '.join(differ)}); give "
            "two models of the same"
        )
    return dataclasses.replace(
        model.config, vocab_size=settings[_VOCABULARY], pad_vocab_to_multiple_of=1
    )


def _settings(config: ModelConfig) -> dict[str, Any]:
    """Returns the settings on which the shapes of parameters and what they compute depend."""
    names = (field.name for field in dataclasses.fields(ModelConfig))
    settings = {name: getattr(config, name) for name in names if name not in _IGNORED}
    if isinstance(config, TaskModelConfig) and not OBJECTIVES[task_of(config.head)].outputs:
        settings[f"labels of the {title(config.head.name)}"] = len(config.head.labels)
    return settings


def _common_rows(
    model: ReadModel, other: ReadModel, texts: Sequence[Text], config: ModelConfig
) -> list[_Row]:
    """Returns the tokens of each text; UserError if they depend on the model."""
    rows = []
    for text in texts:
        row = _tokens(model.tokenizer, text, config)
        if row != _tokens(other.tokenizer, text, config):
            start = " / ".join(text)
            start = start if len(start) <= 60 else f"{start[:57]}..."
            raise UserError(
                f"{model.source} and {other.source} split {start!r} into different tokens; give "
                "two models with the same tokenizer"
            )
        rows.append(row)
    return rows


def _tokens(tokenizer: Tokenizer, text: Text, config: ModelConfig) -> _Row:
    """Returns [CLS] text [SEP], or a pair as the tokenizer joins it, with masks."""
    special, frame = tokenizer.special, tokenizer.frame
    first, *others = tokenizer.encode_batch(text)
    ids = [special.cls, *first.tolist()]
    for other in others:
        ids += [*frame.between, *other.tolist()]
    ids.append(special.sep)
    found = frame.types(len(first), len(others[0])).tolist() if others else [0] * len(ids)
    types = [one * (config.type_vocab_size > 1) for one in found]
    limit = config.max_position_embeddings
    if len(ids) > limit:
        ids = [*ids[: limit - 1], special.sep]
    for place in range(_MASKED_EVERY // 2, len(ids), _MASKED_EVERY):
        ids[place] = ids[place] if ids[place] == special.sep else special.mask
    return _Row(ids, types[:limit])


def _batches(rows: Sequence[_Row], limit: int, pad: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches with the arrays that the encoder and all heads read; heads predict at every
    position."""
    rows = sorted(rows, key=lambda row: len(row.ids))
    for first in range(0, len(rows), _ROWS):
        chosen = rows[first : first + _ROWS]
        B, longest = len(chosen), len(chosen[-1].ids)
        S = min(max(_SHORTEST, power_of_two(longest)), limit)
        ids, types, examples = (np.full((B, S), fill, np.int32) for fill in (pad, 0, 0))
        for b, row in enumerate(chosen):
            here = np.s_[b, : len(row.ids)]
            ids[here], types[here], examples[here] = row.ids, row.types, 1
        positions = np.tile(np.arange(S, dtype=np.int32), (B, 1))
        yield {
            "input_ids": ids,
            "token_type_ids": types,
            "example_ids": examples,
            "position_ids": positions,
            "masked_positions": positions,
            "cls_positions": np.zeros((B, 1), np.int32),
            "span_left": np.maximum(positions - 1, 0),
            "span_right": np.minimum(positions + 1, S - 1),
            "span_offsets": positions % SPAN_TARGETS,
        }


def _titles(parts: set[str]) -> list[str]:
    """Returns the names of a pooler and heads, in order."""
    heads = with_heads(parts)
    return [*({_POOLER} & parts), *(title(OBJECTIVES[name].head) for name in heads)]


def _shaped(params: Mapping[str, Any], shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters that `shapes` has, without the vocabulary's rows for the hardware."""
    return {
        name: _shaped(params[name], below)
        if isinstance(below, Mapping)
        else params[name][: below.shape[0]]
        for name, below in shapes.items()
    }


# Accelerators otherwise multiply float32 matrices in lower precision.
@jax.default_matmul_precision("highest")
def _outputs(
    graph: nnx.GraphDef, vectors: tuple[Part, ...], params: Any, layers: Layers, batch: Batch
) -> OrderedDict[str, jax.Array]:
    """Returns all outputs by name, in the order in which they are computed: float32 [B, S, …], of
    the pooler, a sentence-pair head and a sentence encoder [B, 1, …].

    vectors, layers: the parts of that and their weights.
    """
    model: PretrainingModel = nnx.merge(graph, params)
    encoder: Encoder = model.encoder
    embeddings_BxSxH, *states = encoder.states(
        batch["input_ids"], batch["token_type_ids"], batch["example_ids"], batch["position_ids"]
    )
    outputs = OrderedDict(embeddings=embeddings_BxSxH)  # `jax.jit` would sort a dict
    for number, state_BxSxH in enumerate(states, start=1):
        outputs[f"layer {number}"] = state_BxSxH
    last_BxSxH = states[-1]
    if encoder.config.norm_position == "pre":
        outputs["final LayerNorm"] = last_BxSxH = encoder.norm(last_BxSxH)

    if hasattr(encoder, _POOLER):
        outputs[_POOLER] = encoder.pooled(last_BxSxH, batch["cls_positions"])
    read = last_BxSxH
    if probe := probe_of(encoder.config):
        read = joined([embeddings_BxSxH, *states[:-1], last_BxSxH], probe.layers, probe.join)
    for objective, logits in model.logits(read, batch).items():
        outputs[title(OBJECTIVES[objective].head)] = logits
    if vectors:
        examples, starts = batch["example_ids"], batch["cls_positions"]
        outputs[VECTOR] = vector_layers.vectors(
            last_BxSxH, examples, starts, batch["position_ids"], vectors, layers
        )
    return outputs


def _largest(wanted: jax.Array, found: jax.Array, real_BxS: np.ndarray) -> np.ndarray:
    """Returns the largest absolute difference and the largest wanted value, at real tokens: [2]."""
    real = real_BxS[:, : wanted.shape[1]]  # of one value per row, that of [CLS]
    ours, theirs = np.asarray(wanted)[real], np.asarray(found)[real]
    with np.errstate(over="ignore", invalid="ignore"):  # infinite values, or nearly
        return np.array([np.abs(ours - theirs).max(), np.abs(ours).max()])


def _relative(difference: float, size: float) -> float:
    return float(difference / max(1.0, size)) if math.isfinite(size) else math.nan


def _compare_weights(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[Difference]:
    """Yields the largest absolute difference in each tensor; those of layers are stacked."""
    others = jax.tree.leaves(theirs)
    for (path, leaf), other in zip(jax.tree.leaves_with_path(ours), others, strict=True):
        name = ".".join(key.key for key in path)
        with np.errstate(over="ignore", invalid="ignore"):
            apart = np.abs(leaf - other)
        if name.startswith("encoder.layers."):
            of_layers = enumerate(apart, start=1)
            yield from (Difference(f"{name} of layer {i}", float(a.max())) for i, a in of_layers)
        else:
            yield Difference(name, float(apart.max()))
