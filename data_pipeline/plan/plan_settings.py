"""The settings of mixing and pairing, declared once: as keys of `config.data`."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from bert_jax.data_pipeline.pairing import modes
from bert_jax.data_pipeline.settings import Settings, Share, Whole, Within
from bert_jax.errors import UserError

Smoothing = Annotated[float, Within(0, 10)]
# The most visits to a document per epoch: its weight times its language's factor.
MOST_VISITS: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class PlanSettings(Settings):
    """Settings of sampling: how often each text is read, and how examples are made from it.

    Attributes:
        source_weights: "books=2,wiki=0.5": visits to each document of a source per epoch; a source
            without a weight has 1.
        language_smoothing: exponent on language shares (multilingual BERT: 0.7), see `mixing`;
            above 10 only the largest language would be read.
        pairing: kind of examples, see `pairing`.
        separators: where a block of sentences has a [SEP] besides its last: between documents, or
            after sentences (fairseq), see `pairing.blocks`.
        negative_pool: random second segments come from documents of the same source and language
            ("source"), or of the entire split ("corpus", the paper).
        short_seq_prob: fraction of documents with a random shorter target length.
        dupe_factor: 0 for new pairs and masks every epoch; n to cycle through n fixed sets.
    """

    source_weights: str = ""
    language_smoothing: Smoothing = 1.0
    pairing: modes.Pairing = modes.DEFAULT_PAIRING
    separators: modes.Separators = "documents"
    negative_pool: Literal["source", "corpus"] = "source"
    short_seq_prob: Share = 0.1
    dupe_factor: Whole = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_weights(self.source_weights)
        if self.separators == "sentences" and self.pairing not in modes.SEPARATED:
            raise UserError(
                'config.data.separators="sentences" does not apply to '
                f'config.data.pairing="{self.pairing}"; set separators="documents", or pairing to '
                f"{' or '.join(modes.SEPARATED)}"
            )


# Every document once: how held-out text is read.
UNMIXED: Final[dict[str, Any]] = {"source_weights": "", "language_smoothing": 1.0}


def parse_weights(text: str) -> dict[str, float]:
    """Parses "books=2,wiki=0.5" into weights by source.

    Raises:
        UserError: the text has another format, a source has two weights, or a weight is invalid.
    """
    where = "config.data.source_weights"
    weights: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, number = part.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            equals = ""
        if not (equals and name.strip()):
            raise UserError(
                f'{where}: "{part}" is not of the form source=number; write "books=2,wiki=0.5"'
            )
        if not (math.isfinite(weight) and 0 <= weight <= MOST_VISITS):
            raise UserError(f"{where}: {part} should be from 0 to {MOST_VISITS}")
        if name.strip() in weights:
            raise UserError(f'{where}: "{name.strip()}" has more than one weight; keep one')
        weights[name.strip()] = weight
    return weights
