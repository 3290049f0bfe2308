"""The TPU compiler, libtpu, and the devices of slices, on a machine without TPU."""

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bert_jax.aot import installed_files
from bert_jax.errors import UserError
from bert_jax.hardware.slices import Slice
from bert_jax.storage.reader_errors import one_line

if TYPE_CHECKING:
    import jax

LIBTPU_VARIABLE = "BERT_JAX_LIBTPU"  # path of a libtpu.so outside the installed packages

_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # do not acquire, or wait for, an accelerator of this machine
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # the cache cannot load programs without a device
    "TPU_SKIP_MDS_QUERY": "1",  # do not query a metadata server: it would block as well
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # takes no device, so other processes may use theirs
    # Values from that server, without which libtpu warns. Any slice works.
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_LOG_DIR": "disabled",  # no files in /tmp/tpu_logs
}


def prepare() -> None:
    """Configures this process to compile for TPUs and to use only the CPU.

    Call it before JAX initializes its backends, and preferably before importing JAX, which reads
    some environment variables only on import.

    Raises:
        UserError: the compiler is not found, or its files are damaged; nothing is changed.
    """
    path = library()
    try:
        installed_files.check(path.parent.parent, "libtpu")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be loaded ({one_line(error)}); its files are damaged: install libtpu "
            f"{version()} again"
        ) from None
    os.environ |= _ENVIRONMENT | {"TPU_LIBRARY_PATH": str(path)}
    if "jax" in sys.modules:
        import jax

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_compilation_cache", False)


def library() -> Path:
    """Returns the path of libtpu.so: from BERT_JAX_LIBTPU, or of the installed package.

    Raises:
        UserError: neither exists.
    """
    if copy := os.environ.get(LIBTPU_VARIABLE):
        if not Path(copy).is_file():
            raise UserError(
                f"{LIBTPU_VARIABLE}={copy}: no such file; give the path of libtpu.so itself"
            )
        return Path(copy)
    package = importlib.util.find_spec("libtpu")
    if package is None or not package.submodule_search_locations:
        raise UserError(
            "the TPU compiler, libtpu, is not installed: pip install 'bert-jax[tpu]'; or, to keep "
            "JAX from searching for a TPU at every start, pip install --no-deps --target=DIR "
            f"'libtpu==0.0.42.*' and set {LIBTPU_VARIABLE}=DIR/libtpu/libtpu.so"
        )
    return Path(package.submodule_search_locations[0]) / "libtpu.so"


def version() -> str:
    """Returns the version of libtpu, such as 0.0.42.1; "unknown" for a file without a package."""
    folder = str(library().parent.parent)
    packages = importlib.metadata.distributions(name="libtpu", path=[folder])
    return next((package.version for package in packages), "unknown")


def devices(tpu_slice: Slice) -> Sequence["jax.Device"]:
    """Returns the JAX devices of a slice; they are descriptions that cannot hold arrays.

    Raises:
        UserError: libtpu does not know it.
    """
    from jax.experimental.topologies import get_topology_desc

    try:
        described = get_topology_desc(
            tpu_slice.topology,
            platform="tpu",
            chip_config_name=tpu_slice.chip_config,
            chips_per_host_bounds=tpu_slice.host_bounds,
            wrap=tpu_slice.wrap,
            num_slices=tpu_slice.count,
        )
    except Exception as error:  # libtpu may raise any type
        reason = " ".join(str(error).split())
        raise UserError(f"libtpu {version()} cannot describe {tpu_slice.name}: {reason}") from error
    if len(described.devices) != tpu_slice.devices:
        raise UserError(
            f"libtpu {version()} reports {len(described.devices)} devices in {tpu_slice.name}, "
            f"expected {tpu_slice.devices}"
        )
    return described.devices
