"""`--time_budget`: the steps that it decides, once, and that nothing of the measuring stays.

Every test gives the measured seconds itself; none reads a clock.
"""

import dataclasses
import inspect
import itertools
import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from corpus import small_config, small_store, two_phases
from jax._src import compiler, monitoring
from processes import assert_same_bits, deep_config, run
from runs import complete_steps, read_records

from bert_jax.checkpoint import manager as checkpoint
from bert_jax.config.schema import Config, PhaseConfig
from bert_jax.config.serialization import to_dict
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.distributed.job import in_process_job
from bert_jax.errors import StoppedError, UsageError, UserError
from bert_jax.metrics import time_left
from bert_jax.reporting import status, status_text
from bert_jax.runtime import duration
from bert_jax.training import loop, setup, speed, time_budget
from bert_jax.training.loop import pretrain
from bert_jax.training.options import RunOptions
from bert_jax.training.speed import Measured
from bert_jax.training.store_data import StoreData
from bert_jax.training.time_budget import steps_within
from bert_jax.workdir import description
from bert_jax.workdir.layout import SCRATCH, Workdir

# 30 s to the decision, 20 s to compile; then a step a second, no time for anything else.
MEASURED = Measured(elapsed=30.0, compile_train=20.0, compile_evaluate=8.0, step=1.0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


def with_optimizer(config: Config, **values: Any) -> Config:
    return dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, **values))


def with_phases(config: Config, *phases: dict[str, Any], **optimizer: Any) -> Config:
    made = tuple(PhaseConfig(**values) for values in phases)
    optimizer = {"warmup_steps": 0} | optimizer
    return with_optimizer(dataclasses.replace(config, phases=made), **optimizer)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("60m", 3600), ("1.5h", 5400), ("2d", 172_800), ("0.5s", 0.5)],
)
def test_a_budget_has_a_unit(text: str, seconds: float) -> None:
    assert duration.parse("time_budget", text) == seconds


@pytest.mark.parametrize(
    "text", ["", "60", "m", "60 m", "-1h", "0m", "0.0h", "1e3s", "60min", "6٠m", "9" * 400 + "d"]
)
def test_another_form_is_one_line(text: str) -> None:
    with pytest.raises(UsageError) as error:
        duration.parse("time_budget", text)
    assert str(error.value).startswith(f"--time_budget={text}: give a duration above zero")
    assert "\n" not in str(error.value)


def test_what_the_steps_are_computed_from() -> None:
    config = with_phases(Config(), {"steps": 7})
    assert steps_within(150.0, config, [1.0], MEASURED) == [100]
    assert steps_within(150.9, config, [1.0], MEASURED) == [100]
    assert steps_within(151.0, config, [1.0], MEASURED) == [101]
    evaluation = dataclasses.replace(config.evaluation, every_steps=10)
    config = dataclasses.replace(config, evaluation=evaluation)
    slow = dataclasses.replace(MEASURED, evaluation=2.0)
    # 84 steps, evaluations after 10, 20, … 80 and 84: 84 + 2 · 9 = 102; 83: 101; 82: 100.
    assert steps_within(150.0, config, [1.0], slow) == [82]
    saves = dataclasses.replace(config.checkpoint, every_steps=50)
    config = dataclasses.replace(config, checkpoint=saves)
    slow = dataclasses.replace(MEASURED, save=3.0, write=4.0)
    assert steps_within(30.0 + 20.0 + 90.0 + 2 * 3.0 + 4.0, config, [1.0], slow) == [90]
    slow = dataclasses.replace(slow, write=60.0)  # longer than 50 steps
    assert steps_within(30.0 + 20.0 + 90.0 + 2 * (3.0 + 10.0) + 60.0, config, [1.0], slow) == [90]


def test_phases_keep_their_proportions() -> None:
    config = with_phases(Config(), {"steps": 9000}, {"steps": 1000}, {"steps": 1})
    # 30 s, then 3 · 20 s of training programs, 2 · 8 s of evaluation programs, 1000 steps, of which
    # a step of the second phase takes five times as long; of the third, as long as the first.
    seconds = 30 + 3 * 20 + 2 * 8 + 900 + 5 * 100 + 1
    assert steps_within(seconds, config, [2.0, 10.0, 2.0], MEASURED) == [900, 100, 1]


