"""The training loop: the same numbers on any number of devices and after any interruption."""

import dataclasses
import json
import random
from pathlib import Path

import jax
import numpy as np
import pytest
from corpus import small_config, small_store
from etils import epath

from bert_jax import checkpoint, metrics, sharding
from bert_jax.batches import make_batches
from bert_jax.config import Config
from bert_jax.errors import StoppedError, UserError
from bert_jax.objectives import Corpus
from bert_jax.step import make_program
from bert_jax.train import pretrain
from data_pipeline.store import TokenStore


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


def on_devices(config: Config, count: int) -> Config:
    """The config on a mesh of `count` of the eight devices."""
    return dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, data=count))


def parameters(workdir: Path) -> list[tuple[str, np.ndarray]]:
    params, _ = checkpoint.load_params(workdir)
    return [
        (jax.tree_util.keystr(path), np.asarray(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    ]


def steps_on(config: Config, store: TokenStore, devices: int, steps: int) -> tuple[list, int]:
    """Losses of the first steps on a number of devices, and how often the step compiled."""
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:devices])
    batches = make_batches(config, store, store.train, config.phases[0])
    losses = []
    with jax.set_mesh(mesh):
        program = make_program(config, mesh, Corpus.of(store))
        state = program.init()
        for step in range(steps):
            batch = sharding.global_batch(
                lambda rows, s=step: batches.batch(s, rows), program.rows, 8
            )
            state, result = program.train(state, batch)
            losses.append(float(result["loss"]))
    return losses, program.train._cache_size()


def test_one_and_eight_devices_give_the_same_loss(store):
    config = small_config(store)
    assert config.model.hidden_dropout_prob > 0
    one, _ = steps_on(config, store, 1, 4)
    eight, compiled = steps_on(config, store, 8, 4)
    np.testing.assert_allclose(eight, one, rtol=1e-6)
    assert compiled == 1


def test_resuming_at_a_random_step_gives_the_same_bits(store, tmp_path):
    config = small_config(store)
    pretrain(config, tmp_path / "whole")
    stop = random.randrange(1, config.total_steps)
    with pytest.raises(StoppedError, match=f"step {stop} "):
        pretrain(config, tmp_path / "parts", stop_after=stop)
    pretrain(config, tmp_path / "parts")
    for (name, whole), (_, parts) in zip(
        parameters(tmp_path / "whole"), parameters(tmp_path / "parts"), strict=True
    ):
        assert whole.tobytes() == parts.tobytes(), f"{name} differs after stopping at {stop}"


def test_the_last_step_is_a_checkpoint_with_its_description(store, tmp_path):
    config = small_config(store)
    pretrain(config, tmp_path)
    _, meta = checkpoint.load_params(tmp_path)
    assert meta["step"] == config.total_steps
    assert meta["data"]["train"] == store.train.digest
    assert (tmp_path / "tokenizer.json").read_bytes() == store.tokenizer_path.read_bytes()
    pretrain(config, tmp_path)  # nothing left to do is not an error


def test_metrics_hold_objectives_and_baselines(store, tmp_path):
    config = small_config(store)
    pretrain(config, tmp_path)
    train = metrics.read(epath.Path(tmp_path), "train")
    assert [record["step"] for record in train] == [4, 8, 12]
    (held_out,) = metrics.read(epath.Path(tmp_path), "eval")
    for record in (*train, held_out):
        for name in ("mlm", "nsp"):
            for value in ("loss", "accuracy", "baseline_loss", "baseline_accuracy"):
                assert np.isfinite(record[f"{name}/{value}"])
        assert {"nsp/wiki/accuracy", "nsp/books/baseline_accuracy"} <= set(record)
        assert 0 < record["padding"] < 1
    assert train[-1]["tokens_per_second"] > 0
    assert list((tmp_path / "tensorboard").iterdir())


def test_a_stretch_repeated_after_a_restart_is_read_once(tmp_path):
    lines = [{"kind": "train", "step": s, "value": v} for s, v in ((1, 0), (2, 0), (2, 1), (3, 1))]
    text = "\n".join(map(json.dumps, lines)) + '\n{"kind": "tr'
    (tmp_path / "metrics.jsonl").write_text(text)
    records = metrics.read(epath.Path(tmp_path), "train")
    assert [(r["step"], r["value"]) for r in records] == [(1, 0), (2, 1), (3, 1)]


def test_what_decides_the_examples_cannot_change(store, tmp_path):
    config = small_config(store)
    with pytest.raises(StoppedError):
        pretrain(config, tmp_path, stop_after=2)
    data = dataclasses.replace(config.data, short_seq_prob=0.5)
    with pytest.raises(UserError, match=r"data\.short_seq_prob \(0\.1 → 0\.5\).*new --workdir"):
        pretrain(dataclasses.replace(config, data=data), tmp_path)
    optimizer = dataclasses.replace(config.optimizer, learning_rate=1e-5)
    pretrain(dataclasses.replace(config, optimizer=optimizer), tmp_path)  # this may


def test_another_tokenizer_than_the_checkpoints_is_refused(store, tmp_path):
    config = small_config(store)
    with pytest.raises(StoppedError):
        pretrain(config, tmp_path / "run", stop_after=2)
    other = small_store(tmp_path / "other", words="v")
    with pytest.raises(UserError, match="trained with tokenizer"):
        pretrain(small_config(other), tmp_path / "run")


def test_ids_beyond_the_vocabulary_are_refused(store, tmp_path):
    config = small_config(store)
    model = dataclasses.replace(config.model, vocab_size=50)
    with pytest.raises(UserError, match=r"go up to 99; pass --config\.model\.vocab_size=100"):
        pretrain(dataclasses.replace(config, model=model), tmp_path)


def test_a_batch_that_does_not_divide_is_refused(store, tmp_path):
    config = small_config(store)
    phase = dataclasses.replace(config.phases[0], batch_size=12)
    with pytest.raises(UserError, match=r"batch_size=12 does not divide over 8 devices"):
        pretrain(dataclasses.replace(config, phases=(phase,)), tmp_path)


@pytest.mark.parametrize("mesh", [{"data": 3}, {"data": 0}, {"data": -1, "fsdp": -1}])
def test_a_mesh_that_does_not_fit_is_refused(mesh, store):
    config = small_config(store)
    with pytest.raises(UserError, match="does not fit 8 devices"):
        sharding.make_mesh(dataclasses.replace(config.mesh, **mesh))


def test_added_vocabulary_rows_stay_zero(store, tmp_path):
    config = small_config(store)
    assert config.model.padded_vocab_size == 128
    pretrain(config, tmp_path)
    params = dict(parameters(tmp_path))
    table = params["['encoder']['embeddings']['word']"]
    assert table.shape[0] == 128
    assert not table[100:].any()
    assert not params["['mlm']['bias']"][100:].any()
    assert table[5:100].any(axis=1).all()


def test_learns_what_can_be_learned(tmp_path):
    """Next sentences that repeat the first: both losses fall far below their baselines."""
    store = small_store(tmp_path / "store", documents=60, repeat=True)
    config = small_config(store)
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, hidden_dropout_prob=0.0, initializer_range=0.18),
        phases=(dataclasses.replace(config.phases[0], steps=150, batch_size=16),),
        optimizer=dataclasses.replace(config.optimizer, learning_rate=3e-3, warmup_steps=30),
    )
    pretrain(config, tmp_path / "run")
    last = metrics.read(epath.Path(tmp_path / "run"), "train")[-1]
    assert last["mlm/loss"] < last["mlm/baseline_loss"] - 0.5
