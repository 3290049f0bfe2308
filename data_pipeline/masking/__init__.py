"""Masking for masked language modelling: select positions, store their ids as labels, replace them.

One file per way of selecting (`tokens`, `words`, `ngrams`, `spans`, `roberta`), `replace` for the
replacements, `spec` for the settings, and `apply`, which masks one example in place. Draws come
from four streams of the example's key, so that none depends on the draws used by another: 0
selects, 1 replaces, 2 draws n-gram lengths, 3 rounds RoBERTa's number of predictions.
"""

from bert_jax.data_pipeline.masking.apply import Scratch, Slots, budget, empty_scratch, mask_example
from bert_jax.data_pipeline.masking.spec import MODES, ROBERTA, TOKEN, WHOLE_WORD, MaskingSpec, Rule

__all__ = [
    "MODES",
    "ROBERTA",
    "TOKEN",
    "WHOLE_WORD",
    "MaskingSpec",
    "Rule",
    "Scratch",
    "Slots",
    "budget",
    "empty_scratch",
    "mask_example",
]  # fmt: skip
