"""`bert-jax launch BACKEND run`: jobs of several processes; the one backend is this machine."""

import sys
import typing
from collections.abc import Sequence

from absl import flags

from bert_jax.commands.command import Verb, need
from bert_jax.errors import UsageError, UserError

if typing.TYPE_CHECKING:
    from bert_jax.config.schema import Config

_JOBS = ("pretrain",)  # verbs of which several processes do one work
_PLACE = ("coordinator", "num_processes", "process_id")  # flags that the launcher gives


def _define_local_run(values: flags.FlagValues, words: Sequence[str]) -> None:
    values.set_gnu_getopt(False)  # what follows the first word is the verb's
    flags.DEFINE_integer("processes", None, "how many processes", 1, flag_values=values)
    preemptions = "start again so often after the run was stopped and saved itself (exit code 42)"
    flags.DEFINE_integer("max_preemptions", 100, preemptions, 0, flag_values=values)
    failures = "and so often, in all, after a process was killed, lost another or hung (43)"
    flags.DEFINE_integer("max_failures", 3, failures, 0, flag_values=values)
    grace = "seconds for saving when asked to stop (default: config.deadlines.grace)"
    flags.DEFINE_float("grace", None, grace, 0.0, flag_values=values)


def _run_local_run(values: flags.FlagValues, words: Sequence[str]) -> int:
    need(values, "processes")
    deadlines = _check(words).deadlines
    from bert_jax.launch.backends.local import Limits, run

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
    """Reads the command as each process will: what it would say is said once. Its configuration.

    Raises:
        UsageError, UserError: of the verb, or it is none that several processes can work at.
    """
    if not words:
        raise UsageError(f"launch local run needs a verb behind its flags, such as {_JOBS[0]}")
    from bert_jax.cli import find, read

    name = find(words)
    if name not in _JOBS:
        raise UsageError(f"launch local run starts {', '.join(_JOBS)}; {name} is for one process")
    rest = words[len(name.split()) :]
    for flag in _PLACE:
        if any(word.lstrip("-").partition("=")[0] == flag for word in rest if word[:1] == "-"):
            raise UsageError(f"--{flag} is given by launch local run to each process; leave it out")
    values, _ = read(name, rest)
    need(values, "config", "workdir")
    from bert_jax.config.files import read_config

    return read_config(values)


VERBS = {
    "launch local run": Verb(
        "start several processes on this machine as one job, and again when they are stopped",
        "bert-jax launch local run --processes=2 pretrain --config=tiny --config.data.store=store "
        "--workdir=run",
        _define_local_run,
        _run_local_run,
        words=" VERB [--flag=value ...]",
        starts=True,
        is_run=True,
    ),
}
