r"""Architectures: BERT with positional heads, ModernBERT's layers, and ALBERT's sharing.

    bert-jax ablate run --config=ablations/architectures --config.store=STORE \
        --workdir=A --at_once=2

Width 256 and 7 layers of 4 heads, as of `ettin_17m`, for 1,000 steps of 4,096 tokens without pairs;
STORE has a vocabulary of about 8,192 entries. All count before the first step (words, output bias,
near the identity); only BERT has positional heads, because they start a position table that the
hidden states hold. Each has the feed-forward width of its family. Measured:
docs/ablations/architectures.md.
"""

from ml_collections import ConfigDict

from bert_jax.config.ablation import ablation

# Of the counted start: what needs positional heads, as it is without them.
NO_HEADS = {
    "model.initializer": "random",
    "model.positional_heads.pmi": 0.0,
    "model.positional_heads.unread": 1.0,
}
MODERNBERT = NO_HEADS | {
    "model.layout": "modernbert",
    "model.position": "rotary",
    "model.norm_position": "pre",
    "model.first_attention_norm": False,
    "model.norm_bias": False,
    "model.linear_bias": False,
    "model.gated_mlp": True,
    "model.intermediate_size": 384,
    "model.local_attention": 128,
    "model.type_vocab_size": 0,
}
ALBERT = NO_HEADS | {
    "model.layout": "albert",
    "model.num_hidden_groups": 1,
    "model.embedding_size": 128,
}


def get_config() -> ConfigDict:
    return ablation(
        base="wiki_books_small",
        changes={
            "model.num_hidden_layers": 7,
            "data.pairing": "full_sentences",
            "data.short_seq_prob": 0.0,
            "phases[0].steps": 1000,
        },
        variants={"BERT": {}, "ModernBERT": MODERNBERT, "ALBERT": ALBERT},
        seeds=(0, 1, 2),
        equal="steps",
        measures=("full_sentences/token", "single/token"),
        primary="full_sentences/token",
    )
