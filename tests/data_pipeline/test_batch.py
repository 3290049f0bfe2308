"""Batches compared with the port of the original; independence of rows and hosts."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import original_generator as original
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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

from bert_jax.data_pipeline.assemble import Assembler
from bert_jax.data_pipeline.batch import Batches
from bert_jax.data_pipeline.masking.spec import MaskingSpec
from bert_jax.data_pipeline.plan.cache import Plans
from bert_jax.data_pipeline.plan.plan import Plan, PlanSpec
from bert_jax.data_pipeline.random import counter_rng
from bert_jax.errors import UserError


@pytest.fixture(scope="module")
def documents():
    return random_documents(26)


@pytest.fixture(scope="module")
def batches(documents, tmp_path_factory):
    return batches_of(documents, tmp_path_factory.mktemp("plans"))


def original_rows(documents, spec, epoch, vocab_size=VOCAB):
    """Every example of an epoch as the original would make it, in the order of the plan."""
    pairing = original.stream_key(spec.seed, spec.phase, epoch, counter_rng.PAIRING)
    masking = original.stream_key(spec.seed, spec.phase, epoch, counter_rng.MASKING)
    rows = []
    for index in range(len(documents)):
        rng = original.PairDraws(original.fold(pairing, index))
        for a, b, is_random in original.create_pairs(
            documents, index, spec.seq_length, spec.short_seq_prob, rng
        ):
            plain, segments = original.add_special(a, b, SPECIAL.cls, SPECIAL.sep)
            rng_masks = original.MaskDraws(original.fold(masking, len(rows)))
            ids, positions, labels = original.mask(
                plain, SPECIAL.cls, SPECIAL.sep, SPECIAL.mask, vocab_size,
                MASKING.max_predictions, rng_masks,
            )  # fmt: skip
            empty = [0] * (spec.seq_length - len(ids))
            free = [0] * (MASKING.max_predictions - len(positions))
            rows.append(
                {
                    "input_ids": ids + [SPECIAL.pad] * len(empty),
                    "token_type_ids": segments + empty,
                    "example_ids": [1] * len(ids) + empty,
                    "position_ids": list(range(len(ids))) + empty,
                    "masked_positions": positions + free,
                    "masked_labels": labels + free,
                    "masked_weights": [1.0] * len(positions) + free,
                    "cls_positions": [0],
                    "pair_labels": [int(is_random)],
                    "pair_weights": [1.0],
                    "pair_sources": [7],
                }
            )
    return rows


def permuted(rows, epoch, spec=SPEC):
    key = np.uint64(original.stream_key(spec.seed, spec.phase, epoch, counter_rng.ORDER))
    return [rows[i] for i in counter_rng.permute(key, np.arange(len(rows)), len(rows))]


def padding_row(spec=SPEC):
    slots, length = MASKING.max_predictions, spec.seq_length
    widths = dict.fromkeys(("token_type_ids", "example_ids", "position_ids"), length)
    widths |= dict.fromkeys(("masked_positions", "masked_labels", "masked_weights"), slots)
    widths |= dict.fromkeys(("cls_positions", "pair_labels", "pair_weights", "pair_sources"), 1)
    return {"input_ids": [SPECIAL.pad] * length} | {n: [0] * w for n, w in widths.items()}


def assert_rows(batch, rows):
    for name, values in batch.items():
        assert values.tolist() == [row[name] for row in rows], name


@pytest.mark.parametrize("vocab_size", [VOCAB, 70_000])  # uint16 and uint32 tokens
def test_one_pass_equals_the_original(tmp_path, vocab_size):
    documents = random_documents(20, seed=1, vocab_size=vocab_size)
    batches = batches_of(documents, tmp_path, vocab_size=vocab_size)
    rows = permuted(original_rows(documents, SPEC, 0, vocab_size), 0)
    made = joined([batches.evaluation_batch(index) for index in range(batches.batches_once)])
    rows += [padding_row()] * (batches.batches_once * BATCH - len(rows))
    assert_rows(made, rows)


def test_training_rows_are_the_permuted_originals(documents, batches):
    """Three epochs, with the batches that span two, computed from the definitions alone."""
    epoch_rows = batches.rows_per_epoch
    assert epoch_rows % BATCH  # else no batch straddles
    rows = []
    for epoch in range(3):
        order = permuted(original_rows(documents, SPEC, epoch), epoch)
        rows += [order[place % len(order)] for place in range(epoch_rows)]
    steps = len(rows) // BATCH
    assert_rows(joined([batches.batch(step) for step in range(steps)]), rows[: steps * BATCH])


def test_shapes_and_types(batches):
    batch = batches.batch(0)
    widths = dict.fromkeys(("input_ids", "token_type_ids", "example_ids", "position_ids"), 40)
    widths |= dict.fromkeys(("masked_positions", "masked_labels", "masked_weights"), 6)
    widths |= dict.fromkeys(("cls_positions", "pair_labels", "pair_weights", "pair_sources"), 1)
    assert {name: values.shape for name, values in batch.items()} == {
        name: (BATCH, width) for name, width in widths.items()
    }
    for name, values in batch.items():
        assert values.dtype == (np.float32 if name.endswith("weights") else np.int32), name
        assert values.flags.c_contiguous, name
        assert values.flags.writeable, name


def test_with_one_example_per_row_the_fill_rate_is_the_highest_possible(batches):
    seen = [batches.evaluation_batch(step) for step in range(batches.batches_once)]
    real = sum(int((batch["example_ids"] > 0).sum()) for batch in seen)
    rate = real / (batches.rows_per_epoch * 40)
    assert batches.fill_rate() == (pytest.approx(rate), pytest.approx(rate))


@settings(max_examples=60, deadline=None)
@given(step=st.integers(0, 300), rows=st.lists(st.integers(0, BATCH - 1), max_size=12))
def test_any_rows_in_any_order(batches, step, rows):
    whole = batches.batch(step)
    same(batches.batch(step, rows), {name: values[rows] for name, values in whole.items()})
    once = batches.evaluation_batch(step % batches.batches_once)
    part = batches.evaluation_batch(step % batches.batches_once, np.array(rows, np.int32))
    same(part, {name: values[rows] for name, values in once.items()})


@settings(max_examples=30, deadline=None)
@given(step=st.integers(0, 300), owners=st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_hosts_make_the_same_global_batch(batches, documents, step, owners, tmp_path_factory):
    parts, order = [], []
    for host in range(4):
        mine = [row for row, owner in enumerate(owners) if owner == host]
        own = batches_of(documents, tmp_path_factory.getbasetemp() / "hosts")
        parts.append(own.batch(step, mine))
        order += mine
    whole = batches.batch(step)
    same(joined(parts), {name: values[order] for name, values in whole.items()})


def test_nothing_depends_on_what_was_asked_before(batches, documents, tmp_path):
    fresh = batches_of(documents, tmp_path)
    late = fresh.batch(97)
    for step in (3, 96, 98, 0):
        fresh.batch(step)
    same(fresh.batch(97), late)
    same(batches.batch(97), late)


def test_batches_differ_by_step_seed_and_phase(batches, documents, tmp_path):
    def ids(**change):
        spec = dataclasses.replace(SPEC, **change)
        return batches_of(documents, tmp_path, spec).batch(0)["input_ids"].tolist()

    seen = [ids(), ids(seed=12), ids(phase=2), batches.batch(1)["input_ids"].tolist()]
    assert all(a != b for i, a in enumerate(seen) for b in seen[:i])


def test_masks_change_with_the_epoch(tmp_path):
    # Two documents of one sentence always pair alike: only order and masks can differ.
    sentences = [[list(range(5, 20))], [list(range(20, 35))]]
    batches = batches_of(sentences, tmp_path, batch_size=2)
    labels = {str(np.sort(batches.batch(s)["masked_labels"], None).tolist()) for s in range(20)}
    assert len(labels) > 15


def test_the_next_epoch_is_prepared_in_the_second_half_of_one(documents, tmp_path, monkeypatch):
    prepared = []
    monkeypatch.setattr(Plans, "prepare", lambda self, epoch: prepared.append(epoch))
    batches = batches_of(documents, tmp_path)
    batches.evaluation_batch(batches.batches_once - 1)
    batches.batch(0)
    assert prepared == []
    batches.batch(batches.rows_per_epoch // BATCH - 1)
    assert prepared == [1]


def test_batches_are_new_arrays(batches):
    first = batches.batch(0)
    kept = {name: values.copy() for name, values in first.items()}
    second = batches.batch(1)
    assert not any(np.shares_memory(first[name], second[name]) for name in first)
    same(first, kept)


def test_threads_make_the_same_batches(batches):
    expected = [batches.batch(step) for step in range(40)]
    with ThreadPoolExecutor(4) as pool:
        for got, want in zip(pool.map(batches.batch, range(40)), expected, strict=True):
            same(got, want)


def examples_of(batches, epoch):
    """The example in each of the R rows of an epoch, identified by its unmasked tokens."""
    rows = range(epoch * batches.rows_per_epoch, (epoch + 1) * batches.rows_per_epoch)
    found = []
    for row in rows:
        batch = batches.batch(row // BATCH, [row % BATCH])
        ids, filled = batch["input_ids"][0].copy(), batch["masked_weights"][0] > 0
        ids[batch["masked_positions"][0][filled]] = batch["masked_labels"][0][filled]
        found.append(tuple(ids.tolist()))
    return found


def test_an_epoch_drops_its_surplus_and_repeats_its_shortage(documents, batches):
    split = split_of(documents)
    shapes = set()
    for epoch in range(1, 12):
        count = make_plan(split, SPEC, epoch).rows
        shapes.add(np.sign(count - batches.rows_per_epoch))
        # Unmasked rows of this seed are all different, so they identify their examples.
        distinct = len(set(examples_of(batches, epoch)))
        assert distinct == min(count, batches.rows_per_epoch)
    assert shapes >= {-1, 1}  # both cases were met


def test_many_epochs_in_one_batch(tmp_path):
    batches = batches_of([[[5, 6, 7]], [[8, 9]]], tmp_path, batch_size=50)
    assert batches.rows_per_epoch == 2
    batch = batches.batch(1_000_000)
    assert (batch["pair_weights"] == 1).all()
    assert (batch["pair_labels"] == 1).all()  # documents of one sentence
    assert (batch["input_ids"][:, 0] == SPECIAL.cls).all()


def test_once_covers_every_row_exactly_once(batches):
    made = joined([batches.evaluation_batch(index) for index in range(batches.batches_once)])
    real = made["pair_weights"][:, 0] > 0
    assert real.sum() == batches.rows_per_epoch
    assert real[: batches.rows_per_epoch].all()
    assert made["example_ids"][~real].sum() == 0
    assert made["masked_weights"][~real].sum() == 0
    assert len(made["input_ids"]) - batches.rows_per_epoch < BATCH
    same(
        batches.evaluation_batch(batches.batches_once + 5, [0]),
        {n: np.array([v]) for n, v in padding_row().items()},
    )


@pytest.mark.parametrize("rows", [[-1], [BATCH]])
def test_rows_outside_the_batch_are_refused(batches, rows):
    with pytest.raises(ValueError, match=r"rows must be in \[0, 8\)"):
        batches.batch(0, rows)


def test_negative_steps_are_refused(batches):
    with pytest.raises(ValueError, match="step is -1"):
        batches.batch(-1)


def test_errors_name_the_source(tmp_path):
    split = split_of([[[5, 6]]])
    with pytest.raises(UserError, match='source "books"'):
        Batches(
            split, SPEC, MASKING, BATCH, SPECIAL, VOCAB, tmp_path,
            sources=("",) * 7 + ("books",), languages=("en",),
        )  # fmt: skip


def packed(plan, rows):
    """The same examples, several per row."""
    return dataclasses.replace(
        plan,
        row_examples=np.cumsum([0, *map(len, rows)]),
        row_example=np.array([example for row in rows for example in row]),
    )


def fill(split, plan, rows, seq_length, slots, examples_per_row):
    masking = MaskingSpec(slots)
    assembler = Assembler(
        split.tokens, SPECIAL, VOCAB, masking, seq_length, slots, examples_per_row
    )
    out = assembler.empty(len(rows))
    assembler.fill(out, np.arange(len(rows)), plan, np.array(rows), np.uint64(77))
    return out.by_name()


def test_rows_of_several_examples(documents):
    split = split_of(documents)
    plan = make_plan(split, SPEC, 0)
    alone = fill(split, plan, list(range(plan.rows)), 40, 20, 1)
    rows = [[0], [5, 2, 9], [], [1, 3], [7, 6, 4]]
    together = fill(split, packed(plan, rows), list(range(5)), 120, 20, 3)
    for line, examples in enumerate(rows):
        at = slot = 0
        for number, example in enumerate(examples):
            length = int((alone["example_ids"][example] > 0).sum())
            span, here = slice(at, at + length), slice(0, length)
            for name in ("input_ids", "token_type_ids", "position_ids"):
                assert together[name][line, span].tolist() == alone[name][example, here].tolist()
            assert (together["example_ids"][line, span] == number + 1).all()
            count = int(alone["masked_weights"][example].sum())
            span = slice(slot, slot + count)
            positions = alone["masked_positions"][example, :count] + at
            assert together["masked_positions"][line, span].tolist() == positions.tolist()
            labels = alone["masked_labels"][example, :count]
            assert together["masked_labels"][line, span].tolist() == labels.tolist()
            assert (together["masked_weights"][line, span] == 1).all()
            assert together["cls_positions"][line, number] == at
            assert together["pair_labels"][line, number] == plan.example_label[example]
            assert together["pair_weights"][line, number] == 1
            assert together["pair_sources"][line, number] == 7
            at, slot = at + length, slot + count
        for name in ("input_ids", "token_type_ids", "example_ids", "position_ids"):
            assert not together[name][line, at:].any(), name
        for name in ("masked_positions", "masked_labels", "masked_weights"):
            assert not together[name][line, slot:].any(), name
        for name in ("cls_positions", "pair_labels", "pair_weights", "pair_sources"):
            assert not together[name][line, len(examples) :].any(), name


def test_pieces_of_one_segment_run_on_to_one_separator():
    split = split_of([[[10, 11], [12], [13, 14]]])
    plan = Plan(
        piece_start=np.array([3, 0, 2]),
        piece_length=np.array([2, 2, 1], np.int32),
        piece_segment=np.array([0, 0, 1], np.int8),
        example_pieces=np.array([0, 3]),
        example_label=np.array([1], np.int8),
        example_source=np.array([7], np.uint16),
        row_examples=np.array([0, 1]),
        row_example=np.array([0]),
    )
    row = fill(split, plan, [0], 10, 1, 1)
    ids = row["input_ids"][0]
    ids[row["masked_positions"][0, 0]] = row["masked_labels"][0, 0]
    assert ids.tolist() == [2, 13, 14, 10, 11, 3, 12, 3, 0, 0]
    assert row["token_type_ids"][0].tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 0, 0]


def test_specials_are_never_predicted():
    split = split_of([[[10], [11]], [[12], [13]]])
    plan = make_plan(split, PlanSpec(5), 0)
    masking = MaskingSpec(5, mask_rate=1.0)
    assembler = Assembler(split.tokens, SPECIAL, VOCAB, masking, 5, 5)
    out = assembler.empty(plan.rows)
    assembler.fill(out, np.arange(plan.rows), plan, np.arange(plan.rows), np.uint64(1))
    assert (out.masked_positions == [1, 3, 0, 0, 0]).all()
    assert (out.masked_weights == [1, 1, 0, 0, 0]).all()
    assert (out.input_ids[:, [0, 2, 4]] == [SPECIAL.cls, SPECIAL.sep, SPECIAL.sep]).all()


@pytest.mark.parametrize(
    ("seq_length", "slots", "examples"), [(30, 20, 3), (120, 2, 3), (120, 20, 2)]
)
def test_a_row_that_does_not_fit_is_refused(documents, seq_length, slots, examples):
    split = split_of(documents)
    plan = packed(make_plan(split, SPEC, 0), [[0, 1, 2]])
    with pytest.raises(ValueError, match="row 0 of the plan does not fit"):
        fill(split, plan, [0], seq_length, slots, examples)
