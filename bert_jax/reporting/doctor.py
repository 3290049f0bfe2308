"""Checks what this machine has, and what would fail in a run or a launch: one table.

Devices are asked in a process of its own, which ends if a device or a server does not answer, and
takes no memory of a GPU that others use.
"""
# Over 300 lines: the table, and each of its checks.

import contextlib
import dataclasses
import functools
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement

from bert_jax.data_pipeline.store.manifest import read_manifest
from bert_jax.errors import UserError
from bert_jax.hardware.gpus import ALLOCATOR_VARIABLE, FRACTION_VARIABLE, memory_fraction
from bert_jax.launch import programs
from bert_jax.launch.gke.checks import check_kubectl
from bert_jax.launch.gke.kubectl import Kubectl
from bert_jax.launch.preflight import Check, CheckFailedError, folder_check, outcome, store_check
from bert_jax.launch.sky.checks import check_sky
from bert_jax.launch.slurm.backend import check_sbatch
from bert_jax.launch.tpu.checks import check_gcloud, check_login
from bert_jax.runtime import compile_cache
from bert_jax.storage import json_record
from bert_jax.storage.cache_dir import check_room
from bert_jax.storage.outputs import check_output
from bert_jax.storage.remote import is_remote

OK, NOTE, FAILED = "ok", "note", "failed"
_ANSWER: Final = 10.0  # seconds that a program gets
_START: Final = 120.0  # that JAX gets to find its devices
_ASK: Final = """
import json, logging, os
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
from bert_jax.errors import UserError
from bert_jax.ops.attention import cudnn
from bert_jax.parallel.mesh import find_devices
def said(error):
    return " ".join(str(error).split())[:200]
warnings = []
class Kept(logging.Handler):
    def emit(self, record):
        warnings.append(said(f"{record.getMessage()} {(record.exc_info or ['', ''])[1]}"))
logging.getLogger("jax").addHandler(Kept(logging.WARNING))
try:
    devices = find_devices()
    found = {"platform": devices[0].platform, "kinds": [one.device_kind for one in devices]}
except UserError as error:
    found = {"error": str(error)}
except Exception as error:
    found = {"no_devices": said(error)}
if found.get("platform") == "gpu":
    try:
        found["cudnn"] = cudnn.version()
    except Exception as error:
        found["no_cudnn"] = said(error)
print(json.dumps(found | {"warnings": warnings}))
"""
# Oldest driver of each CUDA: "CUDA Compatibility", minor version compatibility.
_DRIVERS: Final = {"cuda12": 525, "cuda13": 580}
_FLAGS: Final = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")  # XLA ends the process at an unknown one
# Where a program is there, but fails.
_REPAIRS: Final = {
    "gcloud": "repair it, or install it again",
    "kubectl": "choose a cluster that answers (kubectl config use-context), and log in to it",
    "sbatch": "run this on a login node, where sinfo answers",
    "sky": "repair it, or install it again",
}
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_CUDA: Final = tuple(f"jax-{name}-{part}" for name in _DRIVERS for part in ("plugin", "pjrt"))


