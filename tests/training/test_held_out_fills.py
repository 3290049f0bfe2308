"""Words hidden in held-out sentences, guessed at the evaluations of a run."""

import dataclasses

import pytest
from corpus import small_config, small_store
from processes import run
from runs import read_records

import bert_jax
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import StoppedError
from bert_jax.metrics import fill_records, run_records
from bert_jax.metrics.fill_records import Filled
from bert_jax.training import loop
from bert_jax.training.fill_step import has_fills
from bert_jax.training.options import RunOptions
from bert_jax.workdir.layout import Workdir


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


def with_fills(config: Config, count: int, every: int = 4) -> Config:
    evaluation = dataclasses.replace(config.evaluation, fills=count, every_steps=every)
    return dataclasses.replace(config, evaluation=evaluation)


def filled(folder) -> list[Filled]:
    return fill_records.read_fills(run_records.records(Workdir.open(folder).metrics))


@pytest.mark.slow
def test_the_same_sentences_are_filled_after_a_stop_and_the_guesses_are_those_of_the_export(
    store, tmp_path
):
    config, workdir = with_fills(small_config(store), 3), tmp_path / "run"
    with pytest.raises(StoppedError):
        loop.pretrain(config, workdir, options=RunOptions(stop_after=8))
    loop.pretrain(with_fills(config, 4), workdir)
    first, *more = filled(workdir)
    assert [sorted(one.by_step) for one in (first, *more)] == [[0, 4, 8, 12]] * 3 + [[12]]
    assert len(read_records(workdir, "fills")) == 4
    bert_jax.export(workdir, tmp_path / "export")
    model = bert_jax.load(tmp_path / "export")
    for one in (first, *more):
        (expected,) = model.fill_mask(f"{one.before}[MASK]{one.after}", top_k=3)
        assert [token for token, _ in one.by_step[12]] == [fill.token for fill in expected]
        assert [p for _, p in one.by_step[12]] == pytest.approx(
            [fill.probability for fill in expected], abs=1e-4
        )
    assert first.by_step[0] != first.by_step[12]


@pytest.mark.nightly
@pytest.mark.processes
def test_two_processes_write_the_guesses_of_one(store, tmp_path):
    config = small_config(store)
    phase = dataclasses.replace(config.phases[0], steps=4)  # a batch has fewer rows than sentences
    config = with_fills(dataclasses.replace(config, phases=(phase,)), 12, every=2)
    for count in (1, 2):
        run(config, tmp_path / f"{count}", tmp_path, processes=count)
    one, two = filled(tmp_path / "1"), filled(tmp_path / "2")
    assert one == two
    assert [sorted(each.by_step) for each in one] == [[0, 2, 4]] * 12


@pytest.mark.slow
def test_a_generator_guesses(store, tmp_path):
    both = small_config(store, rtd_weight=50.0)
    data = dataclasses.replace(both.data, replaced_tokens=True, pairing="single")
    phase = dataclasses.replace(both.phases[0], steps=2)
    both = dataclasses.replace(both, data=data, phases=(phase,))
    loop.pretrain(with_fills(both, 2), tmp_path / "both")
    assert [sorted(one.by_step) for one in filled(tmp_path / "both")] == [[0, 2]] * 2


def test_without_masked_tokens_nothing_is_guessed(store):
    asked = with_fills(small_config(store), 2)
    assert has_fills(asked)
    assert not has_fills(with_fills(asked, 0))
    assert not has_fills(dataclasses.replace(asked, objectives="nsp"))
