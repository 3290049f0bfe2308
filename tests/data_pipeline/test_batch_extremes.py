"""Documents of extreme lengths, through to masked rows, in every pairing and masking mode."""

import functools
import itertools
import math

import numpy as np
import original_generator as original
import pytest
from made_batches import SPECIAL, VOCAB, joined, same, split_of
from test_pairing import original_pairs
from test_pairing_modes import original_blocks_of, original_swaps

from bert_jax.data_pipeline.batch import Batches
from bert_jax.data_pipeline.masking.masking_settings import MODES
from bert_jax.data_pipeline.masking.spec import MaskingSpec
from bert_jax.data_pipeline.pairing.modes import MODES as PAIRINGS
from bert_jax.data_pipeline.pairing.modes import PAIRS
from bert_jax.data_pipeline.plan.plan import PlanSpec

SEQ, SLOTS = 128, 20
STARTS = np.arange(VOCAB) % 3 != 0
STARTS[list(SPECIAL)] = True


def ids(count, seed=0):
    return np.random.default_rng(seed).integers(5, VOCAB, count).tolist()


EXTREMES = {
    "sentences of 100,000 tokens": [
        [ids(100_000)], [ids(2), ids(100_000, 1), ids(3)], [ids(4), ids(60)] * 9,
    ],
    "documents of one token": [[[5 + n]] for n in range(300)],
    "one-token sentences, and words without an end": [
        [[5 + n] for n in range(3000)], [[6] * 1000], [[9] * 126, [9] * 127],
    ],
}  # fmt: skip


def all_examples(batches):
    """Every example of an epoch: {name: values}, positions counted from its [CLS]."""
    made = joined([batches.evaluation_batch(index) for index in range(batches.batches_once)])
    for line, numbers in enumerate(made["example_ids"]):
        row = {name: values[line] for name, values in made.items()}
        used = row["masked_weights"] > 0
        for number in range(1, numbers.max() + 1):
            at = np.flatnonzero(numbers == number)
            slots = used & np.isin(row["masked_positions"], at)
            example = {
                "ids": row["input_ids"][at],
                "types": row["token_type_ids"][at],
                "positions": row["masked_positions"][slots] - at[0],
                "labels": row["masked_labels"][slots],
            }
            assert (row["position_ids"][at] == np.arange(len(at))).all()
            assert np.array_equal(at, at[0] + np.arange(len(at)))
            if "pair_labels" in row:
                assert row["cls_positions"][number - 1] == at[0]
                example["label"] = row["pair_labels"][number - 1 : number]
            if "span_left" in row:
                inside = row["span_weights"][slots] > 0
                for side in ("span_left", "span_right"):
                    example[side] = np.where(inside, row[side][slots] - at[0], 0)
                example["offsets"] = row["span_offsets"][slots]
                example["inside"] = inside
            yield example


def key_of(example):
    return tuple(tuple(values.tolist()) for values in example.values())


@functools.cache
def original_examples(name, pairing):
    """(ids, token types, label) of every example as the plain ports make them, before masks."""
    return sorted(_original_examples(EXTREMES[name], PlanSpec(SEQ, pairing=pairing)))


def _original_examples(documents, spec):
    split = split_of(documents)
    lengths = [[len(sentence) for sentence in document] for document in documents]
    if spec.pairing in PAIRS:
        if spec.pairing == "nsp":
            pairs = original_pairs(lengths, [0] * len(lengths), spec, 0)
        else:
            pairs = original_swaps(lengths, spec, 0)
        for a, b, label in pairs:
            row, types = original.add_special(
                split.tokens[a].tolist(), split.tokens[b].tolist(), SPECIAL.cls, SPECIAL.sep
            )
            yield tuple(row), tuple(types), int(label)
        return
    for block in original_blocks_of(lengths, spec, 0):
        row = [SPECIAL.cls]
        for _, tokens in itertools.groupby(block, lambda place: place[0]):
            row += [*split.tokens[[token for _, token in tokens]].tolist(), SPECIAL.sep]
        yield tuple(row), (0,) * len(row), 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_documents_become_whole_masked_examples(name, pairing, mode, tmp_path):
    split = split_of(EXTREMES[name])
    masking = MaskingSpec(SLOTS, masking=mode, span_boundary=mode == "span")
    padded = PlanSpec(SEQ, pairing=pairing)
    packed = PlanSpec(
        SEQ, pairing=pairing, row_tokens=4 * SEQ, row_predictions=4 * SLOTS, examples_per_row=32,
        predictions=tuple(masking.predictions(SEQ).tolist()),
    )  # fmt: skip
    alone, together = (
        Batches(split, spec, masking, 64, SPECIAL, VOCAB, tmp_path, word_starts=STARTS)
        for spec in (padded, packed)
    )  # fmt: skip
    examples = list(all_examples(alone))
    plain = []
    for example in examples:
        before, positions = example["ids"].copy(), example["positions"]
        before[positions] = example["labels"]
        label = int(example["label"][0]) if pairing in PAIRS else 0
        plain.append((tuple(before.tolist()), tuple(example["types"].tolist()), label))
        length = len(before)
        text = length - 2 - (pairing in PAIRS)
        if pairing == "full_sentences":
            text = length - 1 - int((before == SPECIAL.sep).sum())
        if mode == "span":
            assert len(positions) == min(SLOTS, math.ceil(0.15 * text))
        elif mode == "token":
            assert len(positions) == min(SLOTS, max(1, round(0.15 * length)))
        elif mode == "roberta":
            assert len(positions) - int(0.15 * length) in (0, 1)
        assert len(positions) <= SLOTS
        if mode != "roberta":  # which asks for special tokens too
            assert not set(before[positions].tolist()) & {SPECIAL.cls, SPECIAL.sep}
    assert sorted(plain) == original_examples(name, pairing)
    assert sorted(map(key_of, all_examples(together))) == sorted(map(key_of, examples))
    for batches in (alone, together):
        steps = batches.rows_per_epoch // 64 + 1  # straddles two epochs
        same(batches.batch(steps, [3, 1]), {k: v[[3, 1]] for k, v in batches.batch(steps).items()})