@dataclasses.dataclass(frozen=True)
class Row:
    """A check, and what needs it where no run fails without it."""

    check: Check
    needed_for: str = ""


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a check: its line says what it found, or what to do.

    state: OK, NOTE, or FAILED: a run would fail.
    """

    check: str
    state: str
    line: str


def rows(workdir: str | None = None, store: str | None = None) -> list[Row]:
    """Returns the table.

    Args:
        workdir: of a run to be, which must be writable. store: which must be complete.
    """
    found = [
        Row(Check("versions", _versions)),
        Row(Check("driver", _driver)),
        Row(Check("CUDA", _cuda), "GPUs, where the system has no CUDA of its own"),
        Row(Check("devices", _devices)),
        Row(Check("cuDNN", _cudnn), "attention by cuDNN; XLA's takes more memory"),
        Row(Check("GPU memory", _preallocation)),
        Row(Check("caches", check_room)),
        Row(Check("compiled", compile_cache.describe), "starts that compile nothing"),
        Row(_tool("gcloud", _gcloud), "launch tpu"),
        Row(_tool("kubectl", lambda: check_kubectl(Kubectl())), "launch gke"),
        Row(_tool("sbatch", check_sbatch), "launch slurm"),
        Row(_tool("sky", check_sky), "launch sky"),
    ]
    if workdir:
        found.append(Row(Check("workdir", lambda: _workdir(workdir))))
    if store:
        found.append(Row(store_check(store, read_manifest)))
    return found


def examine(table: Sequence[Row]) -> Iterator[Finding]:
    """Runs the checks of a table; yields what each found."""
    _ask.cache_clear()
    with programs.answering_within(_START):
        for row in table:
            holds, line = _outcome(row.check)
            state = OK if holds else NOTE if row.needed_for else FAILED
            if state == NOTE:
                line = f"{line}; needed for {row.needed_for}"
            yield Finding(row.check.name, state, " ".join(line.split()))


def _outcome(check: Check) -> tuple[bool, str]:
    """Returns what `outcome` does; what no check foresaw on a machine ends none of the others."""
    try:
        return outcome(check)
    except Exception as error:
        where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        return False, f"cannot be checked ({where}{reason}); repair that, or report it"


def _tool(name: str, probe: Callable[[], str]) -> Check:
    def check() -> str:
        if shutil.which(name) is None:
            raise UserError(f"not installed ({programs.how_to_install(name)})")
        try:
            with programs.answering_within(_ANSWER):
                return probe()
        except programs.ProgramError as error:
            raise CheckFailedError(str(error), _REPAIRS[name]) from None

    return Check(name, check)


def _gcloud() -> str:
    return f"{check_gcloud()}, {check_login()}"


def _installed(name: str) -> str:
    """Returns the version of a package, "" if it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return ""


def _unmet(package: str, extra: str = "") -> list[str]:
    """Returns what a package requires, also with an extra, that is not installed or is another
    release."""
    wrong = []
    for text in importlib.metadata.requires(package) or []:
        wanted = Requirement(text)
        if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
            continue
        if (has := _installed(wanted.name)) not in wanted.specifier or not has:
            other = f", not {wanted.specifier}" if wanted.specifier else ""
            wrong.append(f"{wanted.name} {has or 'missing'}{other}")
    return wrong


def _versions() -> str:
    """Checks the packages that JAX is made of against what each of them requires."""
    jaxlib, names = _installed("jaxlib"), [name for name in _CUDA if _installed(name)]
    wrong = _unmet("jax")
    # JAX does not use a plugin of another release, and says so in a warning alone.
    wrong += [f"{name} {_installed(name)}, not {jaxlib}" for name in names
              if _installed(name) != jaxlib]  # fmt: skip
    if libtpu := _installed("libtpu"):
        names.append("libtpu")
        wrong += [line for line in _unmet("jax", "tpu") if line.startswith(f"libtpu {libtpu}")]
    if wrong:
        remedy = "install bert-jax again with the extra of this machine, [cuda] or [tpu]"
        raise CheckFailedError("; ".join(wrong), remedy)
    shown = ("bert-jax", "jax", "jaxlib", *names)
    return ", ".join(f"{name} {_installed(name)}" for name in shown)


def _is_gpu_there() -> bool:
    return Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None


def _driver() -> str:
    """Checks that NVIDIA's driver answers and is new enough for JAX's CUDA."""
    if not _is_gpu_there():
        return "no NVIDIA GPU"
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return "not used (JAX_PLATFORMS=cpu)"
    try:
        words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        with programs.answering_within(_ANSWER):
            gpus = [line.rsplit(", ", 1) for line in programs.call(words).strip().splitlines()]
    except UserError as error:
        raise CheckFailedError(str(error), "install NVIDIA's driver, or restart it") from None
    if not gpus:
        return "nvidia-smi lists no GPU"
    version = gpus[0][-1]
    for cuda, least in _DRIVERS.items():
        if not (number := version.partition(".")[0]).isdecimal():
            line = f"nvidia-smi answers {version[:60]!r}, no version"
            raise CheckFailedError(line, "install NVIDIA's driver, or restart it")
        if _installed(f"jax-{cuda}-plugin") and int(number) < least:
            line = f"{version} is too old for jax-{cuda}-plugin"
            raise CheckFailedError(line, f"install a driver from {least} on")
    return f"{version}, {len(gpus)} of {gpus[0][0]}"


