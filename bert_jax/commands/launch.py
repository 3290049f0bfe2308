"""`bert-jax launch BACKEND run|status|logs|stop|delete`: jobs of several processes, anywhere."""

import dataclasses
import functools
import importlib
import sys
import typing
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import flags

from bert_jax.commands.command import Command, define_number, need
from bert_jax.commands.kinds import rendering
from bert_jax.commands.launch_job import absolute, checks_of, limits_of, make_job, parse_command
from bert_jax.commands.paths import check_outputs, define_input, define_output, inputs_of
from bert_jax.errors import UsageError, UserError, count

if typing.TYPE_CHECKING:
    from bert_jax.launch.job import Backend, Job, JobId


@dataclasses.dataclass(frozen=True)
class _Help:
    """Words for the help of a backend.

    where: it runs a job. options: of an example of `run`. folder: of its store and workdir. place:
    flags by which the other commands find a job, besides its name.
    """

    where: str
    options: str
    folder: str
    place: str = ""


_BACKENDS = {
    "tpu": _Help(
        "TPU slices of Google Cloud",
        "--topology=v5e-16 --zone=us-west4-a --spot",
        "gs://x",
        " --workdir=gs://x/b1 --zone=us-west4-a",
    ),
    "gke": _Help(
        "TPU slices of a GKE cluster",
        "--topology=2xv6e-64 --image=REPOSITORY@sha256:…",
        "gs://x",
    ),
    "slurm": _Help(
        "nodes of a Slurm cluster",
        "--nodes=2 --gpus_per_node=8 --time=24:00:00",
        "/shared",
        " --workdir=/shared/b1",
    ),
    "sky": _Help(
        "rented machines, by SkyPilot",
        "--accelerators=H100:8 --use_spot",
        "gs://x",
        " --workdir=gs://x/b1",
    ),
}
_MOST_GRACE = 1e8  # as config.deadlines.grace
_DEFINE: dict[object, Callable[..., object]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    str: flags.DEFINE_string,
    tuple[str, ...]: flags.DEFINE_multi_string,
}


def _define_budgets(values: flags.FlagValues) -> None:
    values.set_gnu_getopt(False)  # flags after the first word belong to the command
    preemptions = "maximum number of restarts after preemption (exit code 42); -1: no maximum"
    flags.DEFINE_integer("max_preemptions", 100, preemptions, -1, flag_values=values)
    failures = (
        "maximum number of restarts after a process failed, lost its peers or hung (43); -1: no "
        "maximum"
    )
    flags.DEFINE_integer("max_failures", 3, failures, -1, flag_values=values)
    grace = "seconds to save after a signal (default: config.deadlines.grace)"
    define_number(values, "grace", None, grace, 0.0, _MOST_GRACE)


def _define_local_run(values: flags.FlagValues, words: Sequence[str]) -> None:
    _define_budgets(values)
    flags.DEFINE_integer("processes", None, "number of processes", 1, flag_values=values)


def _run_local_run(values: flags.FlagValues, words: Sequence[str]) -> int:
    need(values, "processes")
    trainer, config = parse_command("launch local run", words, values)
    check_outputs(trainer)
    from bert_jax.launch.local import run

    command = [sys.executable, "-m", "bert_jax", *words]
    try:
        return run(command, values.processes, limits_of(values, config))
    except OSError as error:
        raise UserError(f"a process cannot be started: {error}") from None


def _define_id(backend: str, values: flags.FlagValues, words: Sequence[str]) -> None:
    """Defines the flags by which a job is found."""
    kind = _kind(backend)
    flags.DEFINE_string("name", None, "name of the job", flag_values=values)
    if kind.needs_workdir:
        define_input(values, "workdir", "folder of the run")
    _define_options(kind, values, always=True)


def _define_logs(backend: str, values: flags.FlagValues, words: Sequence[str]) -> None:
    _define_id(backend, values, words)
    flags.DEFINE_bool("follow", False, "print new lines until the job ends", flag_values=values)


def _define_run(backend: str, values: flags.FlagValues, words: Sequence[str]) -> None:
    kind = _kind(backend)
    flags.DEFINE_string("name", None, "name of the job", flag_values=values)
    if kind.needs_topology:
        slices = "TPU slices, such as v5e-16, or 2xv5e-256 for two"
        flags.DEFINE_string("topology", None, slices, flag_values=values)
    _define_options(kind, values, always=True)
    _define_options(kind, values, always=False)
    _define_budgets(values)
    env = "NAME=VALUE of a variable of every process (may be repeated)"
    flags.DEFINE_multi_string("env", [], env, flag_values=values)
    secret = "NAME=REFERENCE to a secret that becomes a variable (may be repeated)"
    flags.DEFINE_multi_string("env_from", [], secret, flag_values=values)
    dirty = "run uncommitted changes of this checkout, and record them with the job"
    flags.DEFINE_bool("allow_dirty", False, dirty, flag_values=values)
    flags.DEFINE_bool("dry_run", False, "print every command and file only", flag_values=values)
    define_output(values, "out", "folder for the commands and files of --dry_run", rendering)