@pytest.mark.parametrize(
    ("phases", "optimizer", "shortest"),
    [
        ([10], {"warmup_steps": 100}, 101),
        ([10, 10], {"warmup_steps": 0}, 2),
        ([80, 20], {"warmup_steps": 10, "schedule_over": "phase"}, 55),
        ([1000], {"warmup_steps": 90, "schedule": "wsd"}, 101),
    ],
)
def test_a_budget_shorter_than_the_warmup_is_one_line(
    phases: list[int], optimizer: dict[str, Any], shortest: int
) -> None:
    config = with_phases(Config(), *({"steps": steps} for steps in phases), **optimizer)
    flops = [1.0] * len(phases)
    start = 30 + 20 * len(phases) + 8 * (len(phases) - 1)
    warmup = optimizer["warmup_steps"]
    lower = f", or a lower --config.optimizer.warmup_steps ({warmup} now)" if warmup else ""
    with pytest.raises(UserError) as error:
        steps_within(start + shortest - 1, config, flops, MEASURED)
    assert str(error.value) == (
        f"--time_budget={start + shortest - 1}s: the shortest run has {shortest} steps, more than "
        f"its warmup, and ends after about {start + shortest} s, "
        f"of which 30 s were for compiling and measuring; give a longer budget{lower}"
    )
    steps = steps_within(start + shortest, config, flops, MEASURED)
    assert sum(config.with_steps(steps).phase_ends[-1:]) == shortest
    late = dataclasses.replace(MEASURED, elapsed=1000.0)  # over before anything was decided
    with pytest.raises(UserError, match="of which 1,000 s were for compiling and measuring"):
        steps_within(500.0, config, flops, late)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replaces the measuring by `MEASURED`; the list has the budget of each call."""
    calls: list[float] = []

    def measure(run: Any, seconds: float) -> Measured:
        calls.append(seconds)
        return MEASURED

    monkeypatch.setattr(time_budget, "measure", measure)
    return calls


def asked(store: TokenStore) -> Config:
    """The small config with 24 steps, of which a budget of 62 s leaves the usual 12."""
    return small_config(store).with_steps([24])


def recorded_steps(workdir: Path) -> list[int]:
    written = description.read_description(Workdir.open(workdir))
    return [phase["steps"] for phase in written["config"]["phases"]]


def arrays(workdir: Path) -> dict[str, bytes]:
    params, _ = checkpoint.load_params(Workdir.open(workdir))
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path): np.asarray(leaf).tobytes() for path, leaf in leaves}


@pytest.mark.slow
def test_the_run_is_the_one_that_was_configured_with_its_steps(
    store: TokenStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    measure = time_budget.measure

    def replaced(context: Any, seconds: float) -> Measured:
        assert min(dataclasses.astuple(measure(context, 1e9))) > 0
        assert context.workdir.word_start.exists()  # so it is a part of the time
        return MEASURED

    monkeypatch.setattr(speed, "_STEPS", 3)
    monkeypatch.setattr(time_budget, "measure", replaced)
    killed_before = tmp_path / "budget" / SCRATCH / "checkpoints" / "3"
    killed_before.mkdir(parents=True)
    counted = {"model.initializer": "random", "model.word_initializer": "cooccurrence"}
    config = asked(store).replace(counted)
    pretrain(config, tmp_path / "budget", options=RunOptions(time_budget=62.0))
    pretrain(small_config(store).replace(counted), tmp_path / "configured")
    decision = {"seconds": 62.0, "config_steps": [24], "steps": [12]}
    assert (
        description.read_description(Workdir.open(tmp_path / "budget"))["time_budget"] == decision
    )
    assert recorded_steps(tmp_path / "budget") == [12]
    assert complete_steps(tmp_path / "budget") == complete_steps(tmp_path / "configured")
    assert arrays(tmp_path / "budget") == arrays(tmp_path / "configured")
    assert not (tmp_path / "budget" / SCRATCH).exists()
    for kind in ("train", "eval"):
        ours, theirs = (read_records(tmp_path / run, kind) for run in ("budget", "configured"))
        assert [r["loss"] for r in ours] == [r["loss"] for r in theirs]
    missed = r"finished \S+ after the start, \S+ (before|after) the time budget"
    assert len(re.findall(missed, caplog.text)) == 1
    shown = {
        run: status_text.render(status.read_status(tmp_path / run))
        for run in ("budget", "configured")
    }
    assert re.search(missed, shown["budget"])
    assert not re.search(missed, shown["configured"])


@pytest.mark.slow
def test_the_time_is_measured_once(
    store: TokenStore, tmp_path: Path, measured: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    config, kept = (
        asked(store),
        "trains 12 steps, decided at its start by a time budget of 0:01:02",
    )
    with pytest.raises(StoppedError):
        pretrain(config, tmp_path, options=RunOptions(time_budget=62.0, stop_after=2))
    for budget in (None, 62.0, 3600.0):  # without the flag, with it, and with another value
        stop = complete_steps(tmp_path)[-1] + 1
        with pytest.raises(StoppedError):
            pretrain(config, tmp_path, options=RunOptions(time_budget=budget, stop_after=stop))
        assert recorded_steps(tmp_path) == [12]
    lines = [line for line in caplog.messages if line.startswith("trains 12 steps")]
    assert lines == [kept, kept, f"{kept}; --time_budget changes nothing"]
    pretrain(config, tmp_path)
    assert complete_steps(tmp_path)[-1] == 12
    assert measured == [62.0]


def test_a_run_that_has_steps_keeps_those_of_its_configuration(
    store: TokenStore,
    tmp_path: Path,
    measured: list[float],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of a run without a budget, and of one that the user extends."""
    with pytest.raises(StoppedError):
        pretrain(small_config(store), tmp_path, options=RunOptions(stop_after=2))
    monkeypatch.setattr(loop, "_train", lambda *_: None)
    for steps in (12, 15):
        pretrain(
            small_config(store).with_steps([steps]), tmp_path, options=RunOptions(time_budget=62.0)
        )
        assert recorded_steps(tmp_path) == [steps]
        assert f"this run has started and keeps its {steps} steps" in caplog.text
    assert measured == []


