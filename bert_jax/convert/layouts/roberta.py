"""RoBERTa: modeling_roberta.py of transformers. CamemBERT, PhoBERT and XLM-R have this layout."""

from bert_jax.convert.layouts.layout import CHOICE, CLASSIFIER, TAGGER, Layout

ROBERTA = Layout(
    layout="roberta",
    position="learned",
    norm_position="post",
    model_type="roberta",
    prefix="Roberta",
    base="roberta",
    names=(
        ("cls.predictions.transform.LayerNorm", "lm_head.layer_norm"),
        ("cls.predictions.transform.", "lm_head."),
        ("cls.predictions.", "lm_head."),
    ),
    other_types={"camembert": "Camembert", "xlm-roberta": "XLMRoberta"},
    reads_decoder_bias=True,
    with_pooler=("ForMultipleChoice", "Model"),
    positions_after_pad=True,
    only_gelu=True,
    dense={CLASSIFIER: "tanh"},
    classifier_drops_input=True,
    head_dropout={
        **dict.fromkeys((CLASSIFIER, TAGGER), ("classifier_dropout", None)),
        CHOICE: ("hidden_dropout_prob", None),
    },
    constants={"position_embedding_type": "absolute"},
)
