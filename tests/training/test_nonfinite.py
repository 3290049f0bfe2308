"""Steps whose loss or gradient is not finite: skipped to the bit, counted, reported, limited.

Numbers go wrong here as they would in a run: an infinite weight in a batch, parameters so large
that something overflows.
"""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from corpus import small_store
from small import run_config
from small_step import ALL_AT_ONCE, CORPUS, mesh_of, place, rows_of, small
from tiny_words import TINY

from bert_jax import cli, exit_codes
from bert_jax.checkpoint.manager import RunCheckpoints, load_params
from bert_jax.config.schema import CheckpointConfig, Config
from bert_jax.config.serialization import to_dict
from bert_jax.metrics import run_records as metrics
from bert_jax.metrics.step_metrics import SkippedStep, StepMetrics
from bert_jax.objectives.total import summarize
from bert_jax.reporting import html, run_page, status, status_text
from bert_jax.runtime import console
from bert_jax.training import progress, skip_nonfinite
from bert_jax.training.step import make_step_functions
from bert_jax.workdir.layout import Workdir

LIMIT = 3
GOOD, BAD = "good", "bad"


class Steps:
    """A phase compiled as a run compiles it, and two batches: one with an infinite weight."""

    def __init__(self, config: Config):
        limited = dataclasses.replace(config.optimizer, max_nonfinite_steps=LIMIT)
        self.config = dataclasses.replace(config, optimizer=limited)
        arrays = rows_of(self.config)
        # Of one row: with micro-batches, the others' losses are finite.
        spoilt = {**arrays, "masked_weights": arrays["masked_weights"].copy()}
        spoilt["masked_weights"][5, 0] = np.inf
        mesh = mesh_of(self.config)
        with jax.set_mesh(mesh):
            self.program = make_step_functions(self.config, mesh, CORPUS)
            self._step = self.program.compile_train(arrays, self.config.phases[0])
            self.first = jax.tree.map(np.asarray, self.program.init())
        self._batches = {
            GOOD: place(self.program, arrays),
            BAD: place(self.program, spoilt),
        }

    def on_devices(self, state: Any) -> Any:
        return jax.tree.map(
            lambda x, a: jax.device_put(x, a.sharding), state, self.program.abstract
        )

    def run(self, state: Any, kinds: Sequence[str]) -> tuple[list[Any], list[Any]]:
        """The state after each of some steps and their metrics, both copied to the host."""
        state, states, said = self.on_devices(state), [], []
        for kind in kinds:
            state, one = self._step(state, self._batches[kind])
            where = jax.tree.map(lambda x: x.sharding, state)
            assert where == jax.tree.map(lambda a: a.sharding, self.program.abstract)
            states.append(jax.tree.map(np.array, state))  # copies: the next step takes the state
            said.append(jax.tree.map(np.array, one))
        return states, said


def bits(tree: Any) -> dict[str, bytes]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(x).tobytes() for path, x in leaves}


def learned(state: Any) -> dict[str, bytes]:
    """The bits of parameters, moments and their count."""
    return bits({"params": state["params"], "opt": state["opt"]})


def counts(state: Any) -> tuple[int, int]:
    return int(state["nonfinite"]["in_row"]), int(state["nonfinite"]["total"])


@pytest.fixture(scope="module")
def plain() -> Steps:
    return Steps(small("mlm"))


CASES = [
    pytest.param({"optimizer": {"name": "adamw"}}, id="adamw", marks=pytest.mark.nightly),
    pytest.param(
        {"learned": "mlm+nsp+sbo", **ALL_AT_ONCE}, id="everything", marks=pytest.mark.slow,
    ),
    pytest.param(
        {
            "learned": "mlm", "optimizer": {"name": "lamb"}, "mesh": {"data": 8},
            "compute": {"dtype": "bfloat16", "shard_optimizer": True},
            "model": {"hidden_dropout_prob": 0.1},
        },
        id="lamb-data8-bf16", marks=pytest.mark.nightly,
    ),
    pytest.param(
        {"optimizer": {"name": "bert_adamw", "clip_norm": 0.0}, "phase": {"micro_batches": 4}},
        id="unclipped-micro-batches", marks=pytest.mark.nightly,
    ),
    pytest.param(
        {"optimizer": {"name": "lamb_clamped"}, "mesh": {"data": 2, "fsdp": 4}},
        id="lamb-fsdp", marks=pytest.mark.nightly,
    ),
]  # fmt: skip


