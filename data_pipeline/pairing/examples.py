"""The examples of an epoch, by the kind of pairing."""

from collections.abc import Iterator

import numpy as np

from bert_jax.data_pipeline.pairing.blocks import make_blocks
from bert_jax.data_pipeline.pairing.lengths import Examples, Pools, Texts
from bert_jax.data_pipeline.pairing.modes import Pairing, Separators
from bert_jax.data_pipeline.pairing.pairs import make_pairs


def make_examples(
    pairing: Pairing,
    texts: Texts,
    visits: np.ndarray,
    pools: Pools | None,
    *,
    seq_length: int,
    short_seq_prob: float,
    key: np.uint64,
    separators: Separators,
) -> Iterator[Examples]:
    """Yields the examples of an epoch: `make_pairs` if `pools` is given, else `make_blocks`."""
    if pools is not None:
        return make_pairs(
            texts, visits, pools, seq_length=seq_length, short_seq_prob=short_seq_prob, key=key,
            swap=pairing == "sop",
        )  # fmt: skip
    return make_blocks(
        texts, visits, seq_length=seq_length, short_seq_prob=short_seq_prob, key=key,
        cross=pairing == "full_sentences", drop=pairing == "single",
        sentences=separators == "sentences",
    )  # fmt: skip
