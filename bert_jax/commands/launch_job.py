"""Makes the job of a launch command, and the checks before it is created."""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from bert_jax.commands import finetune, pretrain
from bert_jax.commands.command import need, parse
from bert_jax.commands.run_flags import find_deadline, run_options
from bert_jax.errors import UsageError, UserError, nearest
from bert_jax.storage.upload_command import upload_command

if TYPE_CHECKING:
    from bert_jax.config.schema import Config
    from bert_jax.launch.job import Backend, Job
    from bert_jax.launch.preflight import Check
    from bert_jax.launch.restarts import Limits

_TASK = "finetune"
# Commands that may run as several processes.
JOBS = {**pretrain.COMMANDS, _TASK: finetune.COMMANDS[_TASK]}
_STORE = "config.data.store"
# An image may have them, and a run that resumes does not need them, but for `config.teacher`.
_TEACHER = "config.teacher"
_MODEL = ("config.init", _TEACHER, "config.task.tokenizer", "config.task.teacher")
_PLACE = ("coordinator", "num_processes", "process_id", "topology")  # flags set by the launcher


def parse_command(
    launcher: str,
    words: Sequence[str],
    own: flags.FlagValues | None = None,
    *,
    offline: bool = False,
) -> "tuple[flags.FlagValues, Config]":
    """Parses a job's command like each process, so that an error is printed once; returns its flags
    and its config. UsageError if it does not run as several processes.

    own: flags of the launcher. offline: nothing in a bucket is read.
    """
    names = ", ".join(JOBS)
    if not words:
        raise UsageError(f"{launcher} needs a command after its flags, such as {names}")
    name, rest = words[0], words[1:]
    if name not in JOBS:
        raise UsageError(f"{launcher} starts {names}, not {name!r}{nearest(name, JOBS)}")
    for flag in _PLACE:
        if any(word.lstrip("-").partition("=")[0] == flag for word in rest if word[:1] == "-"):
            raise UsageError(f"--{flag} is set by {launcher} for each process; remove it")
    values, _ = parse(name, JOBS[name], rest, starter=own)
    need(values, "config", "workdir")
    if name == _TASK and values.seeds > 1:
        raise UsageError(
            f"--seeds runs in one process, {launcher} starts several; start a job for each "
            "--config.seed"
        )
    from bert_jax.training.resolve import read_config

    config = read_config(values, values.workdir, offline=offline)
    if name == _TASK:
        from bert_jax.finetune.tasks.task_kinds import check_given

        check_given(config)
    run_options(values)
    find_deadline(values, config, start=0.0)
    return values, config


def make_job(
    backend: "Backend",
    values: flags.FlagValues,
    words: Sequence[str],
    trainer: flags.FlagValues,
    config: "Config",
) -> "Job":
    """Returns the job of a command line.

    trainer: the parsed flags of its command. config: the configuration that these give.
    """
    from bert_jax.config.config_files import joined, path_of
    from bert_jax.config.shipped import shipped
    from bert_jax.launch import bundle, job
    from bert_jax.runtime.versions import version

    path = path_of(trainer)
    if backend.needs_bucket:
        inputs = _inputs(config, is_task=words[0] == _TASK)
        of_image = _MODEL if backend.has_image else ()
        _check_remote(trainer.workdir, {k: path for k, path in inputs.items() if k not in of_image})
    return job.Job(
        name=values.name,
        workdir=absolute(trainer.workdir),
        command=tuple(joined(words)),
        cwd=os.getcwd(),
        bundle=bundle.make(
            version("bert-jax"),
            None if path in shipped().values() else path,
            modules=[Path(path) for path in trainer.module],
            checkout=None if backend.has_image else bundle.checkout_of(bundle.__file__),
        ),
        topology=job.find_topology(values.topology) if backend.needs_topology else None,
        env=_pairs("env", values.env),
        env_from=_pairs("env_from", values.env_from),
        limits=limits_of(values, config),
    )


