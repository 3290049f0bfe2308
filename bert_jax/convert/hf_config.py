"""Converts between transformers' `config.json` and our `ModelConfig`."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bert_jax.config.activations import ACTIVATIONS, WRITTEN
from bert_jax.config.schema import ModelConfig
from bert_jax.config.serialization import from_dict
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.convert.folders.model_keys import CONFIG_KEYS
from bert_jax.convert.layouts.bert import BERT
from bert_jax.convert.layouts.known_layouts import BY_TYPE, find_layout
from bert_jax.convert.layouts.layout import Layout
from bert_jax.convert.task_heads import head_json, kept_settings, read_head, task_of_class
from bert_jax.data_pipeline.folders.check import check_keys
from bert_jax.data_pipeline.folders.table import Entry
from bert_jax.data_pipeline.settings import shown
from bert_jax.errors import UserError
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.next_sentence import NEXT_SENTENCE
from bert_jax.workdir.description import is_description

_SHARED = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings",
)  # fmt: skip
_ACT = "hidden_act"
_HERE = "config.model"  # prefix of keys in the messages of `from_dict`
# Keys that a config.json may omit, with the defaults of transformers' BertConfig.
_DEFAULTS = {
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
}
_BOTH_HEADS = (MASKED_LM.head, NEXT_SENTENCE.head)
ORIGIN = "imported_from"  # name and commit of the model on the hub that the weights started as
LENGTH, FORM = "trained_length", "trained_form"  # of a run, of which transformers knows nothing
# Keys that an import keeps as they are, since they change nothing that is computed here.
_KEPT = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", ORIGIN, LENGTH, FORM)


def to_config_json(
    config: ModelConfig,
    *,
    pad_token_id: int,
    heads: Collection[str] = _BOTH_HEADS,
    trained_length: int | None = None,
    trained_form: Mapping[str, Any] = MappingProxyType({}),
    source: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Returns the contents of config.json.

    Args:
        heads: of the model; the class is `Layout.class_of`.
        trained_length: tokens of the longest sequences in training, if known. transformers has no
            key for it (`max_position_embeddings` is the size of the table), and keeps this one.
        trained_form: settings of the examples and masks by which the run is evaluated, if known:
            those of `EvalSetting`.
        source: keys of the config.json of the model that was imported, or that a run started from.
            Its family, such as CamemBERT's, and the settings of its head stay the same.

    Raises:
        UserError: transformers has no class for this form of model.
    """
    layout = find_layout(config)
    rows = config.max_position_embeddings + layout.rows_before(pad_token_id)
    values = {
        **{name: getattr(config, name) for name in (*_SHARED, *_DEFAULTS)},
        "hidden_act": WRITTEN[config.hidden_act],
        "max_position_embeddings": rows,
    }
    own = {layout.keys.get(n, n): v for n, v in values.items() if n not in layout.fixed}
    own |= layout.write(config)
    if isinstance(config, TaskModelConfig):
        own |= head_json(config, layout)
    kind = source.get("model_type", layout.model_type)
    return {
        "architectures": [layout.class_name(heads, kind)],
        "model_type": kind,
        **own,
        **kept_settings(source, config),
        **{name: source[name] for name in _KEPT if name in source},
        **({LENGTH: trained_length} if trained_length else {}),
        **({FORM: dict(trained_form)} if trained_form else {}),
        **layout.constants,
        "pad_token_id": pad_token_id,
        "tie_word_embeddings": True,
        "use_cache": True,
        "dtype": "float32",
    }


