"""DistilBERT: modeling_distilbert.py of transformers, a BERT without token types and pooler."""

from bert_jax.convert.layouts.layout import CHOICE, CLASSIFIER, QA, TAGGER, Layout

DISTILBERT = Layout(
    layout="distilbert",
    position="learned",
    norm_position="post",
    model_type="distilbert",
    prefix="DistilBert",
    base="distilbert",
    names=(
        (".encoder.layer.", ".transformer.layer."),
        ("attention.self.query", "attention.q_lin"),
        ("attention.self.key", "attention.k_lin"),
        ("attention.self.value", "attention.v_lin"),
        ("attention.output.dense", "attention.out_lin"),
        ("attention.output.LayerNorm", "sa_layer_norm"),
        ("intermediate.dense", "ffn.lin1"),
        ("output.dense", "ffn.lin2"),
        ("output.LayerNorm", "output_layer_norm"),
        ("cls.predictions.transform.dense", "vocab_transform"),
        ("cls.predictions.transform.LayerNorm", "vocab_layer_norm"),
        ("cls.predictions.decoder", "vocab_projector"),
        ("cls.predictions.bias", "vocab_projector.bias"),
        ("classifier.dense.", "pre_classifier."),
        ("choice.dense.", "pre_classifier."),
        ("classifier.out_proj.", "classifier."),
    ),
    token_types=False,
    dense=dict.fromkeys((CLASSIFIER, CHOICE), "relu"),
    head_dropout={
        CLASSIFIER: ("seq_classif_dropout", 0.2),
        CHOICE: ("seq_classif_dropout", 0.2),
        TAGGER: ("dropout", None),
        QA: ("qa_dropout", 0.1),
    },
    keys={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    own_fixed={"layer_norm_eps": 1e-12, "type_vocab_size": 0},
)
