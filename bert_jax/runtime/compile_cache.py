"""Persistent compilation cache on this machine: a second start compiles nothing.

JAX computes the cache key (program text, versions, options, devices) and calls this cache. Its own
file cache accepts a damaged file if zlib does, writes in place, where another process may be
reading, and prints a line for every program that it cannot write. This cache stores a digest before
each program and replaces files atomically.

    $BERT_JAX_CACHE/compiled/PROCESSOR/KEY.digested    sha256 of KEY and the rest, then the program

PROCESSOR is a digest of properties that XLA compiles for but JAX's key may leave out, so that
machines with different processors can share the folder. A program is machine code: anyone who can
write to the folder can execute code. So the folder is used only if this user alone can write to it.
"""

import contextlib
import functools
import hashlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from bert_jax.errors import UserError
from bert_jax.runtime.log import logger
from bert_jax.storage.cache_dir import cache_dir
from bert_jax.storage.digested_files import DigestedFiles, own_folder

# Fields of /proc/cpuinfo on x86 and ARM: processor model and instruction sets.
_OF_PROCESSOR = (
    "vendor_id",
    "cpu family",
    "model",
    "flags",
    "CPU implementer",
    "CPU part",
    "Features",
)
_OFF = "compiled programs are not cached, every start compiles again"


def use() -> None:
    """Enables the cache; does nothing if JAX has a cache configured already.

    Call it before the first program is compiled, and after `cpu.use_cpu_devices`. A folder that
    cannot be used causes a warning, not an error.
    """
    settings = jax.config.values
    if settings["jax_compilation_cache_dir"] or not settings["jax_enable_compilation_cache"]:
        return
    try:
        _cache_in(_folder())
    except OSError as error:
        _warn(_root(), error.strerror or str(error))


def describe() -> str:
    """Returns a line on the cache: where it is, what is in it.

    Raises:
        UserError: the folder cannot be used.
    """
    settings = jax.config.values
    if not settings["jax_enable_compilation_cache"]:
        return f"off by JAX's settings: {_OFF}"
    if named := settings["jax_compilation_cache_dir"]:
        return f"{named}, by JAX's settings"
    try:
        files = [path.stat().st_size for path in _folder().iterdir()]
    except OSError as error:
        raise UserError(f"{_root()}: {_OFF} ({error.strerror or error}); make it yours") from None
    return f"{_root()}: {len(files)} programs of this processor, {sum(files) / 1e9:.2f} GB"


def _root() -> Path:
    return cache_dir() / "compiled"


def _folder() -> Path:
    """Returns the folder of this machine's programs; raises the errors of `own_folder`."""
    return own_folder(_root(), _processor())


def _warn(folder: Path, reason: str) -> None:
    logger.warning(f"{folder}: {_OFF} ({reason})")


def _processor() -> str:
    """Returns a digest of the processor model, its instruction sets and XLA's number of threads.

    Instruction sets: JAX's key has only those that XLA reports for the device.
    PJRT_NPROC: the compiler splits reductions and matrix products for that many threads, and not
    every version's key includes the number.
    """
    described = [platform.machine(), os.environ.get("PJRT_NPROC") or str(os.cpu_count())]
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
            name, _, value = line.partition(":")
            if name.strip() in _OF_PROCESSOR:
                described.append(value.strip())
    return hashlib.sha256("\n".join(described).encode()).hexdigest()[:16]


def _cache_in(folder: Path) -> None:
    # Private names of JAX, all in this function; `tests/runtime/test_compile_cache.py` checks them.
    from jax._src import compilation_cache, compiler
    from jax._src.compilation_cache_interface import CacheInterface

    class Cache(DigestedFiles, CacheInterface):
        pass

    def write(
        cache_key: str,
        compile_time_secs: float,
        module_name: str,
        backend: Any,
        executable: Any,
        host_callbacks: Sequence[Any] = (),  # JAX 0.10 passes them; from 0.11 on there are none
    ) -> None:
        """Writes in every process, unlike JAX (process 0 only): each host has its own folder,
        and on CPUs each process its own keys."""
        if not host_callbacks:
            with contextlib.suppress(Exception):  # not every device's programs can be serialized
                compilation_cache.put_executable_and_time(
                    cache_key, module_name, executable, backend, int(compile_time_secs)
                )

    def get_cache(path: str) -> tuple[Cache, str]:
        return Cache(Path(path), functools.partial(_warn, Path(path))), path

    compilation_cache.get_file_cache = get_cache
    compiler._cache_write = write
    jax.config.update("jax_compilation_cache_dir", str(folder))
