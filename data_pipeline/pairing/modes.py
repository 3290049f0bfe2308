"""The kinds of pairing, by name."""

from typing import Final, Literal, get_args

Pairing = Literal["nsp", "sop", "full_sentences", "doc_sentences", "single"]
Separators = Literal["documents", "sentences"]
MODES: Final[tuple[Pairing, ...]] = get_args(Pairing)
DEFAULT_PAIRING: Final[Pairing] = "nsp"
PAIRS: Final = ("nsp", "sop")  # may take a second segment from another document
SWAPPED: Final = ("sop",)  # have the two segments in the other order in half of the examples
SEPARATED: Final = ("full_sentences", "doc_sentences")  # may have [SEP] after each sentence
# Of a kind with labels: the meaning of 0 and of 1.
LABELS: Final = {"nsp": ("B follows A", "B is random"), "sop": ("in order", "swapped or random")}
# The same labels as an argument of BertForPreTraining and AlbertForPreTraining of transformers.
ARGUMENTS: Final = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}
