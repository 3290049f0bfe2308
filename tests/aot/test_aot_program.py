"""`compile` and `pretrain` build the same program, and `compile` needs no text for it."""

import dataclasses
import itertools
import re
from pathlib import Path

import jax
import pytest
from corpus import small_config, small_store, two_phases

from bert_jax.aot import lower
from bert_jax.config.schema import Config
from bert_jax.config.serialization import from_dict, to_dict
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.distributed import job as session
from bert_jax.errors import UserError
from bert_jax.parallel.mesh import make_mesh
from bert_jax.training import setup
from bert_jax.training.batches import empty_batch, phase_batches
from bert_jax.training.step import StepFunctions
from bert_jax.training.store_data import StoreData
from bert_jax.workdir.layout import Workdir


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


def with_data(config: Config, **data: object) -> Config:
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **data))


def without_numbers(text: str) -> str:
    """A program's text without the values of its constants."""
    return re.sub(r"dense<[^>]*>", "dense<>", text)


def test_pretrain_and_compile_lower_the_same_program(store, tmp_path, monkeypatch) -> None:
    """On eight devices, in two phases, the second in parts."""
    config = two_phases(store, steps=(1, 1))
    first, second = config.phases
    second = dataclasses.replace(second, batch_size=32, micro_batches=2)
    config = dataclasses.replace(config, phases=(first, second))
    trained = []

    def note(self: StepFunctions, *args: object) -> None:
        trained.append(self.lower_train(*args).as_text())

    monkeypatch.setattr(StepFunctions, "compile_train", note)
    monkeypatch.setattr(StepFunctions, "compile_evaluate", lambda *_: None)
    monkeypatch.setattr(StepFunctions, "compile_start_phase", lambda _: None)
    with session.in_process_job(config) as job:
        prepared = setup.prepare(config, Workdir.open(tmp_path), job, StoreData(store))
        with jax.set_mesh(prepared.mesh):
            for phase in prepared.phases:
                setup.compile_phase(prepared, phase, 0)
    mesh = make_mesh(config.mesh, jax.devices())
    assert mesh.size == 8
    compiled = [lower.lower(config, phase, mesh).as_text() for phase in config.phases]
    assert compiled == trained
    assert trained[0] != trained[1]
    textless = with_data(config, store="")
    lowered = [lower.lower(textless, phase, mesh).as_text() for phase in textless.phases]
    assert list(map(without_numbers, lowered)) == list(map(without_numbers, trained))


@pytest.mark.parametrize(
    ("pairing", "masking", "packed"),
    [
        *itertools.product(
            ("nsp", "sop", "full_sentences", "doc_sentences", "single"),
            ("token", "span"),
            (False, True),
        ),
        ("nsp", "whole_word", True),
        ("single", "ngram", False),
    ],
)
def test_a_batch_without_text_is_like_one_with(
    store, pairing: str, masking: str, packed: bool
) -> None:
    config = with_data(
        small_config(store), pairing=pairing, masking=masking, span_boundary=masking == "span"
    )
    (phase,) = config.phases
    if packed:
        phase = dataclasses.replace(phase, examples_per_row=3, row_length=80)
    config = dataclasses.replace(config, phases=(phase,))
    made = phase_batches(config, store, store.train, phase).batch(0, rows=[])
    empty = empty_batch(config, phase)
    assert {name: (a.shape, a.dtype) for name, a in empty.items()} == {
        name: (a.shape, a.dtype) for name, a in made.items()
    }


def test_a_store_with_another_vocabulary_is_one_line(store) -> None:
    config = small_config(store)
    plain = to_dict(config)
    plain["model"]["vocab_size"] = 101
    with pytest.raises(UserError, match=r"config\.model\.vocab_size=101, but ids"):
        lower.corpus_of(from_dict(plain, Config))


def test_a_batch_that_does_not_divide_is_one_line(store) -> None:
    config = small_config(store)
    phase = dataclasses.replace(config.phases[0], batch_size=12)
    mesh = make_mesh(config.mesh, jax.devices())
    with pytest.raises(UserError, match="batch_size=12 is not divisible by 8 devices"):
        lower.lower(dataclasses.replace(config, phases=(phase,)), phase, mesh)


def test_no_store_is_needed_or_written(tmp_path: Path, monkeypatch) -> None:
    from bert_jax.config.config_files import load

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    config = load("tiny")
    mesh = make_mesh(config.mesh, jax.devices())
    assert "8" in lower.lower(config, config.phases[0], mesh).as_text()
    assert not list(tmp_path.iterdir())
