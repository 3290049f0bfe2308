"""RoFormer: modeling_roformer.py of transformers, a BERT with rotary positions and no pooler."""

from bert_jax.convert.layouts.layout import Layout

ROFORMER = Layout(
    layout="bert",
    position="rotary",
    norm_position="post",
    model_type="roformer",
    classes="RoFormer",
    base="roformer",
    constants={"rotary_value": False},
    widths=("embedding_size",),
    untrained=("roformer.encoder.embed_positions.",),  # sines and cosines
)
