"""Batches of every kind of row: packed, with and without pairs and spans, with static masks."""

import dataclasses

import numpy as np
import pytest
from made_batches import (
    BATCH,
    MASKING,
    SPEC,
    SPECIAL,
    VOCAB,
    batches_of,
    joined,
    random_documents,
    same,
    split_of,
)
from made_plans import make_plan

from bert_jax.data_pipeline.assemble import BatchArrays
from bert_jax.data_pipeline.batch import Batches
from bert_jax.data_pipeline.masking.spec import MaskingSpec
from bert_jax.data_pipeline.random.counter_rng import permute


@pytest.fixture(scope="module")
def documents():
    return random_documents(26)


STARTS = np.arange(VOCAB) % 3 != 0
PAIR_ARRAYS = {"cls_positions", "pair_labels", "pair_weights", "pair_sources"}
SPAN_ARRAYS = {"span_left", "span_right", "span_offsets", "span_weights"}
DRAW_ARRAYS = {"draw_keys"}


def packed_batches(documents, folder, pairing="nsp", **change):
    """Batches of packed rows, up to three examples of up to 40 tokens in each."""
    spec = dataclasses.replace(
        SPEC, pairing=pairing, row_tokens=120, row_predictions=18, examples_per_row=3,
        predictions=tuple(MASKING.predictions(40).tolist()),
    )  # fmt: skip
    split = split_of(documents)
    return Batches(split, spec, MASKING, BATCH, SPECIAL, VOCAB, folder, **change), spec


def test_rows_have_a_separator_after_every_sentence(documents, tmp_path):
    """One per sentence and two between documents, as fairseq-preprocess writes them."""
    spec = dataclasses.replace(
        SPEC, pairing="full_sentences", separators="sentences", short_seq_prob=0.0
    )
    unmasked = MaskingSpec(1, masking="roberta", mask_rate=0.0)
    batches = Batches(split_of(documents), spec, unmasked, BATCH, SPECIAL, VOCAB, tmp_path)
    plan = make_plan(split_of(documents), spec, 0)
    order = np.argsort(permute(batches._order(0), np.arange(plan.rows), plan.rows))
    made = joined([batches.evaluation_batch(index) for index in range(batches.batches_once)])
    assert not made["masked_weights"].any()
    stream = []
    for line in order.tolist():
        row = made["input_ids"][line][made["example_ids"][line] > 0].tolist()
        assert (row[0], row[-1]) == (SPECIAL.cls, SPECIAL.sep)
        assert not made["token_type_ids"][line].any()
        stream += row[1:]
    text = []
    most = spec.seq_length - 2
    for number, document in enumerate(documents):
        text += [SPECIAL.sep] if number else []
        for sentence in document:
            for at in range(0, len(sentence), most):  # cut where a block cannot hold it
                text += [*sentence[at : at + most], SPECIAL.sep]
    assert stream == text


def test_packed_rows_hold_robertas_masks(documents, tmp_path):
    """The number of predictions is drawn with the masks; the plan reserves the maximum."""
    masking = MaskingSpec(9, masking="roberta", mask_rate=0.2)
    spec = dataclasses.replace(
        SPEC, pairing="full_sentences", row_tokens=120, row_predictions=18, examples_per_row=3,
        predictions=tuple(masking.predictions(40).tolist()),
    )  # fmt: skip
    batches = Batches(split_of(documents), spec, masking, BATCH, SPECIAL, VOCAB, tmp_path)
    made = joined([batches.evaluation_batch(index) for index in range(batches.batches_once)])
    used = made["masked_weights"].sum(axis=1)
    assert 0 < used.max() <= 18
    labels = made["masked_labels"][made["masked_weights"] > 0]
    assert {SPECIAL.cls, SPECIAL.sep} <= set(labels.tolist())
    lengths = np.array([np.bincount(row[row > 0])[1:] for row in made["example_ids"]], object)
    wanted = 0.2 * sum(n for row in lengths for n in row)
    assert abs(used.sum() - wanted) < 4.4 * (0.25 * batches.rows_per_epoch * 3) ** 0.5 + 1


def test_packed_rows_have_the_shape_of_the_plan(documents, tmp_path):
    batches, spec = packed_batches(documents, tmp_path)
    plan = make_plan(split_of(documents), spec, 0)
    made = joined([batches.evaluation_batch(index) for index in range(batches.batches_once)])
    assert made["input_ids"].shape[1] == 120
    assert made["masked_labels"].shape[1] == 18
    assert made["cls_positions"].shape[1] == 3
    assert plan.rows < len(plan.row_example) == made["pair_weights"].sum()
    assert made["pair_labels"].sum() == plan.example_label.sum()
    alone = make_plan(split_of(documents), SPEC, 0)
    assert alone.rows == len(plan.row_example)


