"""Converts between transformers' BERT `config.json` and our `ModelConfig`."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config.schema import ModelConfig
from bert_jax.config.serialization import from_dict
from bert_jax.data_pipeline.errors import UserError, nearest
from bert_jax.data_pipeline.settings import shown

# Ours -> theirs; "gelu_new" is the same tanh approximation under an older name.
_ACT_NAMES = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
_ACTS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
_SHARED = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings",
)  # fmt: skip
_HERE = "config.model"  # prefix of keys in the messages of `from_dict`
# Keys that a config.json may omit, with the defaults of transformers' BertConfig.
_DEFAULTS = {
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
}


def to_config_json(
    config: ModelConfig, *, pad_token_id: int, architecture: str = "BertForPreTraining"
) -> dict[str, Any]:
    """Returns the contents of config.json; architecture: the transformers class that loads it."""
    return {
        "architectures": [architecture],
        "model_type": "bert",
        **{name: getattr(config, name) for name in (*_SHARED, *_DEFAULTS)},
        "hidden_act": _ACT_NAMES[config.hidden_act],
        "position_embedding_type": "absolute",
        "pad_token_id": pad_token_id,
        "tie_word_embeddings": True,
        "use_cache": True,
        "dtype": "float32",
    }


def from_config_json(values: Mapping[str, Any], where: str) -> ModelConfig:
    """Returns our configuration from a BERT's config.json, without vocabulary padding.

    Raises:
        UserError: another model, or missing, invalid or unsupported values; `where` names the file.
    """
    kind = values.get("model_type", "bert")
    if kind != "bert":
        raise UserError(f"{where}: model_type={shown(kind)}; only 'bert' can be loaded")
    position = values.get("position_embedding_type", "absolute")
    if position != "absolute":
        raise UserError(
            f"{where}: position_embedding_type={shown(position)} is not supported; "
            "only 'absolute' can be loaded"
        )
    if values.get("is_decoder") or values.get("add_cross_attention"):
        raise UserError(f"{where}: a decoder (is_decoder, add_cross_attention); give an encoder")
    act = values.get("hidden_act", "gelu")
    if not isinstance(act, str) or act not in _ACTS:
        hint = nearest(act[:80], _ACTS) if isinstance(act, str) else nearest("", _ACTS)
        raise UserError(f"{where}: hidden_act={shown(act)} is not supported{hint}")
    missing = [name for name in _SHARED if values.get(name) is None]
    if missing:
        raise UserError(f"{where}: no {missing[0]}; is this the config.json of a BERT model?")
    ours = {
        "hidden_act": _ACTS[act],
        "pad_vocab_to_multiple_of": 1,
        **{name: values[name] for name in _SHARED},
        **{name: values.get(name, default) for name, default in _DEFAULTS.items()},
    }
    try:
        return from_dict(ours, ModelConfig, _HERE)
    except UserError as error:
        raise UserError(f"{where}: {str(error).replace(f'{_HERE}.', '')}") from None
