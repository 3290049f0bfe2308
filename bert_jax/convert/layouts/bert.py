"""BERT: modeling_bert.py of transformers. Its names are those of the table in `convert/weights.py`.

BioBERT, SciBERT, FinBERT, SpanBERT, multilingual BERT and herBERT have this layout.
"""

from bert_jax.convert.layouts.layout import Layout

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
        "Model",
    ),
    constants={"position_embedding_type": "absolute"},
)
