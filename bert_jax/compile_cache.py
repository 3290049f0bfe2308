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
import hashlib
import os
import platform
import stat
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from bert_jax.terminal import console
from data_pipeline.cache import cache_dir

MOST_BYTES = 4 * 2**30  # of all programs kept; those not used for longest go first
_DIGEST = hashlib.sha256().digest_size
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
        folder = _own_folder(root)
    except OSError as error:
        reason = error.strerror or str(error)
        console.print(f"warning: {root}: {_OFF} ({reason})", markup=False)
        return
    _keep_in(folder)


def _own_folder(root: Path) -> Path:
    """The folder for this processor, made where need be; OSError where it is not to be used."""
    folder = root / _processor()
    root.parent.mkdir(parents=True, exist_ok=True)
    for path in (root, folder):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.stat()
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(0, "others could put programs there; let it be yours, mode 700")
    with tempfile.TemporaryFile(dir=folder):
        return folder


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

    class Kept(Programs, CacheInterface):
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

    compilation_cache.get_file_cache = lambda path: (Kept(Path(path)), path)
    compiler._cache_write = write
    jax.config.update("jax_compilation_cache_dir", str(folder))


class Programs:
    """Programs by key, as files of a folder. No method raises because of what the disk does."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES):
        """most_bytes: of this folder and of those beside it, which other processors use."""
        self._path = folder
        self._most_bytes = most_bytes
        self._writes = True

    def get(self, key: str) -> bytes | None:
        """The program, None where there is none; one that is damaged is removed."""
        path = self._path / key
        try:
            content = path.read_bytes()
            digest, program = content[:_DIGEST], content[_DIGEST:]
            if digest == hashlib.sha256(program).digest():
                os.utime(path)
                return program
            path.unlink()
        except FileNotFoundError:
            return None
        except OSError:
            return None
        return None

    def put(self, key: str, value: bytes) -> None:
        """Keeps a program; says once that it could not."""
        if not self._writes:
            return
        part = self._path / f".{os.getpid()}-{time.monotonic_ns()}"
        try:
            self._make_room(len(value))
            part.write_bytes(hashlib.sha256(value).digest() + value)
            part.replace(self._path / key)
        except OSError as error:
            self._writes = False
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            reason = error.strerror or str(error)
            console.print(f"warning: {self._path}: {_OFF} ({reason})", markup=False)

    def _make_room(self, more: int) -> None:
        """Removes what was not used for longest; another process may be doing the same."""
        kept = []
        for path in self._path.parent.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                if stat.S_ISREG(found.st_mode):
                    kept.append((found.st_mtime, found.st_size, path))
        room = self._most_bytes - more - sum(size for _, size, _ in kept)
        for _, size, path in sorted(kept):
            if room >= 0:
                return
            path.unlink(missing_ok=True)
            room += size