def test_killed_before_a_checkpoint_it_keeps_the_decision(
    store: TokenStore, tmp_path: Path, measured: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_train", lambda *_: None)  # as if killed there
    for budget in (62.0, 63.0, None):
        pretrain(asked(store), tmp_path, options=RunOptions(time_budget=budget))
        assert recorded_steps(tmp_path) == [12]
    assert measured == [62.0]
    data = dataclasses.replace(asked(store).data, short_seq_prob=0.5)
    other = dataclasses.replace(asked(store), data=data)  # another run, of another speed
    pretrain(other, tmp_path, options=RunOptions(time_budget=63.0))
    assert recorded_steps(tmp_path) == [13]
    assert measured == [62.0, 63.0]


def test_killed_while_measuring_it_measures_again(
    store: TokenStore, tmp_path: Path, measured: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_train", lambda *_: None)
    with monkeypatch.context() as patch:
        patch.setattr(time_budget, "measure", lambda *_: exec("raise KeyboardInterrupt"))
        with pytest.raises(KeyboardInterrupt):
            pretrain(asked(store), tmp_path, options=RunOptions(time_budget=62.0))
    (tmp_path / SCRATCH).mkdir()
    with pytest.raises(UserError, match="the shortest run has 4 steps"):
        pretrain(asked(store), tmp_path, options=RunOptions(time_budget=53.0))
    assert {path.name for path in tmp_path.iterdir()} == {".lock", SCRATCH}  # nothing else
    pretrain(asked(store), tmp_path, options=RunOptions(time_budget=54.0))
    assert recorded_steps(tmp_path) == [4]


def test_measuring_stops_when_the_budget_is_over(
    store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count(step=10.0)
    monkeypatch.setattr(speed, "_elapsed", lambda job: next(ticks))
    with pytest.raises(UserError, match=r"^--time_budget=25s: .* of which 40 s were for"):
        # Five steps, and no evaluation.
        pretrain(asked(store), tmp_path, options=RunOptions(time_budget=25.0))
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.slow
def test_a_student_s_steps_are_measured_with_its_teacher(
    store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretrain(small_config(store).with_steps([4]), tmp_path / "teacher")
    monkeypatch.setattr(speed, "_STEPS", 2)
    monkeypatch.setattr(loop, "_train", lambda *_: None)
    config = asked(store).replace("teacher", str(tmp_path / "teacher@4"))
    pretrain(config, tmp_path / "run", options=RunOptions(time_budget=3600.0))
    assert recorded_steps(tmp_path / "run") != [24]


def test_a_program_from_the_cache_counts_as_compiled(store: TokenStore) -> None:
    assert f'"{speed._SAVED}"' in inspect.getsource(compiler).replace("'", '"')

    def loaded() -> str:
        jax.monitoring.record_event_duration_secs(speed._SAVED, 5e6)
        jax.monitoring.record_event_duration_secs("/jax/another", 9e6)
        return "program"

    listening = monitoring.get_event_duration_listeners()
    with in_process_job(small_config(store)) as job:
        program, seconds = speed._compiled(job, loaded)
    assert program == "program"
    assert 5e6 <= seconds < 9e6
    assert monitoring.get_event_duration_listeners() == listening


def test_phases_begin_where_the_decided_steps_end(store: TokenStore, tmp_path: Path) -> None:
    config = two_phases(store, (600, 300))
    with in_process_job(config) as job:
        run = setup.prepare(config, Workdir.open(tmp_path), job, StoreData(store))
        made = setup.with_steps(run, [4, 2])
    assert [(phase.first, phase.last) for phase in made.phases] == [(0, 4), (4, 6)]
    assert made.config == config.with_steps([4, 2])
    assert made.description["config"] == to_dict(made.config)


def test_a_falling_mask_rate_falls_over_the_decided_steps(
    store: TokenStore, tmp_path: Path
) -> None:
    own = {"phases[0].mask_rate": 0.4, "phases[0].mask_rate_end": 0.1}
    config = two_phases(store, (600, 300)).replace(own)
    with in_process_job(config) as job:
        run = setup.prepare(config, Workdir.open(tmp_path), job, StoreData(store))
        made = setup.with_steps(run, [4, 2])
    shares = []
    for phase in (run.phases[0], made.phases[0]):
        batch = phase.data.train.batch(3)
        shares.append(batch["masked_weights"].sum() / (batch["example_ids"] > 0).sum())
    assert shares[0] > 0.35
    assert 0.1 < shares[1] < 0.2  # 0.4 - 0.3·3/4
    assert made.phases[1].data is run.phases[1].data


# A program in which each process measures another speed.
OTHERWISE = """
from bert_jax import cli
from bert_jax.training import time_budget

measure = time_budget.measure

def replaced(run, seconds):
    measure(run, 1e9)
    return time_budget.Measured(30.0, 20.0, 8.0, step=1.0 + run.job.peers.process_id)

time_budget.measure = replaced
raise SystemExit(cli.main())
"""


@pytest.mark.nightly
@pytest.mark.processes
def test_process_0_decides_for_all(store: TokenStore, tmp_path: Path) -> None:
    asked, decided = (deep_config(store, steps=steps) for steps in (24, 6))
    program, flags = ("-c", OTHERWISE), ("--time_budget=56s",)
    run(asked, tmp_path / "two", tmp_path, processes=2, program=program, flags=flags)
    assert recorded_steps(tmp_path / "two") == [6]
    run(decided, tmp_path / "one", tmp_path, processes=1)
    assert_same_bits(tmp_path / "two", tmp_path / "one")


@pytest.mark.parametrize(
    ("wall", "text"),
    [
        (3552.0, "finished 0:59:12 after the start, 0:00:48 before the time budget"),
        (3600.0, "finished 1:00:00 after the start, 0:00:00 before the time budget"),
        (3605.0, "finished 1:00:05 after the start, 0:00:05 after the time budget"),
    ],
)
def test_how_far_the_end_missed(wall: float, text: str) -> None:
    assert time_left.against_budget(wall, 3600.0) == text


@pytest.mark.parametrize("damage", [[], {"steps": [1]}, {"seconds": "1", "steps": [1]}])
def test_a_damaged_decision_is_one_line(damage: Any, store: TokenStore, tmp_path: Path) -> None:
    written = {"config": {"phases": [{"steps": 1}]}, "data": {}, "time_budget": damage}
    (tmp_path / "config.json").write_text(json.dumps(written))
    with pytest.raises(UserError, match=r"its config\.json is not from a pretraining run"):
        pretrain(small_config(store), tmp_path)
