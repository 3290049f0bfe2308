"""Words hidden in held-out sentences, guessed at the evaluations of a run."""

import dataclasses

import pytest
from corpus import small_config, small_store
from runs import read_records

import bert_jax
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import StoppedError
from bert_jax.metrics import fill_records, run_records
from bert_jax.metrics.fill_records import Filled
from bert_jax.training import loop
from bert_jax.training.options import RunOptions
from bert_jax.workdir.layout import Workdir


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


def with_fills(config: Config, count: int, every: int = 4) -> Config:
    evaluation = dataclasses.replace(config.evaluation, fills=count, every_steps=every)
    return dataclasses.replace(config, evaluation=evaluation)


def filled(run) -> list[Filled]:
    return fill_records.read_fills(run_records.records(Workdir.open(run).metrics))


@pytest.mark.slow
def test_the_same_sentences_are_filled_after_a_stop_and_the_guesses_are_those_of_the_export(
    store, tmp_path
):
    config, run = with_fills(small_config(store), 3), tmp_path / "run"
    with pytest.raises(StoppedError):
        loop.pretrain(config, run, options=RunOptions(stop_after=8))
    loop.pretrain(with_fills(config, 4), run)
    first, *more = filled(run)
    assert [sorted(one.by_step) for one in (first, *more)] == [[0, 4, 8, 12]] * 3 + [[12]]
    assert len(read_records(run, "fills")) == 4
    bert_jax.export(run, tmp_path / "export")
    model = bert_jax.load(tmp_path / "export")
    for one in (first, *more):
        (expected,) = model.fill_mask(f"{one.before}[MASK]{one.after}", top_k=3)
        assert [token for token, _ in one.by_step[12]] == [fill.token for fill in expected]
        assert [p for _, p in one.by_step[12]] == pytest.approx(
            [fill.probability for fill in expected], abs=1e-4
        )
    assert first.by_step[0] != first.by_step[12]
