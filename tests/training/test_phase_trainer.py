"""A phase of a run: what counts as its step time; its end, which all processes reach together."""

import dataclasses
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import jax
import pytest
from corpus import small_config, small_store
from runs import complete_steps

from bert_jax.config.schema import Config
from bert_jax.distributed.peers import ProcessGroup
from bert_jax.errors import StoppedError
from bert_jax.metrics import step_metrics
from bert_jax.training import phase_trainer
from bert_jax.training.loop import pretrain
from bert_jax.training.options import RunOptions
from bert_jax.training.phase_trainer import PhaseTrainer

HOST, DEVICE, EVALUATION = 0.125, 0.75, 64.0  # seconds of a step and of an evaluation


class Machine:
    """A host with a device, whose time passes only where they work or one waits for the other."""

    now = ready = 0.0  # ready: when the device has done what it was given

    def perf_counter(self) -> float:
        return self.now

    def dispatch(self, step: int, *_: Any) -> tuple[None, dict[str, Any]]:
        self.now += HOST
        self.ready = max(self.now, self.ready) + DEVICE
        numbers = {"learning_rate": 0.0, "grad_norm": 1.0, "skipped": False, "in_row": 0}
        return None, numbers | {"sums": {"tokens": {"real": 1.0, "all": 1.0}}, "ready": self.ready}

    def device_get(self, numbers: dict[str, Any]) -> dict[str, Any]:
        self.now = max(self.now, numbers["ready"])
        return numbers

    def block_until_ready(self, pending: Any) -> None:
        if pending:
            self.device_get(pending[1])

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        self.now += EVALUATION
        return {}


def trainer_on(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, *, log_every_steps: int
) -> PhaseTrainer:
    fake_jax = SimpleNamespace(
        device_get=machine.device_get, block_until_ready=machine.block_until_ready, tree=jax.tree
    )
    monkeypatch.setattr(step_metrics, "jax", fake_jax)
    monkeypatch.setattr(step_metrics, "summarize", lambda sums, sources: {"loss": 1.0})
    for module in (step_metrics, phase_trainer):
        monkeypatch.setattr(module, "time", machine)
    config = dataclasses.replace(Config(), log_every_steps=log_every_steps)
    peers = SimpleNamespace(
        hosts=["a"], process_id=0, is_first=True, all_gather_text=lambda name, own: [own]
    )
    run = MagicMock(
        job=MagicMock(peers=peers), config=config, fills=None, frozen=(),
        description={"step_flops": [1.0] * len(config.phases)},
        step_metrics=lambda read: step_metrics.StepMetrics((), 1.0, None),
    )  # fmt: skip
    phase = MagicMock(first=0, last=config.total_steps, index=0)
    phase.data.held_out.evaluate = machine.evaluate
    profiler = MagicMock(run=machine.dispatch)
    return PhaseTrainer(run, phase, MagicMock(), MagicMock(), MagicMock(), MagicMock(), profiler)


def train_records(trainer: PhaseTrainer, steps: int) -> list[dict[str, Any]]:
    state: Any = None
    for step in range(trainer.done, trainer.done + steps):
        state = trainer.train_step(step, state, MagicMock())
        if trainer.is_due(trainer.config.log_every_steps):
            trainer.log()
    calls = [call.args for call in trainer.writer.write.call_args_list]
    return [values for kind, _, _, values in calls if kind == "train"]


@pytest.mark.parametrize("log_every_steps", [1, 2, 10])
def test_a_wait_for_the_device_is_no_host_time_however_often_it_is_logged(
    log_every_steps, monkeypatch
):
    """On a step that is logged, the host waits for its result to find whether it was skipped."""
    trainer = trainer_on(Machine(), monkeypatch, log_every_steps=log_every_steps)
    records = train_records(trainer, 20)
    assert len(records) == 20 // log_every_steps
    assert {tuple(record["hosts/own"]) for record in records} == {(HOST,)}


def test_an_evaluation_that_is_repeated_is_no_step_time(monkeypatch):
    trainer = trainer_on(Machine(), monkeypatch, log_every_steps=1)
    trainer.done = trainer.config.evaluation.every_steps
    trainer.repeat_evaluation(MagicMock())
    (record,) = train_records(trainer, 1)
    assert record["step_seconds"] == HOST + DEVICE
    trainer.checkpoints.note_evaluation.assert_called_once_with(trainer.done - 1, {})


def test_a_run_that_stops_waits_for_all_processes_once_its_checkpoint_is_written(
    tmp_path, monkeypatch
):
    """A process that exits before would end process 0, which may still be writing."""
    run, exchanges = tmp_path / "run", []
    gather = ProcessGroup.all_gather_text

    def all_gather_text(peers: ProcessGroup, name: str, *args: Any, **options: Any) -> list[str]:
        exchanges.append((name, complete_steps(run)))
        return gather(peers, name, *args, **options)

    monkeypatch.setattr(ProcessGroup, "all_gather_text", all_gather_text)
    with pytest.raises(StoppedError):
        pretrain(
            small_config(small_store(tmp_path / "store")), run, options=RunOptions(stop_after=1)
        )
    assert exchanges[-1] == ("saved", [1])
