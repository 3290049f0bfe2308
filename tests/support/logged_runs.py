"""The folders of runs, written without training, and what their pages show."""

import dataclasses
import json
import time
from pathlib import Path

import jax
import numpy as np
from corpus import small_store, two_phases

from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.config.schema import Config
from bert_jax.metrics import run_records
from bert_jax.metrics.flops import step_flops
from bert_jax.training import claim
from bert_jax.workdir.layout import Workdir

SCALARS = {
    "loss": 5.0, "mlm/loss": 4.25, "mlm/accuracy": 0.1, "mlm/baseline_loss": 4.5,
    "mlm/baseline_accuracy": 0.05, "nsp/loss": 0.75, "nsp/accuracy": 0.6,
    "nsp/baseline_loss": 0.69, "nsp/baseline_accuracy": 0.5, "nsp/source_accuracy": 0.55,
}  # fmt: skip
REFRESH = '<meta http-equiv="refresh"'


def config_of_two_phases(folder: Path) -> Config:
    """Of runs that keep more checkpoints than the newest; folder: of the store."""
    config = two_phases(small_store(folder), (60, 40), log_every_steps=10)
    return dataclasses.replace(
        config,
        checkpoint=dataclasses.replace(
            config.checkpoint, every_steps=10, keep=2, keep_every_steps=40
        ),
    )


def folder_of_a_run(path: Path, config: Config, done: int, *, age: float = 0.0) -> Path:
    """The folder of a run after a number of steps, written without training."""
    description = {
        "config": json.loads(json.dumps(dataclasses.asdict(config))),
        "data": {"tokenizer": "t", "train": "a", "held_out": "h", "rows_per_epoch": [80, 50]},
        "step_flops": [step_flops(config, phase) for phase in config.phases],
    }
    claim.update_config_json(Workdir.open(path), description, resuming_at=None)
    speed = {"step_seconds": 0.5, "tokens_per_second": 1000.0}
    checkpoints = RunCheckpoints(Workdir.open(path), config.checkpoint, config.phase_ends)
    with (path / "metrics.jsonl").open("w") as log:
        for step in range(10, done + 1, 10):
            phase = config.phase_at(step - 1)[0]
            held_out = {**SCALARS, "loss": 5.0 if step in (20, 90) else 6.0}
            for kind, scalars in (("train", {**SCALARS, **speed}), ("eval", held_out)):
                record = json.loads(run_records.line(kind, step, phase, scalars))
                log.write(json.dumps({**record, "time": time.time() - age}) + "\n")
            state = {
                "step": np.int32(step),
                "params": {"x": jax.numpy.ones(9)},
                "opt": {"m": jax.numpy.ones(9)},
            }
            checkpoints.save(state, description, phase=phase, evaluation=held_out)
    checkpoints.close()
    return path