@pytest.mark.parametrize("changes", CASES)
def test_a_skipped_step_changes_no_bit_and_the_limit_holds(changes: dict) -> None:
    steps = Steps(small(**changes))
    kinds = [GOOD, BAD, BAD, GOOD, BAD, BAD, BAD, GOOD, BAD, GOOD]
    states, said = steps.run(steps.first, kinds)
    assert [int(s["step"]) for s in states] == list(range(1, 11))
    assert [counts(s) for s in states] == [
        (0, 0), (1, 1), (2, 2), (0, 2), (1, 3), (2, 4), (3, 5), (3, 6), (3, 7), (3, 8),
    ]  # fmt: skip
    assert [int(m["skipped"]) for m in said] == [0, 1, 1, 0, 1, 1, 1, 1, 1, 1]
    assert [int(m["in_row"]) for m in said] == [counts(s)[0] for s in states]
    finite = [bool(np.isfinite(m["loss"]) and np.isfinite(m["grad_norm"])) for m in said]
    assert finite == [kind == GOOD for kind in kinds]
    before = learned(steps.first)
    for index, state in enumerate(states):
        now = learned(state)
        if said[index]["skipped"]:
            assert now == before, f"step {index}"
        else:
            assert now != before
            assert all(np.isfinite(x).all() for x in jax.tree.leaves(state["params"]))
        before = now
    # The next start counts anew and trains on, from the last good step.
    again = skip_nonfinite.reset_if_latched(steps.on_devices(states[-1]), LIMIT)
    assert again["nonfinite"]["in_row"].sharding == steps.program.abstract["step"].sharding
    ((last,), _) = steps.run(again, [GOOD])
    assert counts(last) == (0, 8)
    assert learned(last) != before


def test_what_follows_a_skipped_step_is_what_it_would_have_been(plain: Steps) -> None:
    """Skipped steps leave no trace but in the step: state and batches give the same bits."""
    (_, second), _ = plain.run(plain.first, [BAD, GOOD])
    (only,), _ = plain.run({**plain.first, "step": np.int32(1)}, [GOOD])
    assert learned(second) == learned(only)


def test_a_run_below_its_limit_goes_on_counting(plain: Steps) -> None:
    (state,), _ = plain.run(plain.first, [BAD])
    assert skip_nonfinite.reset_if_latched(state, LIMIT) is state


@pytest.mark.parametrize("stop", [2, 3])
def test_going_on_from_a_checkpoint_gives_the_same_bits(
    plain: Steps, tmp_path: Path, stop: int
) -> None:
    """Of the counts too: saved one or two steps before the limit, it is reached at the same one."""
    kinds = [GOOD, BAD, BAD, BAD, GOOD]
    states, _ = plain.run(plain.first, kinds)
    keep = CheckpointConfig(
        every_steps=1, keep=1, keep_every_steps=0, keep_best=False, write_attempts=1
    )
    checkpoints = RunCheckpoints(Workdir.open(tmp_path), keep)
    checkpoints.save(plain.on_devices(states[stop - 1]), {})
    checkpoints.close()
    checkpoints = RunCheckpoints(Workdir.open(tmp_path), keep)
    restored, _ = checkpoints.restore_newest(plain.program.abstract)
    checkpoints.close()
    resumed, _ = plain.run(restored, kinds[stop:])
    assert [bits(s) for s in resumed] == [bits(s) for s in states[stop:]]
    assert counts(resumed[-1]) == (LIMIT, 4)


