"""`bert-jax` with something in it that takes long, in one process or in all of them.

    SLOW='{"host": "host-1", "batch": [5, 3.0]}' python slow_process.py pretrain …

What takes longer says so when it begins: "slow batch", "slow held_out", "slow write", "slow
compile"; besides, each process says "asked to stop" when it knows and "stops at step N" when it
does. `launch local run` starts processes that do so.

    host: BERT_JAX_HOST_NAME of the process; without it all are slow
    batch: from this step of a phase on, making a process's part of a batch takes so many seconds
    held_out: the same for a batch of an evaluation
    write: the same for writing a checkpoint
    compile: the same for compiling the training step of a phase
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from bert_jax import cli
from bert_jax.checkpoint import orbax_io
from bert_jax.data_pipeline.batch import Batches
from bert_jax.distributed.preemption import PreemptionHandler
from bert_jax.launch import local
from bert_jax.training import phase_trainer
from bert_jax.training.step import StepFunctions


def before(owner: Any, name: str, do: Callable[..., None]) -> None:
    """Has something done before each call of a function of a module or a class."""
    original = getattr(owner, name)

    def changed(*args: Any, **kwargs: Any) -> Any:
        do(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, changed)


def slow(what: str, seconds: float) -> None:
    print(f"slow {what}", flush=True)
    time.sleep(seconds)


def make_slow(asked: dict[str, Any]) -> None:
    def batch(self: Batches, step: int, rows: Any) -> None:
        if len(rows) and step >= asked["batch"][0]:  # without rows only the shape is asked for
            slow("batch", asked["batch"][1])

    def held_out(self: Batches, index: int, rows: Any) -> None:
        if len(rows):
            slow("held_out", asked["held_out"])

    if "batch" in asked:
        before(Batches, "batch", batch)
    if "held_out" in asked:
        before(Batches, "evaluation_batch", held_out)
    if "write" in asked:
        before(orbax_io, "write", lambda *args: slow("write", asked["write"]))
    if "compile" in asked:
        before(StepFunctions, "compile_train", lambda *args: slow("compile", asked["compile"]))


def main() -> int:
    def stops(self: phase_trainer.PhaseTrainer, *args: Any) -> None:
        print(f"stops at step {self.done}", flush=True)

    def run(command: list[str], *args: Any) -> int:
        assert command[:3] == [sys.executable, "-m", "bert_jax"]
        return original_run([sys.executable, __file__, *command[3:]], *args)

    original_run, local.run = local.run, run
    before(phase_trainer.PhaseTrainer, "_end", stops)
    before(PreemptionHandler, "agree", lambda self, why: print("asked to stop", flush=True))
    asked = json.loads(os.environ.get("SLOW", "{}"))
    host = os.environ.get("BERT_JAX_HOST_NAME")
    if asked.pop("host", host) == host:
        make_slow(asked)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
