"""The defaults of all settings, as a config file returns them."""

import dataclasses
import types
import typing
from typing import Any, Final

from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference, placeholder

from bert_jax.config.schema import Config

# Settings of `config.model` that its parameters depend on, besides the size of the vocabulary.
ARCHITECTURE: Final = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
    "layer_norm_eps", "type_vocab_size", "position", "norm_position", "max_position_embeddings",
    "layout", "norm_bias", "linear_bias", "gated_mlp", "first_attention_norm", "local_attention",
    "global_attn_every_n_layers", "global_rope_theta", "local_rope_theta", "num_hidden_groups",
    "embedding_size", "classifier_pooling",
)  # fmt: skip

# A start that is counted in the store, with which small models learn at once: docs/learning.md.
COUNTED_START: Final = {
    "model.initializer": "positional_heads",
    "model.positional_heads.pmi": 3.0,
    "model.positional_heads.unread": 0.0,
    "model.word_initializer": "cooccurrence",
    "model.output_bias_initializer": "frequencies",
    "model.cooccurrence.window": 2,
    "model.near_identity.head": True,
    "model.near_identity.feed_forward": 0.1,
    "model.near_identity.attention": 0.1,
}


def defaults() -> ConfigDict:
    """Every setting of `Config` with its default; `model.vocab_size` is None: that of the store."""
    return without_vocab_size(config_dict(Config()))


def without_vocab_size(values: ConfigDict) -> ConfigDict:
    """Unsets the vocabulary size, so that a run takes that of its store."""
    values.model.vocab_size = placeholder(int)
    return values


def without_architecture(values: ConfigDict) -> ConfigDict:
    """Unsets `ARCHITECTURE`, so that a run takes that of the model that `config.init` names."""
    for name in ARCHITECTURE:
        values.model[name] = placeholder(type(values.model[name]))
    return values


def config_dict(config: Any) -> ConfigDict:
    """A configuration, or a part of it, in the form that a config file returns."""
    values = ConfigDict()
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, tuple):
            value = tuple(map(config_dict, value))
        elif dataclasses.is_dataclass(value):
            value = config_dict(value)
        elif value is None:
            value = _unset(hints[field.name])
        values[field.name] = value
    return values


def typed(values: ConfigDict, part: Any = Config) -> ConfigDict:
    """Gives each setting of `part` that is None the type of what may be set: an assigned None and
    `copy_and_resolve_references` take it away, and ml_collections then refuses every flag."""
    for name, hint in typing.get_type_hints(part).items():
        if name not in values:
            continue
        value, kinds = values[name], typing.get_args(hint)
        if values.get_type(name) is types.NoneType and types.NoneType in kinds:
            values[name] = _unset(hint)
        kind = kinds[0] if isinstance(value, tuple) else hint
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, ConfigDict) and dataclasses.is_dataclass(kind):
                typed(inner, kind)
    return values


def _unset(hint: Any) -> FieldReference:
    """Returns a None that may become what a hint, such as `float | None`, has besides."""
    base = typing.get_args(hint)[0]
    return placeholder(str if typing.get_origin(base) is typing.Literal else base)