def test_infinite_parameters_are_left_as_they_are(plain: Steps) -> None:
    state = jax.tree.map(np.copy, plain.first)
    state["params"]["encoder"]["layers"]["mlp"]["up"]["kernel"][0, 0, 0] = np.inf
    (after,), (said,) = plain.run(state, [GOOD])
    assert said["skipped"]
    assert learned(after) == learned(state)


def test_a_gradient_too_large_for_its_norm_is_skipped_though_the_loss_is_finite(
    plain: Steps,
) -> None:
    state = jax.tree.map(np.copy, plain.first)
    state["params"]["mlm"]["norm"]["scale"] *= np.float32(1e22)
    (after,), (said,) = plain.run(state, [GOOD])
    assert np.isfinite(said["loss"])
    assert not np.isfinite(said["grad_norm"])
    assert said["skipped"]
    assert learned(after) == learned(state)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_loss_or_a_norm_alone_is_enough(bad: float) -> None:
    for loss, norm in ((bad, 1.0), (1.0, bad)):
        update, after = skip_nonfinite.should_update(
            skip_nonfinite.start(), LIMIT, jax.numpy.float32(loss), jax.numpy.float32(norm)
        )
        assert not update
        assert counts({"nonfinite": after}) == (1, 1)


def test_a_rate_that_throws_the_parameters_away_ends_at_the_limit() -> None:
    steps = Steps(small("mlm", optimizer={"learning_rate": 1e30}))
    states, said = steps.run(steps.first, [GOOD] * 5)
    assert [int(m["in_row"]) for m in said] == [0, 1, 2, 3, 3]
    assert learned(states[-1]) == learned(states[0])
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(states[-1]["params"]))


def report_of(said: Sequence[Any], first: int = 0) -> tuple[StepMetrics, list[list[SkippedStep]]]:
    """A report that was told of some steps, and what it found after each."""
    made = StepMetrics(CORPUS.sources, flops=1.0, peak=None)
    found = []
    for step, one in enumerate(said, first):
        made.add(one, step)
        found.append(made.skipped())
    return made, found


