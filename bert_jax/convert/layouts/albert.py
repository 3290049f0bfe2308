"""ALBERT: modeling_albert.py of transformers. Layers share parameters, and tables are narrower."""

from collections.abc import Mapping
from typing import Any, Final

from bert_jax.config.schema import ModelConfig
from bert_jax.convert.layouts.bert import TABLES
from bert_jax.convert.layouts.layout import CHOICE, CLASSIFIER, TAGGER, Layout, dense, norm
from bert_jax.objectives.objective import Tensor

# Defaults of transformers' AlbertConfig.
_OWN: Final = {"embedding_size": 128, "num_hidden_groups": 1}


def _write(model: ModelConfig) -> dict[str, Any]:
    # The defaults of its class are those of its own vocabulary.
    return {"bos_token_id": None, "eos_token_id": None, **{n: getattr(model, n) for n in _OWN}}


def _read(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values.get(name, default) for name, default in _OWN.items()}


_GROUP: Final = "bert.encoder.albert_layer_groups.{layer}.albert_layers.0."
_ENCODER: Final = (
    *TABLES,
    *dense("encoder.projection", "bert.encoder.embedding_hidden_mapping_in"),
    Tensor("encoder.layers.attention.qkv.kernel", _GROUP + "attention.{part}.weight", 1),
    Tensor("encoder.layers.attention.qkv.bias", _GROUP + "attention.{part}.bias", 0),
    *dense("encoder.layers.attention.output", f"{_GROUP}attention.dense", inputs=2),
    *norm("encoder.layers.attention.norm", f"{_GROUP}attention.LayerNorm"),
    *dense("encoder.layers.mlp.up", f"{_GROUP}ffn"),
    *dense("encoder.layers.mlp.down", f"{_GROUP}ffn_output"),
    *norm("encoder.layers.mlp.norm", f"{_GROUP}full_layer_layer_norm"),
    *dense("encoder.pooler", "bert.pooler"),
)
ALBERT = Layout(
    layout="albert",
    position="learned",
    norm_position="post",
    model_type="albert",
    prefix="Albert",
    base="albert",
    names=(
        ("cls.predictions.transform.", "predictions."),
        ("cls.predictions.", "predictions."),
        ("cls.seq_relationship.", "sop_classifier.classifier."),
        ("classifier.out_proj.", "classifier."),
    ),
    encoder=_ENCODER,
    reads_decoder_bias=True,
    with_pooler=("ForPreTraining", "ForSequenceClassification", "ForMultipleChoice", "Model"),
    without=("ForNextSentencePrediction",),
    head_dropout=dict.fromkeys((CLASSIFIER, TAGGER, CHOICE), ("classifier_dropout_prob", 0.1)),
    constants={"position_embedding_type": "absolute", "inner_group_num": 1},
    defaults={
        "hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    },
    layer_settings=tuple(_OWN),
    required=tuple(_OWN),
    write=_write,
    read=_read,
)  # fmt: skip