def _cuda() -> str:
    """Checks CUDA's libraries from Python packages."""
    plugins = [f"jax-{cuda}-plugin" for cuda in _DRIVERS if _installed(f"jax-{cuda}-plugin")]
    if not plugins:
        return "no CUDA plugin of JAX"
    if wrong := [line for name in plugins for line in _unmet(name, "with-cuda")]:
        raise CheckFailedError("; ".join(wrong), "pip install 'bert-jax[cuda]'")
    path = os.environ.get("LD_LIBRARY_PATH")
    if path and ("cuda" in path or "cudnn" in path):
        line = f"LD_LIBRARY_PATH={path}: these libraries come before those of the packages"
        raise CheckFailedError(line, "unset it if JAX cannot load one")
    return f"libraries of {', '.join(plugins)}"


@functools.cache
def _ask() -> dict[str, Any]:
    """Returns what JAX finds, or as "no_devices" why there is no answer: it is waited for once."""
    try:
        printed = programs.call([sys.executable, "-c", _ASK])
    except UserError as error:
        return {"no_devices": str(error)}
    try:
        return json_record.parse_object("".join(printed.splitlines()[-1:]))
    except ValueError:
        return {"no_devices": f"no answer, but {printed[-60:]!r}"}


def _devices() -> str:
    found = _ask()
    if "no_devices" in found:
        named = [name for name in _FLAGS if name in found["no_devices"]]
        remedy = "end other programs that use them, or unset JAX_PLATFORMS"
        remedy = f"unset {named[0]}, or mend the flag" if named else remedy
        raise CheckFailedError(f"JAX finds no devices ({found['no_devices']})", remedy)
    if "error" in found:
        raise UserError(found["error"])
    kinds = found["kinds"]
    line = f"{len(kinds)} of {kinds[0]} ({found['platform']})"
    is_chosen = os.environ.get("JAX_PLATFORMS")
    if found["platform"] == "cpu" and _is_gpu_there() and not is_chosen:
        # The first: one that follows from it says that there is no plugin.
        reason = "".join(f" ({said})" for said in found.get("warnings", [])[:1])
        raise CheckFailedError(f"{line}, but there is a GPU{reason}", _remedy_for_hidden_gpu())
    return line


def _remedy_for_hidden_gpu() -> str:
    """Returns what to do where JAX does not find the GPU of this machine."""
    if not any(_installed(f"jax-{cuda}-plugin") for cuda in _DRIVERS):
        return "pip install 'bert-jax[cuda]'"
    if (shown := os.environ.get(_VISIBLE)) is not None:
        return f"unset {_VISIBLE}={shown}, which may hide it"
    return "repair what driver and CUDA say here, or end other programs that use it"


def _cudnn() -> str:
    found = _ask()
    if "kinds" not in found:
        raise CheckFailedError("not known without devices", "see devices")
    if "no_cudnn" in found:
        raise CheckFailedError(found["no_cudnn"], "pip install 'bert-jax[cuda]'")
    return found.get("cudnn") or "no GPU"


def _preallocation() -> str:
    """Checks the variables by which JAX takes a GPU's memory, as jaxlib reads them."""
    fraction, name = memory_fraction()
    from jaxlib.xla_client import generate_pjrt_gpu_plugin_options

    try:
        options = generate_pjrt_gpu_plugin_options()
    except ValueError as error:
        raise CheckFailedError(f"JAX refuses its variables ({error})", "unset it") from None
    if name == ALLOCATOR_VARIABLE:
        return f"taken as it is needed ({name}=platform)"
    if not options.get("preallocate", True):
        return "taken as it is needed (XLA_PYTHON_CLIENT_PREALLOCATE)"
    more = "" if name else f"; for more, {FRACTION_VARIABLE}=.95"
    return f"JAX takes {fraction:.0%} of each GPU at its start{more}"


def _workdir(folder: str) -> str:
    """Checks a folder, or where it would be made."""
    from bert_jax.training.claim import RUN

    check_output(folder, RUN)
    if is_remote(folder):
        return folder_check("workdir", folder).probe()
    path = Path(folder).absolute()
    place = next(one for one in (path, *path.parents) if one.exists())
    line = folder_check("workdir", str(place)).probe()
    return f"{line}, {shutil.disk_usage(place).free / 1e9:.1f} GB free"
