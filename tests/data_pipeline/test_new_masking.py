"""A new kind of masking is one file with a `MODE`, as this one, and one row of `MODES`.

Run as a program, this file is a `bert-jax` that has it.
"""

import dataclasses
import sys

import numpy as np
import pytest
import test_masking_modes as laws
from corpus import small_config, small_store
from masked_examples import SPECIAL, make_example
from processes import assert_a_kill_costs_no_bits, assert_same_bits, deep_config
from rows import with_row
from tpu_compiler import with_support

from bert_jax import cli
from bert_jax.api.model import load
from bert_jax.config.schema import Config
from bert_jax.config.serialization import from_dict, to_dict
from bert_jax.data_pipeline.masking.masking_settings import MODES
from bert_jax.data_pipeline.masking.mode import Mode
from bert_jax.data_pipeline.masking.spec import MaskingSpec
from bert_jax.data_pipeline.random.counter_rng import below, draw, fold_key
from bert_jax.data_pipeline.random.numba_jit import compiled
from bert_jax.errors import StoppedError, UserError
from bert_jax.publish.export import run_export
from bert_jax.training.batches import phase_batches
from bert_jax.training.loop import pretrain
from bert_jax.training.options import RunOptions


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


MODE = Mode(
    select_every_third,
    replace_by_mask,
    wanted=lambda rate, size: -(-size // 3),
    exact=False,  # the specials count, but are not selected
)


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


def test_the_laws_of_all_kinds_hold_for_it():
    laws.test_never_more_than_announced(mode="every_third")
    laws.test_packing_changes_no_masks(mode="every_third")
    as_exact = with_row(MODES, "inexact", dataclasses.replace(MODE, exact=True))
    with as_exact, pytest.raises(AssertionError):
        laws.test_never_more_than_announced(mode="inexact")


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


def config_of(config):
    return config.replace({"data.masking": "every_third", "log_every_steps": 1})


@pytest.mark.slow
def test_a_run_with_it_resumes_with_the_same_bits_and_is_exported(tmp_path):
    config = config_of(small_config(small_store(tmp_path / "store")))
    pretrain(config, tmp_path / "whole")
    with pytest.raises(StoppedError):
        pretrain(config, tmp_path / "parts", options=RunOptions(stop_after=5))
    pretrain(config, tmp_path / "parts")
    assert_same_bits(tmp_path / "whole", tmp_path / "parts")
    run_export(tmp_path / "parts", tmp_path / "exported")
    assert load(tmp_path / "exported").encode("A text.").shape == (1, config.model.hidden_size)


@pytest.mark.nightly
@pytest.mark.processes
def test_a_killed_run_resumes_with_the_same_bits(tmp_path):
    config = config_of(deep_config(small_store(tmp_path / "store")))
    assert_a_kill_costs_no_bits(config, tmp_path, program=(__file__,), env=with_support({}))


if __name__ == "__main__":
    MODES.add("every_third", MODE)
    sys.exit(cli.main(sys.argv[1:]))
