"""The keys of the draws of replaced-token detection: what they depend on, and what they do not."""

import dataclasses

import numpy as np
import original_generator as original
import pytest
from corpus import small_config, small_store
from made_batches import (
    BATCH,
    MASKING,
    SPEC,
    SPECIAL,
    VOCAB,
    joined,
    random_documents,
    same,
    split_of,
)
from masked_examples import make_rows
from test_masking_modes import VOCABULARY

from bert_jax.config.schema import Config
from bert_jax.config.serialization import from_dict
from bert_jax.data_pipeline.batch import Batches
from bert_jax.data_pipeline.masking.masking_settings import MODES
from bert_jax.data_pipeline.masking.spec import MaskingSpec
from bert_jax.data_pipeline.random.counter_rng import MASKING as STREAM
from bert_jax.errors import UserError
from bert_jax.training.batches import empty_batch, phase_batches

BLOCKS = dataclasses.replace(SPEC, pairing="full_sentences")


@pytest.fixture(scope="module")
def split():
    return split_of(random_documents(26))


def made(split, folder, masking=MASKING, spec=BLOCKS):
    masking = dataclasses.replace(masking, replaced_tokens=True)
    starts = np.arange(VOCAB) % 3 != 0
    return Batches(split, spec, masking, BATCH, SPECIAL, VOCAB, folder, word_starts=starts)


@pytest.mark.parametrize("mode", MODES)
def test_only_the_keys_are_added(mode, split, tmp_path):
    masking = MaskingSpec(6, masking=mode)
    starts = np.arange(VOCAB) % 3 != 0
    plain = Batches(split, BLOCKS, masking, BATCH, SPECIAL, VOCAB, tmp_path, word_starts=starts)
    batches = made(split, tmp_path, masking)
    last = batches.batches_once - 1
    for with_keys, without in (
        (batches.batch(2), plain.batch(2)),
        (batches.evaluation_batch(last), plain.evaluation_batch(last)),
    ):
        keys = with_keys.pop("draw_keys")
        same(with_keys, without)
        assert keys.dtype == np.uint32
        assert keys.shape == without["masked_weights"].shape
        used = without["masked_weights"] > 0
        assert not keys[~used].any()
        assert keys[used].all()  # 0 comes once in 2**32 slots
    assert not used[-1].any()  # a row of padding


def test_a_key_is_the_upper_half_of_a_draw_of_its_place(split, tmp_path):
    """By a plain port: of the seed, the phase, the epoch, the example and the position in it."""
    spec = dataclasses.replace(BLOCKS, seed=3, phase=1)
    batches = made(split, tmp_path, spec=spec)
    rows = batches.rows_per_epoch
    found = joined([batches.evaluation_batch(index) for index in range(batches.batches_once)])
    numbers = batches.evaluation_examples(rows).number
    example_keys = [
        original.fold(original.stream_key(3, 1, 0, STREAM), number) for number in numbers.tolist()
    ]
    for row, key in enumerate(example_keys):
        used = found["masked_weights"][row] > 0
        positions = found["masked_positions"][row, used].tolist()
        stream = original.fold(key, 4)
        expected = [
            original.mix((stream + (p + 1) * original.GOLDEN) % original.WORD) >> 32
            for p in positions
        ]
        assert found["draw_keys"][row, used].tolist() == expected


@pytest.mark.parametrize("mode", MODES)
def test_packing_changes_no_keys(mode):
    packed = [[[7, 8, 10, 11, 13] * 3], [[14, 16] * 9, [17]], [[19] * 7]]
    spec = MaskingSpec(20, masking=mode, mask_rate=0.5, replaced_tokens=True)
    together = make_rows([packed], spec, 5, **VOCABULARY)
    alone = make_rows([[example] for example in packed], spec, 5, **VOCABULARY)
    used = alone["masked_weights"] > 0
    np.testing.assert_array_equal(
        together["draw_keys"][together["masked_weights"] > 0], alone["draw_keys"][used]
    )
    assert used.sum() > 10


def test_slots_of_one_position_have_one_key():
    spec = MaskingSpec(60, masking="with_replacement", mask_rate=0.9, replaced_tokens=True)
    batch = make_rows([[[[7, 8, 10, 11] * 10]]], spec, 5, **VOCABULARY)
    positions, keys = batch["masked_positions"][0], batch["draw_keys"][0]
    pairs = set(zip(positions.tolist(), keys.tolist(), strict=True))
    assert len(pairs) == len(set(positions.tolist())) == len(set(keys.tolist())) < len(positions)


@pytest.mark.parametrize("change", [{"seed": SPEC.seed + 1}, {"phase": SPEC.phase + 1}])
def test_other_keys_with_another(change, split, tmp_path):
    batches = made(split, tmp_path)
    others = made(split, tmp_path, spec=dataclasses.replace(BLOCKS, **change))
    first = batches.batch(0)["draw_keys"]
    for other in (others.batch(0), batches.batch(batches.rows_per_epoch // BATCH + 1)):
        shared = np.intersect1d(first[first > 0], other["draw_keys"])
        assert not len(shared)


def test_every_bit_of_the_keys_is_as_often_set_as_not(split, tmp_path):
    batches = made(split, tmp_path)
    keys = joined([batches.batch(step) for step in range(40)])["draw_keys"]
    keys = keys[keys > 0]
    for bit in range(32):
        share = ((keys >> np.uint32(bit)) & 1).mean()
        assert abs(share - 0.5) < 4.4 * 0.5 / len(keys) ** 0.5


def test_a_run_has_them_and_no_pairs(tmp_path):
    store = small_store(tmp_path / "store")
    config = small_config(store).replace(
        {"data.pairing": "full_sentences", "data.replaced_tokens": True}
    )
    (phase,) = config.phases
    batch = phase_batches(config, store, store.train, phase).batch(0, rows=[])
    empty = empty_batch(config, phase)
    assert {k: (v.dtype, v.shape) for k, v in batch.items()} == {
        k: (v.dtype, v.shape) for k, v in empty.items()
    }
    assert "draw_keys" in batch


@pytest.mark.parametrize("pairing", ["nsp", "sop"])
def test_pairs_are_refused(pairing):
    data = {"pairing": pairing, "replaced_tokens": True}
    with pytest.raises(UserError) as error:
        from_dict({"data": data}, Config)
    assert str(error.value) == (
        f'config.data.replaced_tokens with config.data.pairing="{pairing}": replaced-token '
        'detection has no sentence pairs; set config.data.pairing="full_sentences", or '
        "replaced_tokens=False"
    )
