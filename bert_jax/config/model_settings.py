"""`config.model`: the architecture of the encoder, and its initial values."""

import dataclasses
from dataclasses import field
from typing import Annotated, Any, Literal

from bert_jax.config.activations import Activation
from bert_jax.config.generator_settings import GeneratorConfig
from bert_jax.config.layer_settings import LayerSettings
from bert_jax.config.ranges import (
    Amount,
    BelowOne,
    Heads,
    Layers,
    Positions,
    Positive,
    TokenTypes,
    Vocabulary,
    Width,
)
from bert_jax.config.starts import CooccurrenceConfig, NearIdentityConfig, PositionalHeadsConfig
from bert_jax.data_pipeline.settings import Within
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(LayerSettings):
    """The encoder's architecture, named as in transformers' `BertConfig`."""

    vocab_size: Vocabulary = 30522  # not given in a config: that of the store, if there is one
    hidden_size: Width = 768
    num_hidden_layers: Layers = 12
    num_attention_heads: Heads = 12
    intermediate_size: Width = 3072
    hidden_act: Activation = "gelu"  # erf (the 2018 release), or its tanh form
    hidden_dropout_prob: BelowOne = 0.1
    attention_probs_dropout_prob: BelowOne = 0.1
    max_position_embeddings: Positions = 512
    type_vocab_size: TokenTypes = 2  # 0: no token types, as in DistilBERT
    initializer_range: Amount = 0.02
    # Initial values only. published: all as published, whatever the settings up to `near_identity`
    # say; random: only where these say nothing else; positional_heads: heads that attend to
    # neighbouring tokens.
    initializer: Literal["published", "random", "positional_heads"] = "published"
    positional_heads: PositionalHeadsConfig = field(default_factory=PositionalHeadsConfig)
    # Vectors of the entries, and the bias of each in the output, from the store's training text.
    word_initializer: Literal["random", "cooccurrence"] = "random"
    output_bias_initializer: Literal["zeros", "frequencies"] = "zeros"
    cooccurrence: CooccurrenceConfig = field(default_factory=CooccurrenceConfig)
    near_identity: NearIdentityConfig = field(default_factory=NearIdentityConfig)
    layer_norm_eps: Positive = 1e-12
    position: Literal["learned", "rotary"] = "learned"  # a table added to words, or RoFormer's
    norm_position: Literal["post", "pre"] = "post"  # after each residual sum, or before each branch
    # Classes of transformers that a model is exported for; bert: those of its position and norms.
    layout: Literal["bert", "roberta", "distilbert", "modernbert", "albert", "electra"] = "bert"
    pad_vocab_to_multiple_of: Width = 128  # zero rows, stripped at export
    # Of replaced-token detection, in which this model is the discriminator.
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    # Width of the teacher's states, to which a dense layer brings those of a student of another
    # width, for their cosine; a run finds it. 0: there is no such layer.
    teacher_width: Annotated[int, Within(0, 2**17)] = 0

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"config.model.hidden_size={self.hidden_size} is not a multiple of "
                f"config.model.num_attention_heads={self.num_attention_heads}; change one of them"
            )
        if self.position == "rotary" and self.head_dim % 2:
            raise UserError(
                'config.model.position="rotary" rotates pairs of dimensions, but a head has '
                f"{self.head_dim} (config.model.hidden_size / config.model.num_attention_heads); "
                "change one of them"
            )
        self.check_layers(
            layers=self.num_hidden_layers,
            rotary=self.position == "rotary",
            pre_norm=self.norm_position == "pre",
        )
        if self.initializer == "positional_heads":
            self._check_positional_heads()
        if self.initializer == "published":
            for name, value in (
                ("word_initializer", "random"),
                ("output_bias_initializer", "zeros"),
                ("near_identity", NearIdentityConfig()),
            ):
                object.__setattr__(self, name, value)

    def check_generator(self) -> None:
        """Raises UserError if a model of these settings cannot have this generator."""
        own, where = self.generator, "config.model.generator"
        width, heads = own.hidden_size or self.hidden_size, own.num_attention_heads
        if width > self.hidden_size:
            raise UserError(
                f"{where}.hidden_size={width} is wider than the model, "
                f"config.model.hidden_size={self.hidden_size}; lower it"
            )
        if width % (heads or self.num_attention_heads):
            of = f"{where}.num_attention_heads={heads}; change one of them"
            if not heads:
                of = f"config.model.num_attention_heads={self.num_attention_heads}; change it, or "
                of += f"set {where}.num_attention_heads"
            raise UserError(f"{where}.hidden_size={width} is not a multiple of {of}")
        head_dim = width // (heads or self.num_attention_heads)
        if self.position == "rotary" and head_dim % 2:
            raise UserError(
                f'config.model.position="rotary" rotates pairs of dimensions, but a head of the '
                f"generator has {head_dim} ({where}.hidden_size / {where}.num_attention_heads); "
                "change one of them"
            )
        layers, groups = own.num_hidden_layers, self.num_hidden_groups
        if groups and layers % groups:
            raise UserError(
                f"{where}.num_hidden_layers={layers} is not a multiple of "
                f"config.model.num_hidden_groups={groups}; change one of them"
            )

    def _check_positional_heads(self) -> None:
        where = 'config.model.initializer="positional_heads"'
        if self.positional_heads.pmi and self.word_initializer != "cooccurrence":
            raise UserError(
                f"config.model.positional_heads.pmi={self.positional_heads.pmi} needs vectors of "
                'words; set config.model.word_initializer="cooccurrence", or pmi to 0'
            )
        farthest = max(map(abs, self.head_offsets))
        if self.position != "learned":
            raise UserError(
                f'{where} starts a position table, which config.model.position="{self.position}" '
                'does not have; set config.model.initializer="random"'
            )
        if 0 < self.num_hidden_groups < self.num_hidden_layers:
            raise UserError(
                f"{where} starts the first layer, whose parameters others have too by "
                f"config.model.num_hidden_groups={self.num_hidden_groups}; set "
                'config.model.initializer="random"'
            )
        if self.embedding_size:
            raise UserError(
                f"{where} reads positions from the hidden states, which a dense layer of "
                f"config.model.embedding_size={self.embedding_size} mixes; set "
                'config.model.initializer="random"'
            )
        if farthest >= self.max_position_embeddings:
            raise UserError(
                f"{where} with config.model.num_attention_heads={self.num_attention_heads} has "
                f"offsets up to {farthest}, but config.model.max_position_embeddings="
                f"{self.max_position_embeddings}; raise it, or use fewer heads"
            )
        if self.head_dim < 2:
            raise UserError(
                f"{where} needs at least 2 dimensions a head, but config.model.hidden_size="
                f"{self.hidden_size} with {self.num_attention_heads} heads has {self.head_dim}; "
                "use fewer heads"
            )

    @property
    def head_offsets(self) -> tuple[int, ...]:
        """-1, +1, -2, +2, …: which neighbour each head of `positional_heads` attends to."""
        heads = range(self.num_attention_heads)
        return tuple((head // 2 + 1) * (1 if head % 2 else -1) for head in heads)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def table_width(self) -> int:
        """Width of the word, position and type tables."""
        return self.embedding_size or self.hidden_size

    @property
    def layers_of_parameters(self) -> int:
        """Size of the stack of the layers' parameters: layers of a group share theirs."""
        return self.num_hidden_groups or self.num_hidden_layers

    @property
    def output_scale(self) -> float:
        """Factor of the initial values of each branch's last dense layer, as published."""
        return (2 * self.num_hidden_layers) ** -0.5 if self.layout == "modernbert" else 1.0

    @property
    def padded_vocab_size(self) -> int:
        multiple = self.pad_vocab_to_multiple_of
        return -(-self.vocab_size // multiple) * multiple


def generator_of(config: ModelConfig) -> ModelConfig:
    """Returns the architecture of a model's generator.

    Its heads start from random values where the model's are positional: a generator of another
    width reads the positions through a dense layer.
    """
    changed: dict[str, Any] = {**config.generator.sizes}
    width = changed.get("hidden_size", config.hidden_size)
    if config.initializer != "published":
        changed["initializer"] = "random"
    return dataclasses.replace(
        config,
        **changed,
        embedding_size=0 if width == config.table_width else config.table_width,
        generator=GeneratorConfig(),
    )
