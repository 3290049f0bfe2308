"""The architectures of transformers that compute our models, by the form of the model."""

from collections.abc import Collection
from dataclasses import dataclass

from bert_jax.config.schema import ModelConfig
from bert_jax.errors import UserError
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.next_sentence import NEXT_SENTENCE


@dataclass(frozen=True)
class Architecture:
    """A family of classes, such as BertModel and BertForMaskedLM."""

    model_type: str  # in config.json
    classes: str  # the first part of the names of its classes
    base: str  # prefix of its tensors, `base_model_prefix`
    names: tuple[tuple[str, str], ...] = ()  # parts of BERT's tensor names and its own, in order
    pairs: bool = False  # whether it has a pooler and a sentence-pair head next to the MLM head

    def tensor_name(self, name: str) -> str:
        """Returns the name of a tensor, or a prefix of names, from that in BERT."""
        for part, own in (("bert.", f"{self.base}."), *self.names):
            name = name.replace(part, own)
        return name

    def class_name(self, heads: Collection[str]) -> str:
        """Returns the class that loads every exported weight of a model with these heads."""
        pair = self.pairs and NEXT_SENTENCE.head in heads
        if MASKED_LM.head in heads:
            return f"{self.classes}{'ForPreTraining' if pair else 'ForMaskedLM'}"
        return f"{self.classes}{'ForNextSentencePrediction' if pair else 'Model'}"


BERT = Architecture("bert", "Bert", "bert", pairs=True)
ROFORMER = Architecture("roformer", "RoFormer", "roformer")
PRE_LAYER_NORM = Architecture(
    "roberta-prelayernorm",
    "RobertaPreLayerNorm",
    "roberta_prelayernorm",
    (
        (".attention.output.LayerNorm", ".attention.LayerNorm"),
        (".output.LayerNorm", ".intermediate.LayerNorm"),
        ("cls.predictions.transform.LayerNorm", "lm_head.layer_norm"),
        ("cls.predictions.transform.", "lm_head."),
        ("cls.predictions.", "lm_head."),
    ),
)
FORMS = {  # by config.model.position and .norm_position
    ("learned", "post"): BERT,
    ("rotary", "post"): ROFORMER,
    ("learned", "pre"): PRE_LAYER_NORM,
}


def find_architecture(model: ModelConfig) -> Architecture:
    """Returns the architecture that computes a model; UserError if transformers has none."""
    found = FORMS.get((model.position, model.norm_position))
    # The head of RobertaPreLayerNormForMaskedLM computes GELU with erf, whatever `hidden_act`.
    if not found or (found is PRE_LAYER_NORM and model.hidden_act != "gelu"):
        raise UserError(
            f'config.model: transformers has no class with position="{model.position}", '
            f'norm_position="{model.norm_position}" and hidden_act="{model.hidden_act}"; such a '
            "model cannot be exported"
        )
    return found
