"""The exponential moving average of the weights."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from corpus import small_config, small_store
from processes import assert_same_bits, read_state
from small_step import CORPUS, mesh_of, place, rows_of, small

from bert_jax import cli
from bert_jax.checkpoint import manager
from bert_jax.config.schema import Config
from bert_jax.convert import weights as names
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import StoppedError, UserError
from bert_jax.finetune import runs
from bert_jax.training.averaging import average
from bert_jax.training.loop import pretrain
from bert_jax.training.options import RunOptions
from bert_jax.training.step import make_step_functions
from bert_jax.workdir.layout import Workdir

DECAY = 0.8


def expected(weights: list[Any]) -> Any:
    """The average over the weights after each update, in float64."""
    shares = DECAY ** np.arange(len(weights) - 1, -1, -1, np.float64)
    shares /= shares.sum()
    return jax.tree.map(lambda *w: sum(s * x for s, x in zip(shares, w, strict=True)), *weights)


def assert_near(got: Any, want: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), got, want)


def trained(config: Config, steps: int, bad: tuple[int, ...] = ()) -> tuple[Any, Any, list[Any]]:
    """The program, the last state, and the weights after each update; `bad` steps are skipped."""
    seen = []
    with jax.set_mesh(mesh_of(config)):
        program = make_step_functions(config, mesh_of(config), CORPUS)
        state, rows = program.init(), rows_of(config)
        for step in range(steps):
            weights = rows["masked_weights"] * (np.nan if step in bad else 1)
            batch = place(program, {**rows, "masked_weights": weights.astype(np.float32)})
            state, metrics = program.train(state, batch)
            assert int(metrics["skipped"]) == (step in bad)
            if step not in bad:
                seen.append(jax.tree.map(np.asarray, state["params"]))
        assert program.train._cache_size() == 1
    return program, state, seen


@pytest.mark.parametrize("decay", [0.999, 0.999999, 0.99999999])
def test_a_decay_near_one_is_the_mean(decay: float) -> None:
    ema = np.float32(0)
    for update in range(1, 6):
        ema = average(ema, np.float32(update), decay, np.int32(update))
    assert ema == pytest.approx(3, rel=2e-3)  # 3.002 with .999


@pytest.mark.parametrize("bad", [(), (0, 3)], ids=["all", "skipped"])
def test_it_is_that_of_the_weights_after_each_update(bad: tuple[int, ...]) -> None:
    _, state, seen = trained(small(optimizer={"ema_decay": DECAY}), 6, bad)
    assert_near(jax.tree.map(np.asarray, state["ema"]), expected(seen))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [{"data": 8}, {"data": 2, "fsdp": 2, "tensor": 2}], ids=str)
def test_it_is_sharded_as_the_moments(mesh: dict[str, int]) -> None:
    average = {"ema_decay": DECAY}
    sharded = small(mesh=mesh, compute={"shard_optimizer": True}, optimizer=average)
    program, state, _ = trained(sharded, 4)
    _, one, _ = trained(small(optimizer=average), 4)
    for x, p in zip(
        jax.tree.leaves(state["ema"]), jax.tree.leaves(program.abstract["params"]), strict=True
    ):
        assert x.sharding == p.sharding
    held = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state["ema"]))
    assert held < sum(x.nbytes for x in jax.tree.leaves(state["ema"])) / mesh["data"] * 1.1
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
        *(jax.tree.map(np.asarray, each["ema"]) for each in (state, one)),
    )


def test_without_it_nothing_changes() -> None:
    """The weights are the same with and without; the state has a part more."""
    _, plain, seen = trained(small(), 3)
    _, averaged, others = trained(small(optimizer={"ema_decay": DECAY}), 3)
    assert averaged.keys() - plain.keys() == {"ema"}
    jax.tree.map(np.testing.assert_array_equal, seen, others)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("averaging") / "store")


def averaging(store: TokenStore) -> Config:
    changes = {"phases[0].steps": 6, "checkpoint.every_steps": 1, "checkpoint.keep": 100,
               "checkpoint.keep_start": True, "log_every_steps": 1,
               "optimizer.ema_decay": DECAY}  # fmt: skip
    return small_config(store).replace(changes)


@pytest.fixture(scope="module")
def run(store: TokenStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    pretrain(averaging(store), folder)
    return folder


def params(run: Path, step: int, weights: Any = "last") -> Any:
    found, _ = manager.load_params(Workdir.open(run), step, weights)
    return jax.tree.map(np.asarray, found)


def test_a_checkpoint_has_it(run: Path) -> None:
    assert_near(params(run, 6, "ema"), expected([params(run, step) for step in range(1, 7)]))
    jax.tree.map(np.testing.assert_array_equal, params(run, 0, "ema"), params(run, 0))


@pytest.mark.slow
def test_a_resumed_run_has_the_same_bits(run: Path, store: TokenStore, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        pretrain(averaging(store), tmp_path / "parts", options=RunOptions(stop_after=3))
    pretrain(averaging(store), tmp_path / "parts")
    assert_same_bits(run, tmp_path / "parts")
    assert any(name.startswith("ema") for name in read_state(run, 6))


def test_it_is_evaluated_and_exported(run: Path, store: TokenStore, tmp_path: Path) -> None:
    for weights in ("last", "ema"):
        assert cli.main(["evaluate", f"--workdir={run}", f"--weights={weights}"]) == 0
        out = tmp_path / weights
        words = ["convert", "export", f"--workdir={run}", f"--out={out}", f"--weights={weights}"]
        assert cli.main(words) == 0
    records = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    assert [record.get("weights") for record in records] == [None, "ema"]
    assert records[0]["mlm/loss"] != records[1]["mlm/loss"]
    model = averaging(store).model
    for weights in ("last", "ema"):
        tensors = safetensors.numpy.load_file(tmp_path / weights / "model.safetensors")
        own = names.to_transformers(params(run, 6, weights), model)
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(tensor, own[name], err_msg=name)
    assert (own["cls.predictions.bias"] != params(run, 6)["mlm"]["bias"][:100]).any()
    cards = [(tmp_path / w / "README.md").read_text() for w in ("last", "ema")]
    assert ["exponential moving average" in card for card in cards] == [False, True]


def test_a_run_starts_from_it(run: Path, store: TokenStore, tmp_path: Path) -> None:
    zero = {"init": f"{run}@5", "init_weights": "ema", "phases[0].steps": 1,
            "optimizer.learning_rate": 0.0, "optimizer.ema_decay": 0.5,
            "checkpoint.keep_start": True}  # fmt: skip
    pretrain(small_config(store).replace(zero), tmp_path / "next")
    for step, weights in ((0, "last"), (0, "ema"), (1, "last"), (1, "ema")):
        started = params(tmp_path / "next", step, weights)
        jax.tree.map(np.testing.assert_array_equal, started, params(run, 5, "ema"))


def test_fine_tuning_takes_it_by_a_flag(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = []
    monkeypatch.setattr(runs, "finetune_seeds", lambda config, *_, **__: started.append(config))
    words = ["finetune", "--config=glue", f"--workdir={tmp_path / 'task'}"]
    for flags in ([], ["--weights=ema"], ["--config.init_weights=ema"]):
        assert cli.main([*words, *flags]) == 0
    assert [config.init_weights for config in started] == ["last", "ema", "ema"]


def test_what_cannot_be_is_one_line(run: Path, store: TokenStore, tmp_path: Path) -> None:
    config = small_config(store)
    with pytest.raises(UserError, match=r"^config\.init_weights=ema has no effect without config"):
        pretrain(config.replace("init_weights", "ema"), tmp_path / "a")
    carry = {"init": str(run), "init_weights": "ema", "init_optimizer": "carry"}
    with pytest.raises(UserError, match=r"^config\.init_weights=ema: the moments are not those of"):
        pretrain(config.replace(carry), tmp_path / "b")
    with pytest.raises(UserError, match=r"optimizer\.ema_decay"):
        pretrain(averaging(store).replace("optimizer.ema_decay", 0.9), run)
    plain = config.replace({"phases[0].steps": 1})
    pretrain(plain, tmp_path / "plain")
    with pytest.raises(UserError, match=r"trained without an average of its weights; leave out"):
        manager.load_params(Workdir.open(tmp_path / "plain"), None, "ema")
    with pytest.raises(UserError, match=r"optimizer\.ema_decay|ema/.* is missing"):
        pretrain(
            plain.replace({"optimizer.ema_decay": 0.9, "phases[0].steps": 2}), tmp_path / "plain"
        )
