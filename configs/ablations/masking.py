"""Kinds of masking: single tokens, whole words, n-grams, spans, spans with their boundaries.

    bert-jax ablate run --config=ablations/masking --config.store=STORE --workdir=A --at_once=2

The demo's model on single documents, at equal real tokens; 15 % of the tokens in every variant. The
boundary objective costs a third more FLOPs; it is compared with the same spans without it, too.
Published (fine-tuned, development sets; Joshi et al. 2019, 1.2 million steps):

    SpanBERT table 6 (pairs with NSP)   SQuAD 2.0  NewsQA  TriviaQA  coref  MNLI-m  QNLI  GLUE
    subword tokens                           83.8    72.0      76.3   77.7    86.7  92.5  83.2
    whole words                              84.3    72.8      77.1   76.6    86.3  92.8  82.9
    geometric spans                          85.4    73.0      78.8   76.4    87.0  93.3  83.4

    SpanBERT table 7
    spans, pairs with NSP                    85.4    73.0      78.8   76.4    87.0  93.3  83.4
    spans, single sequences                  86.7    73.4      80.0   76.3    87.3  93.8  83.8
    the same with span boundaries            86.8    74.1      80.3   79.0    87.6  93.9  84.0

Measured: docs/ablations/masking.md.
"""

from ml_collections import ConfigDict

from bert_jax.config.ablation import ablation
from bert_jax.configs.ablations import RANDOM_WORDS

TASKS = ("SQuAD 2.0", "NewsQA", "TriviaQA", "coref", "MNLI-m", "QNLI", "GLUE")
MASKING = (
    ("pairs with NSP", *TASKS),
    ("subword tokens", "83.8", "72.0", "76.3", "77.7", "86.7", "92.5", "83.2"),
    ("whole words", "84.3", "72.8", "77.1", "76.6", "86.3", "92.8", "82.9"),
    ("geometric spans", "85.4", "73.0", "78.8", "76.4", "87.0", "93.3", "83.4"),
)
OBJECTIVES = (
    ("spans", *TASKS),
    ("pairs with NSP", "85.4", "73.0", "78.8", "76.4", "87.0", "93.3", "83.4"),
    ("single sequences", "86.7", "73.4", "80.0", "76.3", "87.3", "93.8", "83.8"),
    ("single, span boundaries", "86.8", "74.1", "80.3", "79.0", "87.6", "93.9", "84.0"),
)


def get_config() -> ConfigDict:
    return ablation(
        base="demo",
        changes={
            **RANDOM_WORDS,
            "phases[0].steps": 1600,
            "checkpoint.every_steps": 250,
            "data.pairing": "single",
        },
        variants={
            "token": {},
            "whole_word": {"data.masking": "whole_word"},
            "ngram": {"data.masking": "ngram"},
            "span": {"data.masking": "span"},
            "span_boundary": {"data.masking": "span", "data.span_boundary": True},
        },
        against={"span_boundary": "span"},
        equal="real_tokens",
        measures=("single/span", "single/token"),
        primary="single/span",
        published={
            "SpanBERT, table 6 (fine-tuned, development sets)": MASKING,
            "SpanBERT, table 7 (the same)": OBJECTIVES,
        },
    )
