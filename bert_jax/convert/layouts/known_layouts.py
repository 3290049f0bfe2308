"""All layouts, and which one a model has."""

from bert_jax.config.schema import ModelConfig
from bert_jax.config.task_model import probe_of
from bert_jax.convert.layouts.albert import ALBERT
from bert_jax.convert.layouts.bert import BERT
from bert_jax.convert.layouts.distilbert import DISTILBERT
from bert_jax.convert.layouts.electra import ELECTRA
from bert_jax.convert.layouts.layout import Layout
from bert_jax.convert.layouts.modernbert import MODERNBERT
from bert_jax.convert.layouts.roberta import ROBERTA
from bert_jax.convert.layouts.roberta_prelayernorm import ROBERTA_PRELAYERNORM
from bert_jax.convert.layouts.roformer import ROFORMER
from bert_jax.errors import UserError

# Settings that change nothing that a trained model computes.
_OF_TRAINING = ("hidden_dropout_prob", "attention_probs_dropout_prob")
LAYOUTS = (BERT, ROBERTA, DISTILBERT, ROFORMER, ROBERTA_PRELAYERNORM, MODERNBERT, ALBERT, ELECTRA)
# By `model_type` in config.json.
BY_TYPE: dict[str, Layout] = {
    name: layout for layout in LAYOUTS for name in (layout.model_type, *layout.other_types)
}
_BY_FORM = {(x.layout, x.position, x.norm_position): x for x in LAYOUTS}


def positions_after_pad(model: ModelConfig) -> bool:
    """Returns whether transformers gives the padding id a position of its own, which is not
    counted."""
    found = _BY_FORM.get((model.layout, model.position, model.norm_position))
    return bool(found and found.positions_after_pad)


def find_layout(model: ModelConfig) -> Layout:
    """Returns the layout of the classes that compute a model; UserError if transformers has none,
    or the model's settings are none of theirs."""
    if probe_of(model):
        raise UserError(
            "config.task.layers: transformers has no class with a linear head on chosen layers; "
            "such a model cannot be exported, and `bert-jax predict` reads its workdir"
        )
    found = _BY_FORM.get((model.layout, model.position, model.norm_position))
    if not found or (found.only_gelu and model.hidden_act != "gelu"):
        raise UserError(
            f'config.model: transformers has no class with layout="{model.layout}", '
            f'position="{model.position}", norm_position="{model.norm_position}" and '
            f'hidden_act="{model.hidden_act}"; such a model cannot be exported'
        )
    for name, wanted in found.fixed.items():
        if name not in _OF_TRAINING and (given := getattr(model, name)) != wanted:
            raise UserError(
                f"config.model.{name}={given}: {found.class_name(())} has {wanted}; such a model "
                "cannot be exported"
            )
    for name in found.required:
        if not getattr(model, name):
            raise UserError(
                f"config.model.{name}=0: {found.class_name(())} needs it; such a model cannot be "
                "exported"
            )
    if not found.projects_equal and model.embedding_size == model.hidden_size:
        raise UserError(
            f"config.model.embedding_size={model.embedding_size}: {found.class_name(())} has no "
            "dense layer between tables and hidden states of one width; such a model cannot be "
            "exported, and 0 has none"
        )
    if found.token_types and not model.type_vocab_size:
        raise UserError(
            f"config.model.type_vocab_size=0: {found.class_name(())} has token types; such a "
            "model cannot be exported"
        )
    return found
