"""The kinds of masking, by name. To add one, write a file with a `MODE` and list it here.

The names are available without numba: a file is imported when its mode is used.
"""

from typing import Final

# The values of `config.data.masking`, their modules, and the settings that only they use.
MODES: Final[dict[str, str]] = {
    "token": "bert_jax.data_pipeline.masking.tokens",
    "whole_word": "bert_jax.data_pipeline.masking.words",
    "ngram": "bert_jax.data_pipeline.masking.ngrams",  # max_ngram
    "span": "bert_jax.data_pipeline.masking.spans",  # span_success, max_span, span_boundary
    "roberta": "bert_jax.data_pipeline.masking.roberta",
}
