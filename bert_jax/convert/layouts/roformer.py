"""RoFormer: modeling_roformer.py of transformers, a BERT with rotary positions and no pooler."""

from bert_jax.convert.layouts.layout import CLASSIFIER, TAGGER, Layout

ROFORMER = Layout(
    layout="bert",
    position="rotary",
    norm_position="post",
    model_type="roformer",
    prefix="RoFormer",
    base="roformer",
    has_sinusoids=True,
    without=("ForMultipleChoice",),  # it reads the last position, padding or not
    dense={CLASSIFIER: "hidden_act"},
    classifier_drops_input=True,
    head_dropout=dict.fromkeys((CLASSIFIER, TAGGER), ("hidden_dropout_prob", None)),
    constants={"rotary_value": False},
    widths=("embedding_size",),
)
