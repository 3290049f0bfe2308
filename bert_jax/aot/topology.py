"""A slice's devices, as libtpu describes them on a machine that has none of them."""

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bert_jax.errors import UserError
from bert_jax.launch.hardware.slices import Slice

if TYPE_CHECKING:
    import jax

COPY = "BERT_JAX_LIBTPU"  # a file libtpu.so that is not among the installed packages

_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # no accelerator of this machine is taken, or waited for
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # it cannot read what was compiled for no device
    "TPU_SKIP_MDS_QUERY": "1",  # nor a metadata server asked, which would be waited for too
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no device is held: others on this machine may hold theirs
    # What libtpu would find out from that server, and complain of not finding. Any slice will do.
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_LOG_DIR": "disabled",  # no files in /tmp/tpu_logs
}


def prepare() -> None:
    """Lets this process compile for slices, and use no device but the CPU.

    To be called before JAX starts its devices, and best before it is imported: it reads some of the
    environment only then.

    Raises:
        UserError: libtpu is not there.
    """
    os.environ |= _ENVIRONMENT | {"TPU_LIBRARY_PATH": str(library())}
    if "jax" in sys.modules:
        import jax

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_compilation_cache", False)


def library() -> Path:
    """The file of libtpu: the copy that BERT_JAX_LIBTPU names, or the installed package's.

    Raises:
        UserError: there is neither.
    """
    if copy := os.environ.get(COPY):
        if not Path(copy).is_file():
            raise UserError(f"{COPY}={copy}: there is no such file; name the libtpu.so itself")
        return Path(copy)
    package = importlib.util.find_spec("libtpu")
    if package is None or not package.submodule_search_locations:
        raise UserError(
            "the TPU compiler, libtpu, is not installed: pip install 'bert-jax[tpu]'; or, so that "
            "JAX does not look for a TPU on every start, pip install --no-deps --target=DIR "
            f"'libtpu==0.0.42.*' and {COPY}=DIR/libtpu/libtpu.so"
        )
    return Path(package.submodule_search_locations[0]) / "libtpu.so"


def version() -> str:
    """Which libtpu it is, such as 0.0.42.1; "unknown" for a file without its package."""
    folder = str(library().parent.parent)
    found = importlib.metadata.distributions(name="libtpu", path=[folder])
    return next((package.version for package in found), "unknown")


def devices(of: Slice) -> Sequence["jax.Device"]:
    """All JAX devices of slices; none of them can hold an array.

    Raises:
        UserError: libtpu does not know this slice.
    """
    from jax.experimental.topologies import get_topology_desc

    try:
        described = get_topology_desc(
            of.topology,
            platform="tpu",
            chip_config_name=of.chip_config,
            chips_per_host_bounds=of.host_bounds,
            wrap=of.wrap,
            num_slices=of.count,
        )
    except Exception as error:  # whatever a library that is another than ours may raise
        reason = " ".join(str(error).split())
        raise UserError(f"libtpu {version()} does not describe {of.name}: {reason}") from error
    found = described.devices
    if len(found) != of.devices:
        raise UserError(
            f"libtpu {version()} sees {len(found)} devices in {of.name}, which has {of.devices}"
        )
    return found
