"""Next-sentence prediction or not, and other ways to make examples from sentences.

    bert-jax ablate run --config=ablations/nsp --config.store=STORE --workdir=A --at_once=2

The demo's model, at equal real tokens in packed rows: sentence pairs fill rows of one example,
other examples do not, so that without packing equal tokens are a third more steps and FLOPs. Every
variant is measured on masked tokens of single documents. Published (fine-tuned, development sets):

    BERT table 5 (Devlin et al. 2018), base     MNLI-m  QNLI  MRPC  SST-2  SQuAD F1
    with NSP                                      84.4  88.4  86.7   92.7      88.5
    without NSP                                   83.9  84.9  86.5   92.6      87.9

    RoBERTa table 2 (Liu et al. 2019), base     SQuAD 1.1/2.0  MNLI-m  SST-2  RACE
    segment pairs, NSP                              90.4/78.7    84.0   92.9  64.2
    sentence pairs, NSP                             88.7/76.2    82.9   92.1  63.0
    full sentences                                  90.4/79.1    84.7   92.5  64.8
    doc sentences                                   90.6/79.7    84.7   92.7  65.6

`nsp` here has segment pairs. ALBERT (Lan et al. 2019) replaces NSP by the order of two segments,
`sop`. Measured: docs/ablations/nsp.md.
"""

from ml_collections import ConfigDict

from bert_jax.config.ablation import ablation
from bert_jax.configs.ablations import RANDOM_WORDS

BERT = (
    ("base", "MNLI-m", "QNLI", "MRPC", "SST-2", "SQuAD F1"),
    ("with NSP", "84.4", "88.4", "86.7", "92.7", "88.5"),
    ("without NSP", "83.9", "84.9", "86.5", "92.6", "87.9"),
)
ROBERTA = (
    ("base", "SQuAD 1.1/2.0", "MNLI-m", "SST-2", "RACE"),
    ("segment pairs, NSP", "90.4/78.7", "84.0", "92.9", "64.2"),
    ("sentence pairs, NSP", "88.7/76.2", "82.9", "92.1", "63.0"),
    ("full sentences", "90.4/79.1", "84.7", "92.5", "64.8"),
    ("doc sentences", "90.6/79.7", "84.7", "92.7", "65.6"),
)


def get_config() -> ConfigDict:
    return ablation(
        base="demo",
        changes={
            **RANDOM_WORDS,
            "phases[0].steps": 2900,
            "phases[0].batch_size": 8,
            "phases[0].examples_per_row": 8,
            "phases[0].row_length": 256,
            "checkpoint.every_steps": 250,
            "evaluation.batches": 32,
        },
        variants={
            "nsp": {},
            "full_sentences": {"data.pairing": "full_sentences"},
            "doc_sentences": {"data.pairing": "doc_sentences"},
            "single": {"data.pairing": "single"},
            "sop": {"data.pairing": "sop"},
        },
        equal="real_tokens",
        measures=("single/token", "single/span"),
        primary="single/token",
        published={
            "BERT, table 5 (fine-tuned, development sets)": BERT,
            "RoBERTa, table 2 (the same)": ROBERTA,
        },
    )
