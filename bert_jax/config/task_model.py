"""The configuration of an encoder with the head of a task, such as classification."""

import dataclasses
from typing import Annotated, Any, Literal

from bert_jax.config.ranges import BelowOne
from bert_jax.config.schema import ModelConfig
from bert_jax.config.sentence_parts import Dense, parse_pools
from bert_jax.config.task_settings import Directions, Join, Pooling, TaskConfig
from bert_jax.data_pipeline.settings import Within

Labels = Annotated[int, Within(1, 2**16)]
VectorLoss = Literal["negatives", "cosine", "cosent", "softmax", "reconstruction"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorConfig:
    """Settings of a head that makes vectors of texts and compares them.

    Attributes:
        loss: of in-batch negatives, the squared error of the cosine, CoSENT, a softmax over
            labels, or that of the tokens of a text that is restored from its vector.
        normalize: whether a vector is divided by its length.
        scale: of the cosines in a softmax.
        directions: of in-batch negatives: each anchor chooses its positive, or each positive its
            anchor, too.
        dimensions: widths, beside the whole one, at which the loss of the first numbers of the
            vectors is added.
        dense: layers on the pooled states, before that division.
    """

    loss: VectorLoss
    normalize: bool = True
    scale: float = 20.0
    directions: Directions = "one"
    dimensions: tuple[int, ...] = ()
    dense: tuple[Dense, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The head of a task.

    Attributes:
        name: key of its parameters in the model, `Objective.head`.
        labels: names of its outputs.
        problem_type: the objective that trains a classifier, named as in transformers; None if it
            is that of the number of labels, see `known_objectives.task_of`.
        dense: activation of the layer before the output layer; None if it has no such layer, and a
            classifier reads the pooler.
        norm: whether a LayerNorm follows that activation.
        dropout: rate at the input of the output layer.
        drops_input: whether that of `dense` is dropped at the same rate.
        layers: of a frozen encoder, whose states the output layer reads, 0 for the embeddings;
            empty if the encoder is trained, and the head reads the last layer.
        join: of the states of `layers`.
        pooling: of them, or of the states of the last layer that a classifier of texts reads, or
            of which a vector is made; several names are joined in their order.
        vectors: of a head that makes vectors of texts.
    """

    name: str
    labels: tuple[str, ...] = ("LABEL_0", "LABEL_1")
    problem_type: str | None = None
    dense: Literal["tanh", "relu", "hidden_act"] | None = None
    norm: bool = False
    dropout: BelowOne = 0.1
    drops_input: bool = False
    layers: tuple[int, ...] = ()
    join: Join = "concat"
    pooling: Pooling = "cls"
    vectors: VectorConfig | None = None

    @property
    def pools(self) -> tuple[str, ...]:
        """The pools of `pooling`."""
        return parse_pools(self.pooling)

    @property
    def vector_layers(self) -> tuple[Dense, ...]:
        """The dense layers on the vectors of texts."""
        return self.vectors.dense if self.vectors else ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskModelConfig(ModelConfig):
    """The architecture of an encoder with the head of a task."""

    head: HeadConfig

    @property
    def pooled_width(self) -> int:
        """Numbers of a token, or of the pooled states of a text."""
        several = len(self.head.layers) if self.head.join == "concat" else 1
        return self.hidden_size * (several or 1) * len(self.head.pools)

    @property
    def head_width(self) -> int:
        """Numbers of a token, or of the vector of a text, that the output of the head reads."""
        dense = self.head.vector_layers
        return dense[-1].width if dense else self.pooled_width

    @property
    def head_scale(self) -> float:
        """Factor of the initial values of the output layer, as published."""
        if self.layout != "modernbert" or self.head.layers or not self.initializer_range:
            return 1.0
        return self.hidden_size**-0.5 / self.initializer_range


def passage_prompt(task: TaskConfig, loss: VectorLoss) -> str:
    """Returns what is put before each text of an example after the first: of in-batch negatives,
    whose first text is a query, nothing unless it is given; of other pairs, that of the first."""
    return task.passage_prompt or ("" if loss == "negatives" else task.query_prompt)


def probe_of(model: ModelConfig) -> HeadConfig | None:
    """Returns the head that reads chosen layers of a frozen encoder; None if all is trained."""
    return model.head if isinstance(model, TaskModelConfig) and model.head.layers else None


def without_head(model: ModelConfig) -> ModelConfig:
    """Returns the architecture of a model without the head of a task."""
    return ModelConfig(**_of_encoder(model))


def with_head(model: ModelConfig, head: HeadConfig) -> TaskModelConfig:
    """Returns the architecture of a model with the head of a task in place of any other."""
    return TaskModelConfig(**_of_encoder(model), head=head)


def _of_encoder(model: ModelConfig) -> dict[str, Any]:
    return {field.name: getattr(model, field.name) for field in dataclasses.fields(ModelConfig)}
