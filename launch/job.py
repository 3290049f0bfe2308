"""A job: what runs, where and under which name; and what a backend does with it.

A backend is a frozen dataclass of the options that only it has (`option`), with the methods of
`Backend`. `render` is pure: everything that `run` changes is a file or a command of its result.
"""

import dataclasses
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, Protocol

from etils import epath

from bert_jax.errors import UserError
from bert_jax.hardware import slices
from bert_jax.hardware.slices import Slice
from bert_jax.launch import programs
from bert_jax.launch.bundle import Bundle
from bert_jax.launch.preflight import Check
from bert_jax.launch.restarts import Limits
from bert_jax.launch.secret_names import looks_secret
from bert_jax.storage import atomic
from bert_jax.storage.digest import json_digest
from bert_jax.storage.outputs import OutputKind, check_output
from bert_jax.storage.regular_file import open_regular

# A DNS label that begins with a letter: the name is also that of resources, pods and hosts. The
# longest name made of it, a pod's "NAME-slice-255-1535-x1y2z", has at most 63 characters.
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_MAX_NAME = 40
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Set by the launcher for every process.
_OWN_VARIABLES = frozenset(("BERT_JAX_HOST_NAME", "PYTHONPATH", "PYTHONUNBUFFERED"))
_SCRIPT: Final = "run.sh"
_MARK: Final = "# Written by bert-jax launch --dry_run."
_DIGEST = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobId:
    """The name of a job and its workdir, which identify it to every command and machine.

    workdir: a local one is absolute; empty if the command was given none, which not all backends
        need.
    """

    name: str
    workdir: str = ""

    def __post_init__(self) -> None:
        """Raises UserError for a name that some backend could not give to its resources."""
        if len(self.name) > _MAX_NAME:
            raise UserError(
                f"--name={self.name}: {len(self.name)} characters; give at most {_MAX_NAME}"
            )
        if not _NAME.fullmatch(self.name):
            lower = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
            near = f", such as {lower}" if _NAME.fullmatch(lower) else ""
            raise UserError(
                f"--name={self.name}: give lower-case letters, digits and dashes, a letter "
                f"first and no dash last{near}"
            )

    @property
    def folder(self) -> str:
        """The folder of the launcher's files in the workdir."""
        return f"{self.workdir.rstrip('/')}/launch/{self.name}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job(JobId):
    """A job of several processes.

    command: a verb of bert-jax and its flags, as typed; `words` has them for a host.
    cwd: the folder in which the command was typed.
    bundle: the code and config file that travel.
    topology: its TPU slices; None where the backend has none.
    env: variables of every process, as (name, value).
    env_from: variables whose values are secrets, as (name, reference); what a reference is, the
        backend defines. Only references are in files, arguments, labels and logs.
    limits: restart budgets, and how long saving and noticing a lost process may take.
    """

    command: tuple[str, ...]
    cwd: str
    bundle: Bundle
    topology: Slice | None = None
    env: tuple[tuple[str, str], ...] = ()
    env_from: tuple[tuple[str, str], ...] = ()
    limits: Limits

    def __post_init__(self) -> None:
        """Raises UserError for an invalid name or variable."""
        super().__post_init__()
        names = [name for name, _ in (*self.env, *self.env_from)]
        for name in names:
            _check_variable(name, names.count(name))
        for name, value in self.env:
            if what := looks_secret(name, value):
                its = "its value " if what == "value" else ""
                raise UserError(
                    f"--env={name}=…: {its}looks like a secret, which others could read in the "
                    f"job's description; give a reference instead: --env_from={name}=…"
                )

    def words(self, root: str) -> tuple[str, ...]:
        """Returns the command with the paths of the user's files on a host.

        root: the folder in which the bundle is unpacked there.
        """
        config, modules = self.bundle.config, iter(self.bundle.modules)
        words = []
        for word in self.command:
            if config is not None and word.startswith("--config="):
                word = f"--config={root}/{config}"
            elif word.startswith("--module="):
                word = f"--module={root}/{next(modules)}"
            words.append(word)
        return tuple(words)

    def digest(self, backend: "Backend") -> str:
        """Returns a digest of what the user asked for, but for the code: equal if the same command
        was typed, on any machine."""
        return json_digest([
            list(self.words("")), self.topology and self.topology.name, self.env, self.env_from,
            repr(backend),
        ])[:16]  # fmt: skip


def _check_variable(name: str, count: int) -> None:
    if not _VARIABLE.fullmatch(name):
        raise UserError(f"--env={name}=…: not the name of a variable; use letters, digits and _")
    if name in _OWN_VARIABLES:
        raise UserError(f"--env={name}=…: is set by the launcher; leave it out")
    if count > 1:
        raise UserError(f"--env={name}=…: is given {count} times; give it once")


