"""Devices and memory of a CPU; set before JAX starts."""

import contextlib
import ctypes
import os

import jax

_CPU_IN_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
_CPU_THREADS = 16


def use_cpu_devices(count: int | None, *, processes: int = 1) -> None:
    """Lets the CPU act as so many devices in each process; only before the first array is made.

    The same devices in total give the same bits however many processes and cores they have:

    - PJRT_NPROC, the size of XLA's thread pool: sums and products are cut into as many parts as
      there are threads, which otherwise are the cores or the devices of the process, whichever are
      more. Measured: bits of 4 devices differ after five steps between pools of 4 and 8 threads,
      even without parallel tasks and threads in Eigen; with a fixed size in nothing.
    - Thunks in order: devices that share cores may begin two collectives in different orders, and
      then wait for one another for ever (seen with a split optimizer).

    What the user has set in the environment wins; all processes must have set the same.

    Args:
        count: devices of each process. None: one if there is no accelerator, and since there may be
            one, no fewer threads than without this.
        processes: of the job.
    """
    total = (count or 1) * processes
    threads = max(_CPU_THREADS, total, 0 if count else os.cpu_count() or 1)
    os.environ.setdefault("PJRT_NPROC", str(threads))
    if total > 1:
        flags = (_CPU_IN_ORDER, os.environ.get("XLA_FLAGS", ""))  # of two the last counts
        os.environ["XLA_FLAGS"] = " ".join(filter(None, flags))
    if count:
        jax.config.update("jax_num_cpu_devices", count)


def keep_memory() -> None:
    """Lets this process keep the memory that it frees, where the C library is glibc.

    XLA for CPUs takes the temporaries of a program anew at every execution. By default glibc maps
    that much memory from the kernel and gives it back, and the kernel zeroes each page at its first
    use: a fifth of the processor's time in a step of a small model.
    """
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h
    with contextlib.suppress(OSError, AttributeError, TypeError):  # no such function here
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, -1)
