"""CPU devices and memory allocation; configured before JAX starts."""

import contextlib
import ctypes
import os
from collections.abc import Sequence

import jax

from bert_jax.errors import UserError

_CPU_IN_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
_CPU_THREADS = 16
_COUNT = "jax_num_cpu_devices"  # -1 by default


def use_cpu_devices(
    count: int | None, *, processes: int = 1, beside_accelerators: bool = False
) -> None:
    """Makes the CPU act as `count` devices per process, in place of any accelerators; call it
    before creating any array.

    The same total number of devices gives the same bits for any number of processes and cores:

    - PJRT_NPROC, the size of XLA's thread pool: reductions and matrix products are split into one
      part per thread; by default that is the larger of the process's cores and devices. Measured:
      results of 4 devices differ after five steps between pools of 4 and 8 threads, even without
      parallel tasks and Eigen threads; with a fixed size they do not.
    - Thunks in order: devices that share cores may start two collectives in different orders, and
      then wait for each other forever (seen with a sharded optimizer).

    One device executes programs in the thread that calls them, for `keep_memory`.

    Where JAX has started, as in a notebook, its devices remain.

    Environment variables set by the user take precedence; they must be equal in all processes.

    Args:
        count: devices of each process. None: JAX's default; as there may be an accelerator, the
            thread pool is then no smaller than XLA's default.
        processes: number of processes of the job.
        beside_accelerators: the CPU is used only where there is no accelerator.

    Raises:
        UserError: JAX has started with another number of devices, and accelerators do not count.
    """
    total = (count or 1) * processes
    threads = max(_CPU_THREADS, total, 0 if count else os.cpu_count() or 1)
    os.environ.setdefault("PJRT_NPROC", str(threads))
    if total > 1:
        flags = (_CPU_IN_ORDER, os.environ.get("XLA_FLAGS", ""))  # the last occurrence wins
        os.environ["XLA_FLAGS"] = " ".join(filter(None, flags))
    else:
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    if count:
        _set_count(count, is_required=not beside_accelerators)
    if count and not beside_accelerators:
        jax.config.update("jax_platforms", "cpu")


def _set_count(count: int, *, is_required: bool) -> None:
    try:
        jax.config.update(_COUNT, count)
    except RuntimeError:
        if is_required:
            raise UserError(
                f"--cpu_devices={count}: JAX has started in this process with another number; "
                "start a new process"
            ) from None


def more_devices(devices: Sequence[jax.Device]) -> str:
    """Returns, for the line that names a run's devices, how one CPU device becomes two; "" if there
    are several, an accelerator or a single core, or `use_cpu_devices` was given a number.

    devices: of all processes.
    """
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    is_given = getattr(jax.config, _COUNT) > 0
    if len(devices) > 1 or devices[0].platform != "cpu" or is_given or cores == 1:
        return ""
    return f"; --cpu_devices=2 simulates two on this machine's {cores} cores"


def keep_memory() -> None:
    """Makes glibc keep freed memory in the process; does nothing with another C library.

    XLA for CPUs allocates a program's temporaries at every execution. By default glibc maps that
    much memory from the kernel and returns it, and the kernel zeroes each page at its first use:
    a fifth of the CPU time in a step. In another thread than the main one glibc maps more than
    64 MB in any case, so this works for one device alone, see `use_cpu_devices`.
    """
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h
    with contextlib.suppress(OSError, AttributeError, TypeError):  # no such function here
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, -1)
