"""Settings of the layers that ModernBERT, ALBERT and ELECTRA have otherwise than BERT.

The defaults are BERT's. Names are those of transformers' `ModernBertConfig`, `AlbertConfig` and
`ElectraConfig` where they have one.
"""

import dataclasses
from typing import Annotated, Literal

from bert_jax.config.ranges import INT32, Layers
from bert_jax.data_pipeline.settings import Whole, Within
from bert_jax.errors import UserError

Theta = Annotated[float, Within(1, 10**12)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerSettings:
    """The part of `ModelConfig` with the forms of its layers."""

    norm_bias: bool = True  # whether LayerNorms have a bias
    linear_bias: bool = True  # of all dense layers but a task's output and the word scores
    gated_mlp: bool = False  # activation(x · a) * (x · b) in the feed-forward network: GeGLU
    # With norm_position = "pre": whether the first layer's attention has a LayerNorm, too. Its
    # input is normalized already.
    first_attention_norm: bool = True
    # Tokens of a window: a token attends to local_attention // 2 tokens on each side, in all but
    # the layers 0, n, 2n, …; 0: to all tokens in every layer.
    local_attention: Annotated[int, Within(0, INT32)] = 0
    global_attn_every_n_layers: Layers = 3
    # Base of the rotary angles in layers without and with a window.
    global_rope_theta: Theta = 10_000.0
    local_rope_theta: Theta = 10_000.0
    # Groups of layers that share their parameters, as in ALBERT; 0: each layer has its own.
    num_hidden_groups: Whole = 0
    # Width of the word, position and type tables, which a dense layer brings to hidden_size; 0: the
    # tables have that width, and there is no such layer.
    embedding_size: Annotated[int, Within(0, 2**17)] = 0
    # What a classifier of texts reads in ModernBERT's layout: the state of [CLS], or the mean of
    # all. Other layouts have a pooler or [CLS].
    classifier_pooling: Literal["cls", "mean"] = "cls"

    def check_layers(self, *, layers: int, rotary: bool, pre_norm: bool) -> None:
        """Raises UserError for settings that do not fit one another."""
        groups = self.num_hidden_groups
        if groups and layers % groups:
            raise UserError(
                f"config.model.num_hidden_layers={layers} is not a multiple of "
                f"config.model.num_hidden_groups={groups}; change one of them"
            )
        if self.local_attention == 1:
            raise UserError(
                "config.model.local_attention=1 lets a token attend to itself alone; set it to 2 "
                "or more, or to 0 for attention to all tokens"
            )
        if not self.first_attention_norm and not pre_norm:
            raise UserError(
                "config.model.first_attention_norm=False needs "
                'config.model.norm_position="pre"; leave it True'
            )
        for name in ("global_rope_theta", "local_rope_theta"):
            value, default = getattr(self, name), getattr(LayerSettings, name)
            if not rotary and value != default:
                raise UserError(
                    f"config.model.{name}={value:g} has no effect without rotary positions; set "
                    'config.model.position="rotary"'
                )

    def is_local(self, layer: int) -> bool:
        """Returns whether the attention of a layer, counted from 0, has a window."""
        return bool(self.local_attention) and layer % self.global_attn_every_n_layers != 0
