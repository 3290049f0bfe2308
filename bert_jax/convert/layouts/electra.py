"""ELECTRA: modeling_electra.py of transformers, a BERT with narrower tables and no pooler.

Its two networks are models of their own: a generator with the head of the masked language model,
and a discriminator with that of replaced tokens.
"""

from collections.abc import Mapping
from typing import Any, Final

from bert_jax.config.ranges import Width
from bert_jax.config.schema import ModelConfig
from bert_jax.convert.layouts.bert import ENCODER
from bert_jax.convert.layouts.layout import CHOICE, CLASSES, CLASSIFIER, TAGGER, Layout
from bert_jax.data_pipeline.settings import checked
from bert_jax.objectives.objective import Tensor
from bert_jax.objectives.replaced_tokens import REPLACED_TOKENS

_WIDTH: Final = "embedding_size"
_DEFAULT_WIDTH: Final = 128  # of transformers' ElectraConfig


def _write(model: ModelConfig) -> dict[str, Any]:
    return {_WIDTH: model.table_width}


def _read(values: Mapping[str, Any]) -> dict[str, Any]:
    width = int(checked(values.get(_WIDTH, _DEFAULT_WIDTH), Width, _WIDTH))
    return {_WIDTH: 0 if width == values["hidden_size"] else width}


def _projects(model: ModelConfig) -> bool:
    return bool(model.embedding_size)


_PROJECTION: Final = "bert.embeddings_project"
ELECTRA = Layout(
    layout="electra",
    position="learned",
    norm_position="post",
    model_type="electra",
    prefix="Electra",
    base="electra",
    names=(
        ("cls.predictions.transform.", "generator_predictions."),
        ("cls.predictions.decoder.", "generator_lm_head."),
        ("cls.predictions.", "generator_lm_head."),
        ("choice.dense.", "sequence_summary.summary."),
    ),
    encoder=(
        *ENCODER,
        Tensor("encoder.projection.kernel", f"{_PROJECTION}.weight", 1, exists=_projects),
        Tensor("encoder.projection.bias", f"{_PROJECTION}.bias", exists=_projects),
    ),
    classes={**CLASSES, "ForPreTraining": (REPLACED_TOKENS.head,)},
    only_gelu=True,
    projects_equal=False,
    dense=dict.fromkeys((CLASSIFIER, CHOICE), "hidden_act"),
    classifier_drops_input=True,
    head_dropout={
        **dict.fromkeys((CLASSIFIER, TAGGER), ("classifier_dropout", None)),
        CHOICE: ("summary_last_dropout", 0.1),
    },
    # Those of the summary are of multiple choice alone, and in every config.json of the family.
    constants={
        "position_embedding_type": "absolute",
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
    },
    layer_settings=(_WIDTH,),
    write=_write,
    read=_read,
)