def from_config_json(
    values: Mapping[str, Any], where: str, keys: Sequence[Entry] = CONFIG_KEYS
) -> ModelConfig:
    """Returns our configuration from a config.json, without vocabulary padding.

    Args:
        keys: the table of its keys; others are logged.

    Raises:
        UserError: another model, a run, or missing, invalid or unsupported values; `where` names
            the file.
    """
    if is_description(values):
        raise UserError(
            f"{where}: of a run, and no checkpoint is read from here; train it until it has saved "
            "one, or export it"
        )
    layout = _layout(values, where)
    check_keys(values, keys, where)
    _check_supported(values, layout, where)
    key = {name: layout.keys.get(name, name) for name in (*_SHARED, *_DEFAULTS, _ACT)}
    act = values.get(key[_ACT], layout.defaults.get(_ACT, "gelu"))
    if not isinstance(act, str) or act not in ACTIVATIONS:
        # A similar name is another function.
        raise UserError(
            f"{where}: {key[_ACT]}={shown(act)} is not supported; valid: {', '.join(ACTIVATIONS)}"
        )
    if layout.only_gelu and ACTIVATIONS[act] != "gelu":
        raise UserError(f"{where}: hidden_act={shown(act)}, but the head always computes 'gelu'")
    missing = [key[name] for name in _SHARED if values.get(key[name]) is None]
    if missing:
        raise UserError(f"{where}: no {missing[0]}; is this the config.json of a BERT model?")
    defaults = {**_DEFAULTS, **layout.defaults}
    ours = {
        "hidden_act": ACTIVATIONS[act],
        "pad_vocab_to_multiple_of": 1,
        "layout": layout.layout,
        "position": layout.position,
        "norm_position": layout.norm_position,
        **{name: values[key[name]] for name in _SHARED},
        **{name: values.get(key[name], defaults[name]) for name in _DEFAULTS},
        **layout.fixed,
    }
    task = task_of_class(layout, values.get("architectures"))
    try:
        config = from_dict(ours | layout.read(values), ModelConfig, _HERE)
        config = _without_rows_before(config, layout, values)
        find_layout(config)
        return read_head(task, values, config, layout) if task else config
    except UserError as error:
        raise UserError(f"{where}: {str(error).replace(f'{_HERE}.', '')}") from None


def _layout(values: Mapping[str, Any], where: str) -> Layout:
    kind = values.get("model_type", BERT.model_type)
    classes = values.get("architectures")
    named = str(classes[0]) if isinstance(classes, list) and classes else "Bert"
    if "model_type" not in values and not named.startswith("Bert"):
        raise UserError(
            f"{where}: model_type is missing, and architectures={shown(classes)} is not BERT's; "
            f"add it, one of {', '.join(BY_TYPE)}"
        )
    if not isinstance(kind, str) or kind not in BY_TYPE:
        known = ", ".join(map(repr, BY_TYPE))
        raise UserError(f"{where}: model_type={shown(kind)}; only {known} can be loaded")
    return BY_TYPE[kind]


def _check_supported(values: Mapping[str, Any], layout: Layout, where: str) -> None:
    for name, wanted in layout.constants.items():
        if (given := values.get(name, wanted)) != wanted:
            raise UserError(
                f"{where}: {name}={shown(given)} is not supported; only {wanted!r} can be loaded"
            )
    width = values.get("hidden_size")
    for name in layout.widths:
        if values.get(name, width) not in (None, width):
            raise UserError(f"{where}: {name} differs from hidden_size, which is not supported")
    heads = values.get(layout.keys.get("num_attention_heads", "num_attention_heads"))
    if (given := values.get("num_key_value_heads")) not in (None, heads):
        raise UserError(
            f"{where}: num_key_value_heads={shown(given)} is not supported: heads that share keys "
            f"and values; only num_attention_heads={shown(heads)} can be loaded"
        )


def pad_token_id(values: Mapping[str, Any]) -> Any:
    """Returns the padding id of a config.json: RoBERTa's positions start after it."""
    return values.get("pad_token_id", 1)


def _without_rows_before(
    config: ModelConfig, layout: Layout, values: Mapping[str, Any]
) -> ModelConfig:
    """Returns the configuration with a row of the position table for each position only."""
    if not layout.positions_after_pad:
        return config
    pad = pad_token_id(values)
    if not isinstance(pad, int) or isinstance(pad, bool) or pad < 0:
        raise UserError(f"pad_token_id={shown(pad)} should be an id: positions start after it")
    rows = config.max_position_embeddings - layout.rows_before(pad)
    if rows < 1:
        raise UserError(f"max_position_embeddings has no row after that of pad_token_id={pad}")
    return dataclasses.replace(config, max_position_embeddings=rows)
