"""The flags of the commands that train: a run's folder, its processes, how it starts and ends."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from absl import flags

from bert_jax.commands.command import define_cpu_devices
from bert_jax.commands.paths import FindKind, define_output
from bert_jax.errors import UsageError

if TYPE_CHECKING:
    from bert_jax.config.schema import Config
    from bert_jax.distributed.cluster import ProcessTopology
    from bert_jax.distributed.job import Job
    from bert_jax.training.options import RunOptions


def define_run(values: flags.FlagValues, kind: FindKind) -> None:
    """Defines the flags, but those of the configuration; kind: of the workdir."""
    define_output(values, "workdir", "folder of the run", kind)
    define_cpu_devices(values)
    address = "HOST:PORT of process 0; uses the next two ports, too (default: from the cluster)"
    flags.DEFINE_string("coordinator", None, address, flag_values=values)
    processes = "number of processes of the job"
    flags.DEFINE_integer("num_processes", None, processes, 1, flag_values=values)
    flags.DEFINE_integer("process_id", None, "index of this process, from 0", 0, flag_values=values)
    slices = "TPU slices that the job must have, such as v5e-16 (default: not checked)"
    flags.DEFINE_string("topology", None, slices, flag_values=values)
    strict = (
        "fail on a checkpoint that is damaged or belongs to another run (default: move it to "
        "quarantine/ and restore an older one)"
    )
    flags.DEFINE_bool("strict_restore", False, strict, flag_values=values)
    adopt = "use the checkpoints in the workdir even though they belong to another run"
    flags.DEFINE_bool("adopt", False, adopt, flag_values=values)
    traced = "FIRST:END, steps to profile for TensorBoard and Perfetto"
    flags.DEFINE_string("profile", None, traced, flag_values=values)
    limit = "wall-clock limit, such as 8h30m: saves, exits with 42 and can be resumed"
    flags.DEFINE_string("time_limit", None, limit, flag_values=values)
    project = "project of Weights & Biases that metrics are sent to, too"
    flags.DEFINE_string("wandb", None, project, flag_values=values)


def run_options(values: flags.FlagValues) -> "RunOptions":
    """Returns the options of a run that flags give; UsageError for a wrong one."""
    from bert_jax.training.options import RunOptions

    names = [field.name for field in dataclasses.fields(RunOptions)]
    return RunOptions.parse(**{name: values[name].value for name in names if name in values})


def find_processes(values: flags.FlagValues, config: "Config") -> "ProcessTopology":
    """Returns the processes of the job, of which this one uses the devices that it has there."""
    from bert_jax.distributed import cluster
    from bert_jax.runtime import cpu

    topology = cluster.find_topology(
        values.coordinator, values.num_processes, values.process_id, timeout=config.deadlines.start
    )
    cpu.use_cpu_devices(values.cpu_devices, processes=topology.num_processes)
    return topology


def job_of(
    values: flags.FlagValues,
    config: "Config",
    topology: "ProcessTopology",
    **others: object,
) -> "AbstractContextManager[Job]":
    """Returns the job of these processes; others: flags that must be the same in all of them."""
    from bert_jax.distributed.job import distributed_job
    from bert_jax.extensions.registry import added
    from bert_jax.launch.job import find_topology
    from bert_jax.runtime.versions import versions
    from bert_jax.workdir import description

    expected = None
    if values.topology and not values.cpu_devices:  # simulated devices are of no slice
        expected = find_topology(values.topology)
    about = versions() | {
        "configuration": description.digest(config),
        "--cpu_devices": str(values.cpu_devices),
        "--module": ", ".join(sorted(f"{m.name} (sha256 {m.sha256[:12]}…)" for m in added())),
        **{f"--{name}": str(value) for name, value in others.items()},
        **{name: os.environ.get(name, "") for name in ("XLA_FLAGS", "PJRT_NPROC")},
    }
    return distributed_job(config, topology, about, expected)


def find_deadline(values: flags.FlagValues, config: "Config", start: float) -> float | None:
    """Returns the time of `time.monotonic` at which `--time_limit` asks to stop; None without it.

    start: of the command.

    Raises:
        UsageError: the limit leaves no time to save.
    """
    from bert_jax.runtime import duration

    if values.time_limit is None:
        return None
    limit, grace = duration.parse("time_limit", values.time_limit), config.deadlines.grace
    if limit <= grace:
        raise UsageError(
            f"--time_limit={values.time_limit}: give more than config.deadlines.grace, the "
            f"{grace:g} s that saving may take"
        )
    return start + limit - grace


@contextlib.contextmanager
def stopping_at(deadline: float | None, values: flags.FlagValues, job: "Job") -> "Iterator[Job]":
    """Asks the job to stop at the deadline, if there is one."""
    if deadline is None:
        yield job
        return
    timer = job.preemption.request_at(deadline, f"--time_limit={values.time_limit}")
    try:
        yield job
    finally:
        timer.cancel()
