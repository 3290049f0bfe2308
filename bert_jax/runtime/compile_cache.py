"""Compiled programs, kept on this machine: a second start compiles nothing.

JAX knows by what a program is the same (its text, the versions, the options, the devices) and asks
for it here. Its own store of files takes a damaged file for a program as long as zlib does, writes
in place, where another process may be reading, and says a line for every program that it cannot
write. This one keeps a digest before each program and replaces files whole.

    $BERT_JAX_CACHE/compiled/PROCESSOR/PROGRAM-KEY    sha256 of the rest, then the program

PROCESSOR is a digest of what XLA makes code for and JAX's key may leave out, so that machines with
other processors can share the folder. A program is machine code: whoever can write to the folder
can run what they like. So it is used only where this user alone can write to it.
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

from bert_jax.data_pipeline.storage.cache_dir import cache_dir
from bert_jax.data_pipeline.storage.digested_files import DigestedFiles, own_folder
from bert_jax.runtime.console import console

# In /proc/cpuinfo, on x86 and ARM: what it is and which instructions it has.
_OF_PROCESSOR = (
    "vendor_id",
    "cpu family",
    "model",
    "flags",
    "CPU implementer",
    "CPU part",
    "Features",
)
_OFF = "compiled programs are not kept, every start compiles anew"


def use() -> None:
    """Keeps what JAX compiles from now on; does nothing where JAX was told of a cache already.

    Call it before the first program is compiled, and after `sharding.use_cpu_devices`. A folder
    that cannot be used is one line, no error.
    """
    told = jax.config.values
    if told["jax_compilation_cache_dir"] or not told["jax_enable_compilation_cache"]:
        return
    root = cache_dir() / "compiled"
    try:
        folder = own_folder(root, _processor())
    except OSError as error:
        _warn(root, error.strerror or str(error))
        return
    _keep_in(folder)


def _warn(folder: Path, reason: str) -> None:
    console.print(f"warning: {folder}: {_OFF} ({reason})", markup=False)


def _processor() -> str:
    """A digest of this machine's kind of processor, and of the threads that XLA divides work for.

    The processor's instructions: JAX's key has them only as far as XLA describes the device.
    PJRT_NPROC: the compiler cuts sums and products for that many threads, and not every version's
    key says for how many.
    """
    described = [platform.machine(), os.environ.get("PJRT_NPROC") or str(os.cpu_count())]
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
            name, _, value = line.partition(":")
            if name.strip() in _OF_PROCESSOR:
                described.append(value.strip())
    return hashlib.sha256("\n".join(described).encode()).hexdigest()[:16]


def _keep_in(folder: Path) -> None:
    # Private names, all in this function; `tests/test_compile_cache.py` sees whether they hold.
    from jax._src import compilation_cache, compiler
    from jax._src.compilation_cache_interface import CacheInterface

    class Kept(DigestedFiles, CacheInterface):
        pass

    def write(
        cache_key: str,
        compile_time_secs: float,
        module_name: str,
        backend: Any,
        executable: Any,
        host_callbacks: Sequence[Any],
    ) -> None:
        """In every process, where JAX's own writes in the first alone: each host has its folder,
        and on CPUs each process its own keys."""
        if not host_callbacks:
            with contextlib.suppress(Exception):  # not every device's programs can be kept
                compilation_cache.put_executable_and_time(
                    cache_key, module_name, executable, backend, int(compile_time_secs)
                )

    def made(path: str) -> tuple[Kept, str]:
        return Kept(Path(path), functools.partial(_warn, Path(path))), path

    compilation_cache.get_file_cache = made
    compiler._cache_write = write
    jax.config.update("jax_compilation_cache_dir", str(folder))
