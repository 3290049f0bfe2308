"""BERT: modeling_bert.py of transformers. The other layouts are described by what differs.

BioBERT, SciBERT, FinBERT, SpanBERT, multilingual BERT and herBERT have this layout.
"""

from typing import Final

from bert_jax.convert.layouts.layout import Layout
from bert_jax.objectives.objective import Tensor

BERT = Layout(
    layout="bert",
    position="learned",
    norm_position="post",
    model_type="bert",
    prefix="Bert",
    base="bert",
    # BERT's sequence classifier reads the pooler, so it has no layer before the last one.
    names=(("classifier.out_proj.", "classifier."),),
    with_pooler=(
        "ForPreTraining",
        "ForNextSentencePrediction",
        "ForSequenceClassification",
        "ForMultipleChoice",
        "Model",
    ),
    constants={"position_embedding_type": "absolute"},
)

_LAYER = "bert.encoder.layer.{layer}"
TABLES: Final = (
    Tensor("encoder.embeddings.word", "bert.embeddings.word_embeddings.weight", of_vocabulary=True),
    Tensor(
        "encoder.embeddings.position",
        "bert.embeddings.position_embeddings.weight",
        exists=lambda config: config.position == "learned",
    ),
    Tensor(
        "encoder.embeddings.type",
        "bert.embeddings.token_type_embeddings.weight",
        exists=lambda config: config.type_vocab_size > 0,
    ),
    Tensor("encoder.embeddings.norm.scale", "bert.embeddings.LayerNorm.weight"),
    Tensor("encoder.embeddings.norm.bias", "bert.embeddings.LayerNorm.bias"),
)
ENCODER: Final = (
    *TABLES,
    Tensor("encoder.layers.attention.qkv.kernel", _LAYER + ".attention.self.{part}.weight", 1),
    Tensor("encoder.layers.attention.qkv.bias", _LAYER + ".attention.self.{part}.bias", 0),
    Tensor("encoder.layers.attention.output.kernel", _LAYER + ".attention.output.dense.weight", 2),
    Tensor("encoder.layers.attention.output.bias", _LAYER + ".attention.output.dense.bias"),
    Tensor("encoder.layers.attention.norm.scale", _LAYER + ".attention.output.LayerNorm.weight"),
    Tensor("encoder.layers.attention.norm.bias", _LAYER + ".attention.output.LayerNorm.bias"),
    Tensor("encoder.layers.mlp.up.kernel", _LAYER + ".intermediate.dense.weight", 1),
    Tensor("encoder.layers.mlp.up.bias", _LAYER + ".intermediate.dense.bias"),
    Tensor("encoder.layers.mlp.down.kernel", _LAYER + ".output.dense.weight", 1),
    Tensor("encoder.layers.mlp.down.bias", _LAYER + ".output.dense.bias"),
    Tensor("encoder.layers.mlp.norm.scale", _LAYER + ".output.LayerNorm.weight"),
    Tensor("encoder.layers.mlp.norm.bias", _LAYER + ".output.LayerNorm.bias"),
    Tensor(
        "encoder.norm.scale", "bert.LayerNorm.weight", exists=lambda c: c.norm_position == "pre"
    ),
    Tensor("encoder.norm.bias", "bert.LayerNorm.bias", exists=lambda c: c.norm_position == "pre"),
    Tensor("encoder.pooler.kernel", "bert.pooler.dense.weight", 1),
    Tensor("encoder.pooler.bias", "bert.pooler.dense.bias"),
)
