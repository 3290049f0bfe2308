"""Real processes of a run on this machine, and what they leave behind.

Every process is killed when the test ends, whatever happens; a test that fails shows their output.
"""

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from corpus import small_config
from runs import complete_steps, read_meta, read_records
from signals import with_signals

from bert_jax.config.schema import Config
from bert_jax.config.serialization import to_dict
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.workdir.layout import Workdir

_EXACT = ("step", "phase", "grad_norm", "learning_rate")  # in records, beside what is measured
LIMIT = 240.0  # seconds for whatever is waited for; on a busy machine of two cores
DEVICES = 4  # in all processes together


def deep_config(store: TokenStore, *, steps: int = 8, **changes: object) -> Config:
    """Four layers, 64 wide, dropout 0.1, rows packed with up to 4 examples; saved every 2 steps."""
    config = small_config(store)
    model = dataclasses.replace(
        config.model,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    phase = dataclasses.replace(
        config.phases[0], steps=steps, batch_size=16, examples_per_row=4, max_predictions=5
    )
    return dataclasses.replace(
        config,
        model=model,
        phases=(phase,),
        log_every_steps=1,
        compute=dataclasses.replace(config.compute, unroll_layers=1),
        checkpoint=dataclasses.replace(config.checkpoint, every_steps=2, keep=100),
        evaluation=dataclasses.replace(config.evaluation, every_steps=4, batches=2),
        **changes,
    )


def config_file(config: Config, path: Path) -> Path:
    """The configuration as a file for `--config`."""
    path.write_text(
        "from ml_collections import ConfigDict\n\n\ndef get_config():\n"
        f"    return ConfigDict({to_dict(config)!r})\n"
    )
    return path


@dataclasses.dataclass(frozen=True)
class Process:
    """One process of a job; host-0, host-1, … to the program."""

    popen: subprocess.Popen
    output: Path

    def said(self) -> str:
        """All it has printed so far."""
        return self.output.read_text(errors="replace")


class Job:
    """The processes of one attempt at a run: `with Job(config, workdir, folder, processes=2)`."""

    def __init__(
        self,
        config: Config,
        workdir: Path,
        folder: Path,
        *,
        processes: int,
        devices: int = DEVICES,
        one_core: bool = False,
        program: Sequence[str] = ("-m", "bert_jax"),
        flags: Sequence[str] = (),
        env: dict[str, str] | None = None,
        env_of: Mapping[int, dict[str, str]] | None = None,
    ):
        """Starts them.

        Args:
            folder: for the configuration and the output; a job of its own below it.
            devices: in all processes together.
            one_core: each process has one core, the next the next one.
            program: what Python is to run. flags: more words for every process.
            env: more variables. env_of: process -> still more.
        """
        folder = folder / f"job_{time.monotonic_ns()}"
        folder.mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        common = [
            *(sys.executable, *program, "pretrain"),
            f"--config={config_file(config, folder / 'config.py')}",
            f"--workdir={workdir}",
            f"--cpu_devices={devices // processes}",
            f"--coordinator=127.0.0.1:{port}",
            f"--num_processes={processes}",
            *flags,
        ]
        self.processes: list[Process] = []
        for index in range(processes):
            output = folder / f"host-{index}.txt"
            with output.open("wb") as file:
                popen = subprocess.Popen(
                    with_signals([*common, f"--process_id={index}"]),
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env={
                        **os.environ,
                        "BERT_JAX_HOST_NAME": f"host-{index}",
                        **(env or {}),
                        **(env_of or {}).get(index, {}),
                    },
                )
            self.processes.append(Process(popen, output))
            if one_core and hasattr(os, "sched_setaffinity"):
                cores = sorted(os.sched_getaffinity(0))
                os.sched_setaffinity(popen.pid, {cores[index % len(cores)]})

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        for process in self.processes:
            if process.popen.poll() is None:
                process.popen.send_signal(signal.SIGCONT)
                process.popen.kill()
            process.popen.wait()
        if kind is not None:
            print(self.said())  # pytest shows it beside the failure

    def said(self) -> str:
        """What all processes printed, each under its name and how it ended."""
        return "\n".join(
            f"--- host-{index}, exit code {process.popen.poll()}\n{process.said()}"
            for index, process in enumerate(self.processes)
        )

    def wait_for(self, condition: Callable[[], Any], what: str, seconds: float = LIMIT) -> Any:
        """What the condition gives as soon as it is true; all processes are to live until then."""
        end = time.monotonic() + seconds
        while not (found := condition()):
            if time.monotonic() > end:
                pytest.fail(f"no {what} within {seconds:.0f} s")
            ended = [p.popen.poll() for p in self.processes]
            if any(code is not None for code in ended):
                pytest.fail(f"exit codes {ended} before {what}")
            time.sleep(0.02)
        return found

    def wait_for_line(self, text: str, process: int = 0, seconds: float = LIMIT) -> None:
        """Waits until a process has printed the text."""
        self.wait_for(
            lambda: text in self.processes[process].said(), f"{text!r} of host-{process}", seconds
        )

    def send(self, number: signal.Signals, process: int) -> None:
        self.processes[process].popen.send_signal(number)

    def codes(self, seconds: float = LIMIT) -> list[int]:
        """The exit codes of all processes, by process, once they have ended."""
        end = time.monotonic() + seconds
        for index, process in enumerate(self.processes):
            try:
                process.popen.wait(max(end - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                pytest.fail(f"host-{index} still runs after {seconds:.0f} s")
        return [process.popen.returncode for process in self.processes]


def run(config: Config, workdir: Path, folder: Path, **options: Any) -> None:
    """A job that ends well."""
    with Job(config, workdir, folder, **options) as job:
        codes = job.codes()
        assert codes == [0] * len(codes)


def assert_a_kill_costs_no_bits(config: Config, folder: Path, **options: Any) -> None:
    """Of a run in one process, killed after step 3 or later; options: of the jobs."""
    whole, parts = folder / "whole", folder / "parts"
    run(config, whole, folder, processes=1, **options)
    with Job(config, parts, folder, processes=1, **options) as job:
        job.wait_for(lambda: newest_step(parts) >= 3, "step 3")
        job.send(signal.SIGKILL, 0)
        assert job.codes() == [-signal.SIGKILL]
    run(config, parts, folder, processes=1, **options)
    assert_same_bits(whole, parts)


def newest_step(workdir: Path) -> int:
    """Of the steps in `metrics.jsonl`; 0 before the first."""
    return max((r["step"] for r in read_records(workdir, "train")), default=0)


def read_state(workdir: Path, step: int) -> dict[str, np.ndarray]:
    """Path -> array of every parameter, of the optimizer's state, and of the averaged weights."""
    leaves: dict[str, np.ndarray] = {}
    for item in ("params", "opt", "ema"):
        folder = Workdir.open(workdir).checkpoints / str(step) / item
        if item == "ema" and not folder.exists():
            continue
        with ocp.PyTreeCheckpointer() as reader:
            like = reader.metadata(folder).item_metadata.tree
            args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), like)
            tree = reader.restore(folder, restore_args=args)
        leaves |= {
            item + jax.tree_util.keystr(path): np.asarray(leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
    return leaves


def assert_same_bits(one: Path, other: Path) -> None:
    """Parameters, optimizer state and held-out figures of the checkpoints, and the records.

    Checkpoints of steps that only one of them has are not compared; the last must be the same.
    """
    steps = complete_steps(one), complete_steps(other)
    assert steps[0][-1] == steps[1][-1]
    for step in sorted(set(steps[0]) & set(steps[1])):
        first, second = read_state(one, step), read_state(other, step)
        assert first.keys() == second.keys()
        differ = [name for name, x in first.items() if x.tobytes() != second[name].tobytes()]
        assert not differ, f"step {step}: {len(differ)} of {len(first)} arrays differ: {differ[:3]}"
        figures = [read_meta(folder, step)["evaluation"] for folder in (one, other)]
        assert figures[0] == figures[1], f"step {step}"
    assert records(one) == records(other)


def records(workdir: Path) -> list[dict[str, Any]]:
    """The losses, accuracies and gradients' norms that were written, by step."""
    return [
        {k: v for k, v in record.items() if k in _EXACT or k.endswith(("loss", "accuracy"))}
        for kind in ("train", "eval")
        for record in read_records(workdir, kind)
    ]
