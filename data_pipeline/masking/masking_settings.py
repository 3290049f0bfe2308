"""The settings of masking, declared once: as keys of `config.data`. Needs no numba."""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from bert_jax.data_pipeline.settings import Inside, Settings, Share, Words
from bert_jax.errors import UserError
from bert_jax.extensions.registry import Registry

# The values of `masking`. A new kind is a file that defines a `Mode`, and a row.
MODES: Final[Registry[Any]] = Registry(
    "kind of masking",
    "bert_jax.data_pipeline.masking.mode:Mode",
    {
        "token": "bert_jax.data_pipeline.masking.tokens:MODE",
        "whole_word": "bert_jax.data_pipeline.masking.words:MODE",
        "ngram": "bert_jax.data_pipeline.masking.ngrams:MODE",
        "span": "bert_jax.data_pipeline.masking.spans:MODE",
        "roberta": "bert_jax.data_pipeline.masking.roberta:MODE",
        "frequency": "bert_jax.data_pipeline.masking.frequency:MODE",
        "with_replacement": "bert_jax.data_pipeline.masking.with_replacement:MODE",
    },
    key="data.masking",
)
SPAN_TARGETS: Final = 15  # tokens per span predicted from its boundaries (--max-pair-targets)


@dataclass(frozen=True, kw_only=True)
class MaskingSettings(Settings):
    """Settings of masking.

    Attributes:
        masking: how positions are selected, one of `MODES`.
        max_ngram: words of the longest n-gram (ALBERT's).
        span_success, max_span: span lengths in words are geometric with this probability of ending
            after each word, up to max_span (SpanBERT's).
        frequency_exponent: a token that is c times in the training text is selected with a
            probability in proportion to c to the power of minus this (DistilBERT's).
        mask_rate: fraction of an example's tokens to predict.
        mask_share, random_share: fractions of these that become [MASK] and a random id; the rest
            stay unchanged.
        random_tokens: random ids are uniform over the vocabulary ("uniform", special and unused ids
            included, as in BERT), or follow the frequencies in the training text ("unigram", as in
            SpanBERT); with masking "roberta" never a special id other than [MASK].
        span_boundary: batches have the arrays of SpanBERT's objective.
        replaced_tokens: batches have the keys of the draws of replaced-token detection (ELECTRA's).
    """

    masking: Annotated[str, MODES] = "token"
    max_ngram: Words = 3
    span_success: Inside = 0.2
    max_span: Words = 10
    frequency_exponent: Share = 0.7
    mask_rate: Share = 0.15
    mask_share: Share = 0.8
    random_share: Share = 0.1
    random_tokens: Literal["uniform", "unigram"] = "uniform"
    span_boundary: bool = False
    replaced_tokens: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_share + self.random_share > 1:
            raise UserError(
                "config.data.mask_share + config.data.random_share exceeds 1; lower one"
            )
        if self.span_boundary and self.masking != "span":
            raise UserError(
                f'config.data.span_boundary requires config.data.masking="span", not '
                f'"{self.masking}"; change it or set span_boundary=False'
            )
