"""Masked language modelling: choose positions, keep their ids as labels, replace them.

One file per way of choosing (`tokens`, `words`, `ngrams`, `spans`, `roberta`), `replace` for what
is put in their place, `spec` for the choices by name, `apply` for the loop's side of it: one
example, masked in place. All draws come from four streams of the example's key, so that none
depends on how far another got: 0 chooses, 1 replaces, 2 gives the lengths of n-grams, 3 rounds
RoBERTa's number of predictions.
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