def strictly(text: str) -> Any:
    """Parsed by a reader that knows no NaN."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_report_leaves_skipped_steps_out_and_names_them_one_step_late(plain: Steps) -> None:
    _, said = plain.run(plain.first, [GOOD, BAD, GOOD, BAD])
    made, found = report_of(said, first=40)
    assert found == [[], [], [SkippedStep(41, 1)], []]
    assert made.skipped(wait=True) == [SkippedStep(43, 1)]
    assert made.skipped(wait=True) == []
    with made.paused():
        scalars = made.take()
    assert made.skipped() == []
    losses = [summarize(said[i]["sums"], CORPUS.sources)["loss"] for i in (0, 2)]
    assert scalars["loss"] == pytest.approx(np.mean(losses))
    assert scalars["grad_norm"] == float(said[2]["grad_norm"])
    assert scalars["learning_rate"] == float(said[3]["learning_rate"])
    assert scalars["skipped_steps"] == 2
    # Speeds are those of all four: the devices and the clock did not skip them.
    real = 4 * float(said[0]["sums"]["tokens"]["real"])
    assert scalars["tokens_per_second"] * 4 * scalars["step_seconds"] == pytest.approx(real)
    assert all(map(np.isfinite, scalars.values()))
    made.add(said[0], 44)
    again = made.take()
    assert again["loss"] == pytest.approx(losses[0])
    assert "skipped_steps" not in again


def test_a_stretch_of_skipped_steps_only_is_shown_without_a_loss(
    plain: Steps, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, said = plain.run(plain.first, [BAD, BAD])
    scalars = report_of(said)[0].take()
    assert scalars["skipped_steps"] == 2
    assert not {"loss", "mlm/loss", "mlm/accuracy", "grad_norm"} & set(scalars)
    assert {"learning_rate", "step_seconds", "tokens_per_second", "padding"} <= set(scalars)
    record = strictly(metrics.line("train", 2, 0, scalars))
    monkeypatch.setattr(console, "console", console.rich.console.Console(soft_wrap=True))
    with progress.RunDisplay(20, 0) as display:
        display.train(2, scalars, 60.0)
    assert "step 2/20  no finite loss  " in capsys.readouterr().out
    good = summarize(plain.run(plain.first, [GOOD])[1][0]["sums"], CORPUS.sources)
    held_out = {"kind": "eval", "step": 4, "time": 0.0, **good}
    other = {**record, **good, "step": 4}
    lines = [json.dumps(one) for one in (other, record, held_out)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    page = html.Page("run")
    run_page.add_training(page, run_page.Logged.read(Workdir.open(tmp_path).metrics))
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    description = {"config": to_dict(run_config()), "data": {"rows_per_epoch": [10]}}
    (folder / "config.json").write_text(json.dumps(description))
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    assert "no finite loss, " in status_text.render(status.read_status(folder))


def test_a_figure_that_is_not_finite_is_null_in_a_record() -> None:
    scalars = {"loss": float("nan"), "mlm/loss": float("inf"), "mlm/accuracy": 0.5, "rows": 3}
    record = strictly(metrics.line("eval", 1, 0, scalars))
    assert (record["loss"], record["mlm/loss"], record["mlm/accuracy"]) == (None, None, 0.5)


def test_the_line_of_the_end_says_what_to_do() -> None:
    line = SkippedStep(14, 10).stop("run", 16)
    for said in (
        "steps 5 to 14", "max_nonfinite_steps=10", "parameters of step 5",
        "saved as step 16 in run", "bert-jax data batch --workdir=run --step=5",
        "--config.optimizer.learning_rate",
    ):  # fmt: skip
        assert said in line
    assert "\n" not in line
    assert SkippedStep(7, 1).stop("run", 8).startswith("step 7: ")
    of_task = SkippedStep(14, 10).stop("run", 16, task="rte")
    assert "data batch" not in of_task
    assert "saved as step 16 in run. lower --config.optimizer.learning_rate then run" in of_task


@pytest.mark.slow
@pytest.mark.processes
def test_a_run_whose_numbers_go_wrong_ends_with_44_and_its_last_good_parameters(
    tmp_path: Path,
) -> None:
    """Rates 0 and 1e30/3 in steps 0 and 1; the steps after that have no finite loss."""
    store, run = small_store(tmp_path / "store").path, tmp_path / "run"
    command = [
        sys.executable, "-m", "bert_jax", "pretrain", "--cpu_devices=1", *TINY,
        f"--config.data.store={store}", f"--workdir={run}",
        "--config.model.num_hidden_layers=1", "--config.phases[0].steps=20",
        "--config.optimizer.learning_rate=1e30", "--config.optimizer.warmup_steps=3",
        "--config.optimizer.max_nonfinite_steps=3", "--config.log_every_steps=4",
        "--config.checkpoint.every_steps=2", "--config.checkpoint.keep_every_steps=2",
    ]  # fmt: skip
    # The second run starts from a checkpoint at the limit: the count restarts at the next steps.
    for first, saved in ((2, 6), (6, 10)):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
        assert ended.returncode == exit_codes.NUMBERS, ended.stderr
        assert "Traceback" not in ended.stderr
        said = ended.stderr.splitlines()[-1]
        steps = f"error: steps {first} to {first + 2}: loss or gradient not finite"
        assert said.startswith(steps), ended.stderr
        assert f"parameters of step {first} are saved as step {saved} in {run}" in said
    records = [strictly(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(r["step"], r["in_row"]) for r in records if r["kind"] == "skipped"] == [
        (2, 1), (3, 2), (4, 3), (5, 3), (6, 1), (7, 2), (8, 3), (9, 3),
    ]  # fmt: skip
    losses = ["loss" in r for r in records if r["kind"] == "train"]
    assert losses == [True, False]  # of steps 0 to 3, and of 6 and 7
    good = bits(load_params(Workdir.open(run), 2)[0])
    for step in (4, 6, 8, 10):
        assert bits(load_params(Workdir.open(run), step)[0]) == good
    for verb in (["data", "batch", "--step=2"], ["status"]):  # what the line says can be done
        assert cli.main([*verb, f"--workdir={run}"]) == exit_codes.DONE
