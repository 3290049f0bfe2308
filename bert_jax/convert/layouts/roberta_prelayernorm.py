"""RobertaPreLayerNorm of transformers: a RoBERTa with LayerNorm before each branch."""

from dataclasses import replace

from bert_jax.convert.layouts.roberta import ROBERTA

ROBERTA_PRELAYERNORM = replace(
    ROBERTA,
    layout="bert",
    norm_position="pre",
    model_type="roberta-prelayernorm",
    prefix="RobertaPreLayerNorm",
    base="roberta_prelayernorm",
    names=(
        (".attention.output.LayerNorm", ".attention.LayerNorm"),
        (".output.LayerNorm", ".intermediate.LayerNorm"),
        *ROBERTA.names,
    ),
    other_types={},
)
