"""Runs a job with Slurm: a batch script that starts the processes and requeues itself.

Slurm chooses the nodes, and requeues a job that it preempts or whose node fails. The script
requeues it after the exit codes of a preemption or a failure (`requeue`). In WORKDIR/launch/
NAME, on the disk that the nodes share: the code, `log`, `state.json`, `codes` (`task`) and
`stop`, which marks a job that was asked to stop.
"""

import contextlib
import dataclasses
import functools
import math
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from bert_jax.errors import UserError
from bert_jax.launch import programs
from bert_jax.launch.job import Job, JobId, Rendering, option
from bert_jax.launch.output import say
from bert_jax.launch.preflight import Check, CheckFailedError, check_version, private_file
from bert_jax.launch.programs import ProgramError
from bert_jax.launch.slurm.log_file import LogFile
from bert_jax.launch.slurm.options import check_time, check_variables, check_words
from bert_jax.launch.slurm.queue import WAITING, comment, exit_code, find
from bert_jax.launch.slurm.requeue import State, codes_folder
from bert_jax.storage.remote import is_remote

_POLL = 2.0  # seconds between two questions to Slurm
_PATIENCE = 60.0  # seconds that a stopped job gets besides its grace, before it is cancelled
_VERSION = (20, 11)  # the first whose squeue has --me

