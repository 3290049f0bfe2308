"""XLA's compiler for NVIDIA GPUs, on a machine without GPU, driver or CUDA.

The wheels jax-cuda13-plugin and jax-cuda13-pjrt hold it: those of the [cuda] extra, or copies
outside the installed packages, since JAX looks for a GPU at every start once they are installed. A
GPU is described by the text form of XLA's GpuTargetConfigProto.
"""

import ctypes
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bert_jax.aot import installed_files
from bert_jax.errors import UserError
from bert_jax.hardware.gpus import GpuHosts, GpuModel
from bert_jax.storage.reader_errors import one_line

if TYPE_CHECKING:
    import jax

GPU_COMPILER_VARIABLE = "BERT_JAX_GPU_COMPILER"  # folder with the two packages (default: installed)

_LIBRARY = Path("jax_plugins", "xla_cuda13", "xla_cuda_plugin.so")
_PACKAGES = ("jax-cuda13-plugin", "jax-cuda13-pjrt")
_PLATFORM = "cuda"  # of JAX
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # do not acquire a device of this machine
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # the cache cannot load programs without a device
    "TF_CPP_MIN_LOG_LEVEL": "3",  # XLA reports that there is no CUDA
}
# There is no device to time candidates on; without the second, processes of a job would share that.
_FLAGS = ("--xla_gpu_autotune_level=0", "--xla_gpu_shard_autotuning=false")
_KIB = 2**10


def prepare() -> None:
    """Configures this process to compile for GPUs and to use only the CPU.

    Call it before JAX initializes its backends, and preferably before importing JAX.

    Raises:
        UserError: the compiler is not found, is of another version than jaxlib, or cannot be
            loaded; nothing is changed.
    """
    where = folder()
    before = dict(os.environ)
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if flag not in _FLAGS]
    os.environ |= _ENVIRONMENT | {"XLA_FLAGS": " ".join([*flags, *_FLAGS])}
    try:
        _load(where)
    except UserError:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ |= before
        raise
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)
    _answer_for_cudnn()


def _load(where: Path) -> None:
    """Puts the packages in a folder on the path; UserError if they cannot be loaded."""
    known = [*sys.path]
    if str(where) not in known:
        # First, as the version was checked there; a [cuda] extra has packages of these names, too.
        sys.path.insert(0, str(where))
    try:
        for package in _PACKAGES:
            installed_files.check(where, package)
        ctypes.CDLL(str(where / _LIBRARY))  # JAX would print a traceback, and go on without it
        cudnn_version()
    except (OSError, ImportError, AttributeError) as error:
        sys.path[:] = known
        raise UserError(
            f"{_named()[1]}: cannot be loaded ({one_line(error)}); its files are "
            f"damaged, or of another system: {_how_to_install()}"
        ) from None


def _how_to_install() -> str:
    jaxlib = importlib.metadata.version("jaxlib")
    return (
        f"pip install --no-deps --target=DIR jax-cuda13-plugin=={jaxlib} "
        f"jax-cuda13-pjrt=={jaxlib} and set {GPU_COMPILER_VARIABLE}=DIR"
    )


def folder() -> Path:
    """Returns the folder of the compiler, which BERT_JAX_GPU_COMPILER names: by default that of the
    installed packages.

    Raises:
        UserError: there is none, it has no compiler, or one of another version than jaxlib.
    """
    jaxlib, how, named, said = importlib.metadata.version("jaxlib"), _how_to_install(), *_named()
    if not named:
        raise UserError(f"the GPU compiler is not installed: {how}")
    where = Path(named).absolute()
    if not (where / _LIBRARY).is_file():
        raise UserError(f"{said}: no {_LIBRARY} there: {how}")
    found = {_version(where, package) for package in _PACKAGES}
    if found != {jaxlib}:
        raise UserError(f"{said}: {', '.join(sorted(found))}, jaxlib is {jaxlib}: {how}")
    return where


def _named() -> tuple[str, str]:
    """Returns the folder of the compiler, empty if there is none, and how messages name it."""
    if named := os.environ.get(GPU_COMPILER_VARIABLE):
        return named, f"{GPU_COMPILER_VARIABLE}={named}"
    installed = importlib.metadata.distributions(name=_PACKAGES[-1])
    where = next((str(package.locate_file("")) for package in installed), "")
    return where, where


def name() -> str:
    """Returns the compiler and its version."""
    return f"XLA's GPU compiler (jax-cuda13-pjrt {_version(folder(), 'jax-cuda13-pjrt')})"


def _version(where: Path, package: str) -> str:
    found = importlib.metadata.distributions(name=package, path=[str(where)])
    return next((package.version for package in found), f"{package} unknown")


def devices(hosts: GpuHosts) -> Sequence["jax.Device"]:
    """Returns the JAX devices of hosts with GPUs; they are descriptions that cannot hold arrays.

    Raises:
        UserError: the compiler cannot describe them.
    """
    from jax.experimental.topologies import get_topology_desc

    # Slices x hosts x GPUs: a real job's hosts are slices of their own, as only links join a slice.
    shape = f"{hosts.devices // hosts.linked}x{hosts.linked // hosts.per_host}x{hosts.per_host}"
    try:
        described = get_topology_desc(
            "", platform=_PLATFORM, target_config=target_config(hosts.model), topology=shape
        )
    except Exception as error:  # the plugin may raise any type
        reason = " ".join(str(error).split())[:500]
        raise UserError(f"{name()} cannot describe {hosts.name}: {reason}") from error
    return described.devices


def target_config(model: GpuModel) -> str:
    """Returns the text form of XLA's GpuTargetConfigProto (xla/stream_executor/device_description
    .proto, openxla/xla) of a GPU."""
    major, minor = model.capability
    cudnn = cudnn_version()
    memory_bandwidth = round(model.accelerator.memory_bandwidth or 0)
    return f"""gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: {48 * _KIB}
  shared_memory_per_core: {model.shared}
  shared_memory_per_block_optin: {model.shared - _KIB}
  threads_per_core_limit: {model.threads}
  core_count: {model.cores}
  fpus_per_core: {model.units}
  block_dim_limit_x: {2**31 - 1}
  block_dim_limit_y: {2**16 - 1}
  block_dim_limit_z: {2**16 - 1}
  memory_bandwidth: {memory_bandwidth}
  l2_cache_size: {model.l2}
  clock_rate_ghz: {model.clock}
  device_memory_size: {model.memory}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: {64 * _KIB}
  registers_per_block_limit: {64 * _KIB}
  runtime_version: "13.0.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: {cudnn[0]} minor: {cudnn[1]} patch: {cudnn[2]} }}
device_description_str: "{model.device_kind}"
"""


def cudnn_version() -> tuple[int, int, int]:
    """Returns the version of cuDNN that the compiler is built for, which a described GPU has."""
    number = importlib.import_module("jax_cuda13_plugin._versions").cudnn_build_version()
    return number // 10_000, number // 100 % 100, number % 100


def _answer_for_cudnn() -> None:
    """Gives JAX the version of the described GPU's cuDNN where it asks the installed one's."""
    from jax._src.cudnn import fused_attention_stablehlo

    major, minor, patch = cudnn_version()
    number = major * 10_000 + minor * 100 + patch
    fused_attention_stablehlo.check_cudnn_version = lambda: number
