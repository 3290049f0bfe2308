"""A new kind of masking is one file with a `MODE`, as this one, and one row of `MODES`."""

import dataclasses

import numpy as np
import pytest
from corpus import small_config, small_store
from masked_examples import SPECIAL, make_example
from rows import with_row

from bert_jax.config.schema import Config
from bert_jax.config.serialization import from_dict, to_dict
from bert_jax.data_pipeline.masking.mode import Mode
from bert_jax.data_pipeline.masking.settings import MODES
from bert_jax.data_pipeline.masking.spec import MaskingSpec
from bert_jax.data_pipeline.random.counter_rng import below, draw, fold_key
from bert_jax.data_pipeline.random.numba_jit import compiled
from bert_jax.errors import UserError
from bert_jax.training.batches import phase_batches


@compiled
def select_every_third(key, rule, scratch, count, wanted):
    """Selects every third token from one of the first three on."""
    taken = 0
    for k in range(below(draw(fold_key(key, 0), 0), 3), count, 3):
        if taken == wanted:
            break
        scratch.marked[k] = 1
        scratch.chosen[taken] = k
        taken += 1
    return taken


@compiled
def replace_by_mask(key, rule, scratch, count, taken, out, line, slot):
    """Every selected token becomes [MASK]."""
    for k in range(slot, slot + taken):
        out.input_ids[line, out.masked_positions[line, k]] = rule.mask_id


MODE = Mode(select_every_third, replace_by_mask, wanted=lambda rate, size: -(-size // 3))


@pytest.fixture(autouse=True)
def _listed():
    with with_row(MODES, "every_third", MODE):
        yield


def test_it_masks_examples():
    words = [*range(10, 40)]
    starts = set()
    for key in range(20):
        spec = MaskingSpec(20, masking="every_third")
        ids, positions, labels, _ = make_example(
            [words], spec, key, vocab_size=60, word_starts=None
        )
        starts.add(positions[0])
        assert positions == list(range(positions[0], 31, 3))
        assert [ids[k] for k in positions] == [SPECIAL.mask] * len(positions)
        assert labels == [words[k - 1] for k in positions]
    assert starts == {1, 2, 3}


def test_it_is_a_value_of_the_config_and_makes_the_batches_of_a_run(tmp_path):
    store = small_store(tmp_path / "store")
    values = to_dict(small_config(store))
    values["data"]["masking"] = "every_third"
    config = from_dict(values, Config)
    (phase,) = config.phases
    batch = phase_batches(config, store, store.train, phase).batch(0)
    masked = batch["input_ids"][np.arange(8)[:, None], batch["masked_positions"]]
    weights = batch["masked_weights"] > 0
    assert weights.any()
    assert (masked[weights] == store.special.mask).all()

    packed = dataclasses.replace(phase, examples_per_row=4, row_length=64)
    again = dataclasses.replace(config, phases=(packed,))
    assert phase_batches(again, store, store.train, packed).batch(0)["example_ids"].max() > 1

    values["data"]["masking"] = "every_thrid"
    with pytest.raises(UserError, match=r"data\.masking='every_thrid'; did you mean every_third\?"):
        from_dict(values, Config)