_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
_SCRIPT = """\
#!/bin/bash
# Written by bert-jax launch slurm run --name={name}; runs on the first node of the job.
set -u
{environment}
unset {proxies}  # processes connect to one another directly
command=({command})

# A signal is for the processes that srun started. This shell outlives it to read their exit code.
trap : TERM
code=42
rm -rf {codes} && mkdir {codes}
if [ ! -e {stop} ]; then
  srun --kill-on-bad-exit=0 --label "${{command[@]}}" &
  step=$!
  while
    wait "$step"
    code=$?
    kill -0 "$step" 2>/dev/null
  do :; done
fi
exec {requeue} "$code"
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slurm:
    """Nodes of a Slurm cluster that share a disk with this machine."""

    needs_workdir: ClassVar[bool] = True
    needs_bucket: ClassVar[bool] = False
    needs_topology: ClassVar[bool] = False
    has_image: ClassVar[bool] = False

    nodes: int = option(1, "number of nodes")
    gpus_per_node: int = option(0, "GPUs of each node; each has a process of its own")
    tasks_per_node: int = option(0, "processes on each node (default: one per GPU, else 1)")
    time: str = option("", "time limit, such as 24:00:00; the job saves and resumes after it")
    partition: str = option("", "partition (default: the cluster's)")
    account: str = option("", "account to charge (default: the user's)")
    sbatch: tuple[str, ...] = option((), "additional option of sbatch (may be repeated)")

    @property
    def devices(self) -> int:
        return self.nodes * self.gpus_per_node

    def check(self, job: Job) -> None:
        if is_remote(job.workdir):
            raise UserError(
                f"--workdir={job.workdir}: Slurm writes its log there; give a folder on the disk "
                "that all nodes share"
            )
        if ":" in job.workdir:
            raise UserError(f"--workdir={job.workdir}: a colon cannot be in PYTHONPATH; rename it")
        if self.gpus_per_node and self.tasks_per_node not in (0, self.gpus_per_node):
            raise UserError(
                f"--tasks_per_node={self.tasks_per_node}: with --gpus_per_node="
                f"{self.gpus_per_node} each GPU has one process; leave it out"
            )
        for name, least in (("nodes", 1), ("gpus_per_node", 0), ("tasks_per_node", 0)):
            if (value := getattr(self, name)) < least:
                raise UserError(f"--{name}={value}: give at least {least}")
        check_words(self.sbatch)
        check_time(self.time, job.limits.grace + job.limits.margin)
        for kind, variables in (("env", job.env), ("env_from", job.env_from)):
            for name in (name for name, _ in variables if name in _PROXIES):
                raise UserError(
                    f"--{kind}={name}=…: processes of a Slurm job connect to one another without "
                    "a proxy, so it is unset; leave it out"
                )
        for name, reference in job.env_from:
            if not reference.startswith("/"):
                raise UserError(
                    f"--env_from={name}={reference}: give the absolute path of a file that holds "
                    "the value"
                )

    def checks(self, job: Job) -> Sequence[Check]:
        return [
            Check("slurm", check_sbatch),
            Check("variables", check_variables),
            Check("sbatch", functools.partial(self._check_options, job)),
            *(private_file(f"secret {name}", path) for name, path in job.env_from),
        ]

    def _check_options(self, job: Job) -> str:
        """Lets Slurm check the options: partition, account, nodes, time limit."""
        code = f"{job.folder}/{job.bundle.name}"
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "batch.sh")
            script.write_text(self._script(job, code), encoding="utf-8")
            try:
                programs.call(["sbatch", "--test-only", *self._options(job), str(script)])
            except ProgramError as error:
                line = f"sbatch refuses it: {error.reason}"
                raise CheckFailedError(line, "see --dry_run for its options") from None
        return "accepted by Slurm"

    def render(self, job: Job) -> Rendering:
        folder, code = job.folder, f"{job.folder}/{job.bundle.name}"
        archive, script = f"{job.bundle.name}.tar", "batch.sh"
        return Rendering(
            files={archive: job.bundle.archive, script: self._script(job, code)},
            commands=(
                ("mkdir", "-p", code),
                ("rm", "-f", f"{folder}/state.json", f"{folder}/stop"),
                ("tar", "--extract", f"--file={archive}", f"--directory={code}"),
                ("sbatch", "--parsable", *self._options(job), script),
            ),
        )

    def _options(self, job: Job) -> Iterator[str]:
        grace = math.ceil(job.limits.grace + job.limits.margin)
        yield f"--job-name={job.name}"
        yield f"--comment={comment(job, job=job.digest(self), grace=grace)}"
        yield f"--nodes={self.nodes}"
        yield f"--ntasks-per-node={self.tasks_per_node or self.gpus_per_node or 1}"
        for name in ("gpus_per_node", "time", "partition", "account"):
            if value := getattr(self, name):
                yield f"--{name.replace('_', '-')}={value}"
        yield "--requeue"
        yield "--dependency=singleton"  # never beside another that a killed launcher submitted
        yield "--open-mode=append"
        yield f"--output={job.folder.replace('%', '%%')}/log"  # % begins a pattern
        yield f"--chdir={job.cwd}"
        yield f"--signal=TERM@{grace}"  # to the processes, before the time limit
        yield from self.sbatch

    def _script(self, job: Job, code: str) -> str:
        python = (sys.executable, "-P", "-m")  # -P: the code in the current folder is not meant
        limits = (str(job.limits.max_preemptions), str(job.limits.max_failures))
        requeue = (*python, "bert_jax.launch.slurm.requeue", job.folder, *limits)
        codes = codes_folder(job.folder)
        task = (*python, "bert_jax.launch.slurm.task", str(codes))
        command = (*task, *python, "bert_jax", *job.words(code))
        paths = ":".join(job.bundle.python_path(code))
        path = [f"export PYTHONPATH={shlex.quote(paths)}${{PYTHONPATH:+:$PYTHONPATH}}"]
        return _SCRIPT.format(
            name=job.name,
            proxies=" ".join(_PROXIES),
            environment="\n".join([*(path if paths else ()), *_environment(job)]),
            command="\n  ".join(["", *map(shlex.quote, command)]) + "\n",
            stop=shlex.quote(f"{job.folder}/stop"),
            codes=shlex.quote(str(codes)),
            requeue=shlex.join(requeue),
        )

    def is_running(self, job: Job) -> bool:
        found = find(job)
        if found and found.about["job"] != job.digest(self):
            raise UserError(
                f"--name={job.name}: Slurm job {found.number} runs another command, or with "
                f"other flags; end it first: bert-jax launch slurm stop "
                + shlex.join([f"--name={job.name}", f"--workdir={job.workdir}"])
            )
        return found is not None

    def run(self, job: Job) -> int:
        log = LogFile(Path(job.folder, "log"), from_end=True)
        found = find(job)
        if found:
            say(f"Slurm job {found.number} is this one; `logs` has what it printed so far")
            number = found.number
        else:
            number = self.render(job).run().strip().partition(";")[0]  # NUMBER;CLUSTER
        say("Slurm restarts the job; this command watches it, and may be ended")
        return _watch(job, number, log)

    def status(self, job: JobId) -> str:
        found = find(job)
        state = State.read(Path(job.folder))
        if found is None and state is None:
            _check_known(job)
        ended = f"ended with {state.end}" if state and state.end is not None else "not there"
        lines = [str(found) if found else f"Slurm job: {ended}"]
        if state:
            lines.append(f"{state.preemptions} preemptions, {state.failures} failures so far")
        return "\n".join(lines)

    def logs(self, job: JobId, *, follow: bool) -> None:
        log = LogFile(Path(job.folder, "log"))
        if not log.path.exists() and not find(job):
            raise UserError(f"{log.path}: no log of a job; check --name and --workdir")
        while follow and find(job):
            log.copy_lines()
            time.sleep(_POLL)
        log.copy_rest()

    def stop(self, job: JobId) -> None:
        found = find(job)
        if found is None:
            say(f"{job.name}: not running")
            return
        Path(job.folder, "stop").touch()  # from now on it is not requeued
        signaled, until = "", time.monotonic() + int(found.about["grace"]) + _PATIENCE
        while found:
            if found.state in WAITING:
                _cancel(found.number)
            elif found.state == "RUNNING" and signaled != found.number:
                signaled = found.number
                _cancel("--signal=TERM", signaled)  # the processes, not the shell
            elif time.monotonic() > until:
                say(f"Slurm job {found.number}: still running at its deadline, cancelled")
                _cancel(found.number)
                until = math.inf
            time.sleep(_POLL)
            found = programs.answer(lambda: find(job), _POLL)
        say(f"{job.name}: has ended; no node is in use")

    def delete(self, job: JobId) -> None:
        self.stop(job)
        _check_known(job)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(job.folder)
        say(f"{job.folder}: removed; Slurm has no job {job.name}")


def _check_known(job: JobId) -> None:
    """Raises UserError if a job that is not in Slurm has no folder either."""
    if not Path(job.folder).is_dir():
        raise UserError(f"--name={job.name}: no such job in {job.workdir}; check both")


def _cancel(*words: str) -> None:
    with contextlib.suppress(ProgramError):  # it has just ended: the next look shows whether
        programs.change(["scancel", *words])


def _environment(job: Job) -> Iterator[str]:
    for name, value in (*job.env, ("PYTHONUNBUFFERED", "1")):
        yield f"export {name}={shlex.quote(value)}"
    for name, path in job.env_from:
        yield f"{name}=$(cat -- {shlex.quote(path)}) || exit 1"
        yield f"export {name}"


def _watch(job: JobId, number: str, log: LogFile) -> int:
    """Prints the log and every change of state until the job has ended; returns its exit code."""
    shown = ""
    while found := programs.answer(lambda: find(job), _POLL):
        log.copy_lines()
        if str(found) != shown:
            shown = str(found)
            say(shown)
        time.sleep(_POLL)
    log.copy_rest()
    code = exit_code(job, number)
    say(f"Slurm job {number}: ended with {code}")
    return code


def check_sbatch() -> str:
    """Returns the version of Slurm; CheckFailedError if it is too old."""
    printed = programs.call(["sbatch", "--version"]).strip()
    check_version(printed, _VERSION, "ask for")
    programs.call(["squeue", "--me", "--noheader"])  # the controller answers
    return printed