@dataclasses.dataclass(frozen=True)
class Rendering:
    """Files, and the commands that submit the job, run in order in the folder of these files.

    files: content by name; bytes are an archive. comment: a line of the script.
    """

    files: Mapping[str, str | bytes]
    commands: tuple[tuple[str, ...], ...]
    comment: str = ""

    def script(self) -> str:
        """Returns the commands as a shell script."""
        comment = [f"# {self.comment}"] if self.comment else []
        start = ["#!/bin/sh", _MARK, *comment, "set -eu", 'cd "$(dirname "$0")"']
        return "\n".join([*start, *map(shlex.join, self.commands), ""])

    def write(self, folder: Path) -> None:
        """Writes the files, and the commands as `run.sh`; UserError as `check_output`."""
        check_output(folder, RENDERING)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            # Replaces a link: what it leads to is not of a dry run.
            data = content.encode() if isinstance(content, str) else content
            atomic.write_bytes(folder / name, data)
        script = folder / _SCRIPT
        atomic.write_text(script, self.script())
        script.chmod(0o755)

    def run(self, limit: float | None = programs.LIMIT) -> str:
        """Runs the commands, each of which is printed and has a limit as of `programs.call`;
        returns what the last one prints."""
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            self.write(place)
            each = [programs.change(words, folder=place, limit=limit) for words in self.commands]
        return each[-1]

    def text(self) -> str:
        """Returns commands and files for a terminal."""
        parts = [f"$ {shlex.join(command)}" for command in self.commands]
        for name, content in self.files.items():
            size = f"({len(content):,} bytes)\n" if isinstance(content, bytes) else content
            parts.append(f"--- {name}\n{size}".rstrip("\n"))
        return "\n\n".join(parts)


def _has_script(folder: epath.Path) -> bool:
    """Returns whether `Rendering.write` wrote the files of a folder."""
    try:
        with open_regular(folder / _SCRIPT) as file:
            return _MARK.encode() in file.read(200)
    except FileNotFoundError:
        return False


RENDERING: Final = OutputKind("dry run", _has_script, is_folder=True, in_buckets=False)


class Backend(Protocol):
    """A frozen dataclass of a backend's own options, and what it does with a job.

    Each method but `checks` and `render` prints its progress and raises UserError, one line, for
    anything that the user can correct.
    """

    needs_workdir: ClassVar[bool]  # for status, logs, stop and delete, too
    needs_bucket: ClassVar[bool]  # its hosts share no disk with this machine
    needs_topology: ClassVar[bool]  # runs on TPU slices

    @property
    def has_image(self) -> bool:
        """Returns whether its hosts run the code of an image, so that the bundle leaves it out."""
        ...

    @property
    def devices(self) -> int:
        """Returns the JAX devices of all processes; 0 if its options do not say."""
        ...

    def check(self, job: Job) -> None:
        """Raises UserError for options that cannot be, before anything is asked or created."""

    def checks(self, job: Job) -> Sequence[Check]:
        """Returns what must hold before anything is created, besides the checks of every job."""
        ...

    def render(self, job: Job) -> Rendering:
        """Returns the files and commands that submit the job; pure."""
        ...

    def is_running(self, job: Job) -> bool:
        """Returns whether the job exists and has not ended; UserError if another job has its
        name."""
        ...

    def run(self, job: Job) -> int:
        """Submits the job unless it is running, shows its progress; returns its exit code."""
        ...

    def status(self, job: JobId) -> str:
        """Returns where a job stands, for a terminal."""
        ...

    def logs(self, job: JobId, *, follow: bool) -> None:
        """Writes the output of all processes to standard output, each line once."""

    def stop(self, job: JobId) -> None:
        """Stops the job gracefully (it saves a checkpoint first) and waits until its machines are
        released."""

    def delete(self, job: JobId) -> None:
        """Stops the job, and removes what was created for it outside the run's own files."""


def option(
    default: Any,
    help: str,
    *,
    always: bool = False,
    required: bool = False,
    identifies: bool = True,
    least: int | None = None,
) -> Any:
    """Returns a field of a backend: an option that is a flag of `run`.

    always: also a flag of status, logs, stop and delete, which need it to find the job. least: of a
    number. required: a command without it is refused. identifies: another value makes another job.
    """
    about = {"help": help, "always": always, "required": required, "least": least}
    return dataclasses.field(default=default, metadata=about, repr=identifies)


def find_topology(name: str, refused: Mapping[str, str] = MappingProxyType({})) -> Slice:
    """Returns the slices that --topology names.

    refused: generations that the backend does not have -> where they are to be had.

    Raises:
        UserError: no such slice, with the nearest ones, or a refused generation.
    """
    try:
        found = slices.find(name)
    except ValueError as error:
        raise UserError(f"--topology: {error}") from None
    if found.generation.name in refused:
        raise UserError(f"--topology={name}: {refused[found.generation.name]}")
    return found


def check_image(image: str) -> None:
    """Raises UserError for an image that is not named by its digest: a tag may change between two
    starts of a job."""
    if not _DIGEST.fullmatch(image):
        raise UserError(
            f"--image={image}: give the image by its digest, as in REPOSITORY@sha256:…; `docker "
            "inspect --format='{{index .RepoDigests 0}}' IMAGE` prints it after a push"
        )