def _check_remote(workdir: str, inputs: Mapping[str, str]) -> None:
    """Raises UserError for local paths, which hosts without a common disk do not have, a line each.

    inputs: by key.
    """
    from bert_jax.storage.remote import is_remote
    from bert_jax.workdir.inputs import path_of_model

    bucket = "/".join(workdir.split("/")[:3]) if is_remote(workdir) else "gs://BUCKET"
    lines = []
    for key, given in {"workdir": workdir, **inputs}.items():
        for path in () if is_remote(given) else path_of_model(given):
            name = Path(os.path.abspath(path)).name if path else key.rpartition(".")[2]
            there = f"{bucket}/{name}"
            remedy = f"each host would have one of its own; give one in a bucket: {there}"
            if path and key != "workdir":
                copy = upload_command(path, there)
                if os.path.isfile(path):
                    copy = shlex.join(("gcloud", "storage", "cp", path, there))
                flag = f"--{key}={there}{given.removeprefix(path)}"
                remedy = f"the hosts do not have it; copy it and give {flag}: {copy}"
            lines.append(f"--{key}={given}: {remedy}")
    if lines:
        raise UserError("\n".join(lines))


def checks_of(
    backend: "Backend", job: "Job", config: "Config", *, allow_dirty: bool
) -> "list[Check]":
    """Returns all that must hold before anything is created."""
    from bert_jax.data_pipeline.store.manifest import read_manifest
    from bert_jax.launch import bundle, preflight

    checks = [preflight.folder_check("workdir", job.folder), *backend.checks(job)]
    is_task = job.command[0] == _TASK
    if not is_task:
        checks.insert(1, preflight.store_check(config.data.store, read_manifest))
    if inputs := _needed(backend, job, _inputs(config, is_task=is_task)):
        checks.append(preflight.inputs_check(inputs))
    checkout = bundle.checkout_of(bundle.__file__)
    if job.bundle.has_code and checkout:
        checks.insert(0, preflight.code_check(checkout, allow_dirty=allow_dirty))
    from bert_jax.commands.launch_fits import devices_check, fits_check

    if backend.devices:
        checks.append(devices_check(config, backend.devices))
    if job.topology:
        checks.append(fits_check(config, job.command, job.topology.name))
    return checks


def _inputs(config: "Config", *, is_task: bool) -> dict[str, str]:
    """Returns the files and folders that the processes read, by key; not what is on the hub, which
    each host downloads."""
    from bert_jax.storage.hub import is_hub

    task, required = config.task, {_STORE: config.data.store}
    others = {"config.init": config.init, _TEACHER: config.teacher}
    if is_task:
        required = {} if is_hub(task.data) else {"config.task.data": task.data}
        others |= {"config.task.held_out": task.held_out, "config.task.tokenizer": task.tokenizer}
        others |= {"config.task.teacher": task.teacher, "config.task.retrieval": task.retrieval}
    others = {key: path for key, path in others.items() if path and not is_hub(path)}
    return required | others


def _needed(backend: "Backend", job: "Job", inputs: dict[str, str]) -> dict[str, str]:
    """Returns the inputs but for the store, and for a model that is not needed here."""
    from bert_jax.storage.remote import is_remote
    from bert_jax.training.claim import has_checkpoints
    from bert_jax.workdir.layout import Workdir, split_step

    model = {
        key: split_step(inputs[key])[0]
        for key in _MODEL
        if key in inputs and (is_remote(inputs[key]) or not backend.has_image)
    }
    if model and has_checkpoints(Workdir.open(job.workdir)):
        model = {key: path for key, path in model.items() if key == _TEACHER}
    return {key: path for key, path in inputs.items() if key not in (_STORE, *_MODEL)} | model


def absolute(workdir: str) -> str:
    return workdir if "://" in workdir else os.path.abspath(workdir)


def _pairs(flag: str, words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    for word in words:
        if "=" not in word:
            raise UsageError(f"--{flag}={word}: give NAME=VALUE")
    return tuple((name, value) for name, _, value in (word.partition("=") for word in words))


def limits_of(values: flags.FlagValues, config: "Config") -> "Limits":
    from bert_jax.launch.restarts import Limits

    deadlines = config.deadlines
    return Limits(
        max_preemptions=values.max_preemptions,
        max_failures=values.max_failures,
        grace=deadlines.grace if values.grace is None else values.grace,
        noticing=deadlines.peer,
    )