@pytest.mark.parametrize("pairing", ["nsp", "sop", "full_sentences", "doc_sentences", "single"])
def test_pair_arrays_come_with_a_pair_objective(documents, tmp_path, pairing):
    batches, _ = packed_batches(documents, tmp_path, pairing)
    expected = set(BatchArrays._fields) - SPAN_ARRAYS - DRAW_ARRAYS
    if pairing not in ("nsp", "sop"):
        expected -= PAIR_ARRAYS
    for batch in (batches.batch(3), batches.evaluation_batch(batches.batches_once - 1)):
        assert batch.keys() == expected
        numbers = batch["example_ids"].max(axis=1)
        assert numbers.max() == 3
        if pairing in ("nsp", "sop"):
            assert (batch["pair_weights"].sum(axis=1) == numbers).all()
        else:
            assert not batch["token_type_ids"].any()


def test_span_arrays_come_with_span_boundaries(documents, tmp_path):
    split = split_of(documents)

    def made(**change):
        spec = MaskingSpec(6, masking="span", **change)
        whole = Batches(split, SPEC, spec, BATCH, SPECIAL, VOCAB, tmp_path, word_starts=STARTS)
        return whole.batch(2) | {"last": whole.evaluation_batch(whole.batches_once - 1)}

    without, with_spans = made(), made(span_boundary=True)
    last, padded = without.pop("last"), with_spans.pop("last")
    assert with_spans.keys() - without.keys() == padded.keys() - last.keys() == SPAN_ARRAYS
    same({name: with_spans[name] for name in without}, without)
    for name in SPAN_ARRAYS:
        assert with_spans[name].shape == (BATCH, 6)
        assert with_spans[name].dtype == (np.float32 if name == "span_weights" else np.int32)
        assert not padded[name][-1].any()  # a row of padding
    assert 0 < with_spans["span_weights"].sum() < with_spans["masked_weights"].sum()


def test_masking_that_cannot_be_done_is_refused(documents, tmp_path):
    split = split_of(documents)
    for mode in ("whole_word", "ngram", "span"):
        with pytest.raises(ValueError, match=rf"{mode} needs \d+ word_starts"):
            Batches(split, SPEC, MaskingSpec(6, masking=mode), BATCH, SPECIAL, VOCAB, tmp_path)


def test_random_ids_follow_the_counts_of_the_split(tmp_path):
    documents = [[[5] * 30, [6] * 10], [[5] * 30, [6] * 10]]
    split = split_of(documents)
    spec = MaskingSpec(40, mask_rate=1.0, mask_share=0, random_share=1, random_tokens="unigram")

    def drawn(**change):
        batches = Batches(split, SPEC, spec, 200, SPECIAL, VOCAB, tmp_path, **change)
        batch = batches.batch(0)
        rows = np.arange(200)[:, None]
        ids = batch["input_ids"][rows, batch["masked_positions"]]
        return np.bincount(ids[batch["masked_weights"] > 0], minlength=VOCAB)

    found = drawn()
    assert found[5] + found[6] == found.sum()
    error = np.sqrt(0.75 * 0.25 / found.sum())
    assert abs(found[5] / found.sum() - 0.75) < 4.4 * error
    assert drawn(token_counts=np.eye(VOCAB, dtype=np.int64)[9])[9] == found.sum()


def test_static_masks_repeat_in_another_order(documents, tmp_path):
    """With two fixed sets, epochs 2 and 3 hold the masked rows of epochs 0 and 1."""
    spec = dataclasses.replace(SPEC, dupe_factor=2)
    batches = batches_of(documents, tmp_path, spec)
    dynamic = batches_of(documents, tmp_path)
    count = batches.rows_per_epoch

    def rows(made, epoch):
        steps = range(epoch * count // BATCH, ((epoch + 1) * count - 1) // BATCH + 1)
        whole = joined([made.batch(step) for step in steps])
        start = epoch * count - steps[0] * BATCH
        parts = [whole[n][start : start + count] for n in ("input_ids", "masked_labels")]
        return [str(row.tolist()) for row in np.concatenate(parts, axis=1)]

    for epoch in (0, 2, 4):
        assert sorted(rows(batches, epoch)) == sorted(rows(batches, 0))
    assert rows(batches, 2) != rows(batches, 0)
    assert rows(batches, 0) == rows(dynamic, 0)
    assert rows(batches, 1) == rows(dynamic, 1)
    assert sorted(rows(dynamic, 2)) != sorted(rows(dynamic, 0))
    # Epoch 3 may drop or repeat other rows of set 1 than epoch 1 does, but adds no new ones.
    epoch = make_plan(split_of(documents), SPEC, 1).rows
    assert len(set(rows(batches, 3)) | set(rows(batches, 1))) <= max(epoch, count)
