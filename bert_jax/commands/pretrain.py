"""`bert-jax pretrain`: trains a model."""

import functools
import os
import time
from collections.abc import Sequence

from absl import flags

from bert_jax.commands.command import Command, define_cpu_devices, need
from bert_jax.errors import UsageError


def _define_pretrain(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.config.files import define_config

    define_config(values, words)
    flags.DEFINE_string("workdir", None, "folder of the run", flag_values=values)
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
    budget = "time for a new run, such as 60m (s, m, h, d); decides how many steps it has"
    flags.DEFINE_string("time_budget", None, budget, flag_values=values)
    limit = "time after which it has saved and ended with 42, such as 8h30m, to be resumed"
    flags.DEFINE_string("time_limit", None, limit, flag_values=values)
    project = "project of Weights & Biases that metrics are sent to, too"
    flags.DEFINE_string("wandb", None, project, flag_values=values)


def _run_pretrain(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "config", "workdir")
    start = time.monotonic()
    from bert_jax.config.files import read_config
    from bert_jax.training.initial_architecture import find_architecture

    config = read_config(values, functools.partial(find_architecture, workdir=values.workdir))
    from bert_jax.distributed import cluster, job
    from bert_jax.launch.job import find_topology
    from bert_jax.runtime import cpu, duration
    from bert_jax.runtime.versions import versions
    from bert_jax.training.loop import pretrain
    from bert_jax.training.profiling import Steps
    from bert_jax.workdir import description

    topology = cluster.find_topology(
        values.coordinator, values.num_processes, values.process_id, timeout=config.deadlines.start
    )
    expected = None
    if values.topology and not values.cpu_devices:  # simulated devices are of no slice
        expected = find_topology(values.topology)
    cpu.use_cpu_devices(values.cpu_devices, processes=topology.num_processes)
    about = versions() | {
        "configuration": description.digest(config),
        "--cpu_devices": str(values.cpu_devices),
        "--time_budget": str(values.time_budget),
        **{name: os.environ.get(name, "") for name in ("XLA_FLAGS", "PJRT_NPROC")},
    }
    profile = Steps.parse(values.profile) if values.profile else None
    budget, limit = (
        None if values[name].value is None else duration.parse(name, values[name].value)
        for name in ("time_budget", "time_limit")
    )
    grace = config.deadlines.grace
    if limit is not None and limit <= grace:
        raise UsageError(
            f"--time_limit={values.time_limit}: give more than config.deadlines.grace, the "
            f"{grace:g} s that saving may take"
        )
    with job.distributed_job(config, topology, about, expected) as started:
        if limit is not None:
            started.preemption.request_at(
                start + limit - grace, f"--time_limit={values.time_limit}"
            )
        pretrain(
            config,
            values.workdir,
            job=started,
            strict_restore=values.strict_restore,
            adopt=values.adopt,
            profile=profile,
            time_budget=budget,
            wandb=values.wandb,
        )


COMMANDS = {
    "pretrain": Command(
        "train a model, or resume from its newest checkpoint",
        "bert-jax pretrain --config=wiki_books_small --config.data.store=store --workdir=run",
        _define_pretrain,
        _run_pretrain,
        is_run=True,
    ),
}
