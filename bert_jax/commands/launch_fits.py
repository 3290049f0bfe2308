"""Checks before a launch that a config fits its devices, and compiles for its TPU slices."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.errors import UserError, count
from bert_jax.launch.output import say
from bert_jax.launch.preflight import Check, CheckFailedError

if TYPE_CHECKING:
    from bert_jax.config.schema import Config


def fits_check(config: "Config", command: Sequence[str], topology: str) -> Check:
    """Returns the check that `bert-jax compile` finds that every phase fits.

    A result is cached under everything that it depends on. Without libtpu, or for a task, nothing
    is compiled, and the line says so.

    command: of the job, with the words that give `config`.
    """
    return Check("config", lambda: _probe(config, command, topology))


def devices_check(config: "Config", devices: int) -> Check:
    """Returns the check that the mesh and every phase's batch fit a number of devices."""

    def probe() -> str:
        from bert_jax.parallel import global_batch
        from bert_jax.parallel.mesh import abstract_mesh

        mesh = abstract_mesh(config.mesh, devices)
        for phase in () if config.task.name else config.phases:  # a task's batches are filled up
            global_batch.check_divides(mesh, phase.batch_size, phase.micro_batches)
        return f"fits {count(devices, 'device')} by its batch and mesh"

    return Check("config", probe)


def _probe(config: "Config", command: Sequence[str], topology: str) -> str:
    from bert_jax.aot.topology import library
    from bert_jax.storage.atomic import write_text

    if config.task.name:
        return f"not compiled for {topology}: `bert-jax compile` compiles pretraining alone"
    try:
        library()
    except UserError as error:
        return f"not compiled for {topology}: {error}"
    cached = _cached(config, topology)
    if cached.is_file():
        return f"fits {topology}, as compiled before"
    say(f"config: compiling for {topology}, which may take some minutes")
    words = [word for word in command if word.startswith(("--config", "--module="))]
    result = _compile([*words, f"--topology={topology}", "--json"])
    for phase in result["phases"]:
        if not phase["fits"]:
            flags = [_flags(remedy["changes"]) for remedy in phase["remedies"][:2]]
            advice = f"try {' or '.join(flags)}; " if flags else ""
            raise CheckFailedError(
                f"phase {phase['phase']} does not fit the memory of {topology}",
                f"{advice}`bert-jax compile` shows what uses it",
            )
    cached.parent.mkdir(parents=True, exist_ok=True)
    write_text(cached, json.dumps({"topology": topology}))
    return f"fits {topology}"


def _compile(words: Sequence[str]) -> dict[str, Any]:
    """Returns what `bert-jax compile --json` prints, in a process of its own: the launcher, which
    may run for days, stays small."""
    command = [sys.executable, "-m", "bert_jax", "compile", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        line = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(line.removeprefix("error: ")) from None
    return result


def _flags(changes: dict[str, Any]) -> str:
    return " ".join(f"--config.{key}={value}" for key, value in changes.items())


def _cached(config: "Config", topology: str) -> Path:
    """Returns the file that exists if a config fits: named by config, slice, compiler and code."""
    import bert_jax
    from bert_jax.aot.topology import version
    from bert_jax.config.serialization import to_dict
    from bert_jax.extensions.registry import added
    from bert_jax.runtime.versions import versions
    from bert_jax.storage.cache_dir import cache_dir
    from bert_jax.storage.digest import file_digest, json_digest

    sources = sorted(Path(bert_jax.__file__).parent.rglob("*.py"))
    code = [file_digest(path) for path in sources]
    modules = [module.sha256 for module in added()]
    about = [to_dict(config), topology, version(), versions(), code, *modules]
    return cache_dir() / "launch" / f"{json_digest(about)}.json"
