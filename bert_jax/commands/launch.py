"""`bert-jax launch BACKEND run`: multi-process jobs; the only backend is the local machine."""

import functools
import sys
import typing
from collections.abc import Sequence

from absl import flags

from bert_jax.commands import pretrain
from bert_jax.commands.command import Command, need, parse
from bert_jax.errors import UsageError, UserError, nearest

if typing.TYPE_CHECKING:
    from bert_jax.config.schema import Config

_JOBS = pretrain.COMMANDS  # commands that run as several processes
_PLACE = ("coordinator", "num_processes", "process_id")  # flags set by the launcher


def _define_local_run(values: flags.FlagValues, words: Sequence[str]) -> None:
    values.set_gnu_getopt(False)  # flags after the first word belong to the command
    flags.DEFINE_integer("processes", None, "number of processes", 1, flag_values=values)
    preemptions = "maximum number of restarts after preemption (exit code 42)"
    flags.DEFINE_integer("max_preemptions", 100, preemptions, 0, flag_values=values)
    failures = "maximum number of restarts after a process failed, lost its peers or hung (43)"
    flags.DEFINE_integer("max_failures", 3, failures, 0, flag_values=values)
    grace = "seconds to save after a signal (default: config.deadlines.grace)"
    flags.DEFINE_float("grace", None, grace, 0.0, flag_values=values)


def _run_local_run(values: flags.FlagValues, words: Sequence[str]) -> int:
    need(values, "processes")
    deadlines = _check(words).deadlines
    from bert_jax.launch.backends.local import run
    from bert_jax.launch.restarts import Limits

    limits = Limits(
        max_preemptions=values.max_preemptions,
        max_failures=values.max_failures,
        grace=deadlines.grace if values.grace is None else values.grace,
        noticing=deadlines.peer,
    )
    command = [sys.executable, "-m", "bert_jax", *words]
    try:
        return run(command, values.processes, limits)
    except OSError as error:
        raise UserError(f"a process cannot be started: {error}") from None


def _check(words: Sequence[str]) -> "Config":
    """Parses the command like each process, so that an error is printed once; returns its config.
    UsageError if it does not run as several processes."""
    names = ", ".join(_JOBS)
    if not words:
        raise UsageError(f"launch local run needs a command after its flags, such as {names}")
    name, rest = words[0], words[1:]
    if name not in _JOBS:
        raise UsageError(f"launch local run starts {names}, not {name!r}{nearest(name, _JOBS)}")
    for flag in _PLACE:
        if any(word.lstrip("-").partition("=")[0] == flag for word in rest if word[:1] == "-"):
            raise UsageError(f"--{flag} is set by launch local run for each process; remove it")
    values, _ = parse(name, _JOBS[name], rest)
    need(values, "config", "workdir")
    from bert_jax.config.files import read_config
    from bert_jax.training.initial_architecture import find_architecture

    return read_config(values, functools.partial(find_architecture, workdir=values.workdir))


COMMANDS = {
    "launch local run": Command(
        "run a job of several processes on this machine and restart it after preemption",
        "bert-jax launch local run --processes=2 pretrain --config=tiny --config.data.store=store "
        "--workdir=run",
        _define_local_run,
        _run_local_run,
        arguments=" COMMAND [--flag=value ...]",
        starts=True,
        is_run=True,
    ),
}
