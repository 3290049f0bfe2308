"""RobertaPreLayerNorm of transformers: a RoBERTa with LayerNorm before each branch."""

from bert_jax.convert.layouts.layout import Layout
from bert_jax.convert.layouts.roberta import HEAD_DROPOUT, LM_HEAD

ROBERTA_PRELAYERNORM = Layout(
    layout="bert",
    position="learned",
    norm_position="pre",
    model_type="roberta-prelayernorm",
    prefix="RobertaPreLayerNorm",
    base="roberta_prelayernorm",
    names=(
        (".attention.output.LayerNorm", ".attention.LayerNorm"),
        (".output.LayerNorm", ".intermediate.LayerNorm"),
        *LM_HEAD,
    ),
    with_pooler=("ForMultipleChoice", "Model"),
    positions_after_pad=True,
    only_gelu=True,
    classifier_dense="tanh",
    classifier_drops_input=True,
    head_dropout=HEAD_DROPOUT,
    constants={"position_embedding_type": "absolute"},
)
