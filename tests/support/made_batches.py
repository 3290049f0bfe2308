"""Random documents and their batches, for the tests of batches."""

import numpy as np
from stores import StoredDocument, make_split

from bert_jax.data_pipeline.batch import Batches
from bert_jax.data_pipeline.masking.spec import MaskingSpec
from bert_jax.data_pipeline.plan.plan import PlanSpec
from bert_jax.data_pipeline.tokenizer.tokenizer import SpecialIds

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
VOCAB = 5000
SPEC = PlanSpec(40, seed=11, phase=1)
MASKING = MaskingSpec(6)
BATCH = 8


def random_documents(count, seed=0, sentences=12, vocab_size=VOCAB):
    rng = np.random.default_rng(seed)
    return [
        [
            rng.integers(5, vocab_size, rng.integers(1, 15)).tolist()
            for _ in range(rng.integers(1, sentences + 1))
        ]
        for _ in range(count)
    ]


def split_of(documents, vocab_size=VOCAB):
    return make_split("train", [StoredDocument(d, source=7) for d in documents], vocab_size)


def batches_of(documents, folder, spec=SPEC, vocab_size=VOCAB, batch_size=BATCH):
    split = split_of(documents, vocab_size)
    return Batches(split, spec, MASKING, batch_size, SPECIAL, vocab_size, folder)


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def joined(parts):
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