def _define_options(kind: "type[Backend]", values: flags.FlagValues, *, always: bool) -> None:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # every backend is one
        if field.metadata["always"] == always:
            default = list(field.default) if isinstance(field.default, tuple) else field.default
            shown = None if default == "" else default
            about = field.metadata["help"]
            least = field.metadata["least"]
            bound = {} if least is None else {"lower_bound": least}
            _DEFINE[hints[field.name]](field.name, shown, about, flag_values=values, **bound)


def _kind(backend: str) -> "type[Backend]":
    module = importlib.import_module(f"bert_jax.launch.{backend}.backend")
    kind: type[Backend] = getattr(module, backend.capitalize())
    return kind


def _backend(backend: str, values: flags.FlagValues) -> "Backend":
    """Returns the backend with the options that were given."""
    kind, given = _kind(backend), {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # every backend is one
        if field.name in values:
            if field.metadata["required"]:
                need(values, field.name)
            value = values[field.name].value
            if value is not None:
                given[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**given)


def _run(backend: str, values: flags.FlagValues, words: Sequence[str]) -> int:
    need(values, "name", *(["topology"] if _kind(backend).needs_topology else []))
    if values.out and not values.dry_run:
        raise UsageError("--out is the folder of --dry_run; give both, or neither")
    chosen = _backend(backend, values)
    launcher = f"launch {backend} run"
    trainer, config = parse_command(launcher, words, values, offline=values.dry_run)
    if values.dry_run:
        _check_rendering(values, trainer)
    job = make_job(chosen, values, words, trainer, config)
    chosen.check(job)
    if values.dry_run:
        return _show(chosen, job, values.out)
    from bert_jax.launch.output import say
    from bert_jax.launch.preflight import run_checks

    if not chosen.is_running(job):
        check_outputs(trainer)
        run_checks(checks_of(chosen, job, config, allow_dirty=values.allow_dirty), say)
    return chosen.run(job)


def _check_rendering(values: flags.FlagValues, trainer: flags.FlagValues) -> None:
    """Raises UserError if the files of --dry_run, or those of the job, may not be written."""
    from bert_jax.storage.outputs import check_apart

    check_outputs(values, inputs=inputs_of(trainer))
    check_outputs(trainer, offline=True)
    if values.out:
        check_apart([trainer.workdir, values.out])


def _show(backend: "Backend", job: "Job", out: str | None) -> int:
    """Prints what `run` would do, or writes it to a folder."""
    rendering = backend.render(job)
    if out is None:
        print(rendering.text())
        return 0
    folder = Path(out)
    rendering.write(folder)
    print(f"{folder / 'run.sh'} and {count(len(rendering.files), 'file')}; nothing was run")
    return 0


def _status(backend: str, values: flags.FlagValues, words: Sequence[str]) -> None:
    print(_backend(backend, values).status(_id(backend, values)))


def _logs(backend: str, values: flags.FlagValues, words: Sequence[str]) -> None:
    _backend(backend, values).logs(_id(backend, values), follow=values.follow)


def _stop(backend: str, values: flags.FlagValues, words: Sequence[str]) -> None:
    _backend(backend, values).stop(_id(backend, values))


def _delete(backend: str, values: flags.FlagValues, words: Sequence[str]) -> None:
    _backend(backend, values).delete(_id(backend, values))


def _id(backend: str, values: flags.FlagValues) -> "JobId":
    from bert_jax.launch.job import JobId

    needs_workdir = _kind(backend).needs_workdir
    need(values, "name", *(["workdir"] if needs_workdir else []))
    return JobId(name=values.name, workdir=absolute(values.workdir) if needs_workdir else "")


def _commands(backend: str) -> dict[str, Command]:
    """Returns the five commands of a backend."""
    about, start = _BACKENDS[backend], f"bert-jax launch {backend}"
    trainer = (
        f"pretrain --config=wiki_books_base --config.data.store={about.folder}/store "
        f"--workdir={about.folder}/b1"
    )

    found = {
        f"launch {backend} {verb}": Command(
            summary,
            f"{start} {verb} --name=b1{about.place}",
            functools.partial(define, backend),
            functools.partial(run, backend),
            takes_modules=False,
        )
        for verb, summary, define, run in (
            ("run", f"run a job on {about.where}, or watch it", _define_run, _run),
            ("status", "show where a job stands", _define_id, _status),
            ("logs", "print a job's output", _define_logs, _logs),
            ("stop", "stop gracefully (saves a checkpoint first)", _define_id, _stop),
            ("delete", "stop a job, and remove what was made for it", _define_id, _delete),
        )
    }
    found[f"launch {backend} run"] = dataclasses.replace(
        found[f"launch {backend} run"],
        example=f"{start} run --name=b1 {about.options} {trainer}",
        arguments=" COMMAND [--flag=value ...]",
        starts=True,
        is_run=True,
    )
    return found


COMMANDS = {
    "launch local run": Command(
        "run a job of several processes on this machine and restart it after preemption",
        "bert-jax launch local run --processes=2 pretrain --config=tiny --config.data.store=store "
        "--workdir=run",
        _define_local_run,
        _run_local_run,
        arguments=" COMMAND [--flag=value ...]",
        starts=True,
        takes_modules=False,
        is_run=True,
    ),
    **{name: command for backend in _BACKENDS for name, command in _commands(backend).items()},
}
