"""Accelerator specifications by JAX device kind.

Numbers are per JAX device, which is a chip except on TPU v2, v3 and TPU7x: there a device is one of
the chip's two cores, so the chip's published figures are halved.
"""

from dataclasses import dataclass
from typing import Any

_TFLOPS = 10**12
_GB = 10**9
GBIT = 10**9 / 8
_GIB = 2**30


@dataclass(frozen=True)
class Accelerator:
    """Specifications of one JAX device; None where unknown or not applicable.

    device_kinds: the values of `jax.Device.device_kind` that name it.
    bf16_flops: dense bfloat16 FLOP/s of its matrix units, the peak that MFU is relative to.
    memory_bytes: HBM capacity.
    usable_bytes: HBM that the TPU compiler makes available to a program, less the runtime's share.
    memory_bandwidth: HBM bandwidth in bytes/s.
    ici_bandwidth: bytes/s over all ICI links to other chips of a slice, or NVLink or PCIe links to
        other GPUs of a host, both directions added up.
    dcn_bandwidth: bytes/s to other slices or hosts over the data center network.
    clock: cycles/s, in which the TPU compiler gives its estimates.
    flops_per_cycle, bytes_per_cycle: throughput that the TPU compiler assumes for an operation that
        is only compute-bound (a bfloat16 product of 4096 x 4096 matrices) or only memory-bound
        (reading and writing 256 MiB each).
    fusion_kib: KiB of on-chip memory that the TPU compiler may use for one operation; set if a
        value other than its default was found to be better.
    """

    device_kinds: tuple[str, ...]
    bf16_flops: float
    memory_bytes: int
    usable_bytes: int | None = None
    memory_bandwidth: float | None = None
    ici_bandwidth: float | None = None
    dcn_bandwidth: float | None = None
    clock: float | None = None
    flops_per_cycle: float | None = None
    bytes_per_cycle: float | None = None
    fusion_kib: int | None = None


# Cloud TPU documentation, the page of each version, "Peak compute per chip (bf16)" and HBM
# capacity and bandwidth. Device kinds: jax/_src/pallas/mosaic/tpu_info.py of JAX 0.10, which is
# also the source of the TPU v2 peak (46 TFLOP/s per chip; so does Jouppi et al., "A
# Domain-Specific Supercomputer for Training Deep Neural Networks", CACM 63(7), 2020) and of its
# bandwidth. JAX's numbers in bytes show that the pages' "16 GB" and "32 GB" of v5e and v6e are
# GiB.
#
# ICI: "Bidirectional inter-chip interconnect (ICI) bandwidth per chip" of the pages; those of
# v3 and v4 give only the all-reduce bandwidth of a pod (340 TB/s over 1,024 chips, 1.1 PB/s
# over 4,096). The page of v5e has both, and the first is twice the second per chip.
# DCN: the pages' "Data center network (DCN) bandwidth per chip"; v5e: 6.4 Tbit/s per pod.
#
# Usable memory: "exceeds available HBM (15.75G)" in libtpu 0.0.42's error for a program that is
# too large. Per cycle: the same compiler's estimates for one such operation alone. Clock: the
# peak over the multiplications and additions of the matrix units per cycle, a power of two (v5e
# 131,072; v3 half of that per core; TPU7x 524,288); published for v2, v3 (CACM
# 63(7)) and v4 (Jouppi et al., "TPU v4", ISCA 2023) with the same result.
#
# The first number is the devices of a chip, one also where they share its cores ("megacore"); the
# figures up to GHz are a chip's, but for usable memory and clock. That of v5p is more than its page
# has. fusion_kib of v5e is out of 128 MiB, twice the default: by the compiler's estimate BERT-large
# at length 512 takes 115.0 instead of 128.7 million cycles per step, with the same memory.
_TPUS: tuple[tuple[Any, ...], ...] = (
    # kinds, devices, TFLOP/s, GiB, usable GiB, GB/s, ICI B/s, DCN Gbit/s, GHz, FLOPs and bytes
    (("TPU v2",), 2, 46, 16, 7.48, 716, None, None, 0.70, 32_024, 446),
    (("TPU v3",), 2, 123, 32, 15.48, 900, 2 * 340e12 / 1024, None, 0.94, 62_431, 448),
    (("TPU v4",), 1, 275, 32, 30.75, 1200, 2 * 1.1e15 / 4096, None, 1.05, 230_384, 897),
    (("TPU v5 lite", "TPU v5e"), 1, 197, 16, 15.75, 819, 400e9, 25, 1.5, 126_898, 443, 32_768),
    (("TPU v5", "TPU v5p"), 1, 459, 95, 95.74, 2765, 1200e9, 50, 1.75, 252_216, 1141),
    (("TPU v6 lite", "TPU v6e"), 1, 918, 32, 31.25, 1638, 800e9, 100, 1.75, 455_675, 757),
    (("TPU7x",), 2, 2307, 192, 94.75, 7380, 1200e9, 100, 2.2, 434_504, 1265),
)
# NVIDIA GPUs: dense bfloat16 TFLOP/s, GB and GB/s of memory, GB/s of the links to other GPUs of its
# host (NVLink, else PCIe: gen 4 x16 is 64 GB/s, gen 5 x16 128 GB/s; both directions added up), and
# Gbit/s to other hosts. The data sheet of each GPU but for:
# - The sheets of H100 (1,979 and 1,513), H200 (1,979), B200 (4,500 in the
#   Blackwell technical brief), GB200 NVL72 (360 PFLOP/s, 576 TB/s, 13.4 TB in 72 GPUs) and L4 (242)
#   count 2:4 sparsity, which doubles the dense rate. DGX B200: 64 TB/s, 1,440 GB in 8 GPUs.
# - RTX A6000 and RTX 4090: with float32 accumulation, as XLA asks for; white papers of GA102 and
#   Ada, appendix A. Their NVLink bridges join pairs only (A6000) or do not exist.
# - Network: adapters of DGX A100 (8 x 200), DGX H100, H200 and B200 (8 x 400) and of a GB200 NVL72
#   tray (4 x 400). Unknown where no such host is sold; of A10G and L4 it depends on the host
#   (`gpus.MODELS`).
_GPUS: tuple[tuple[Any, ...], ...] = (
    (("NVIDIA A100-SXM4-40GB",), 312, 40, 1555, 600, 200),
    (("NVIDIA A100-PCIE-40GB",), 312, 40, 1555, 64, None),
    (("NVIDIA A100-SXM4-80GB",), 312, 80, 2039, 600, 200),
    (("NVIDIA A100 80GB PCIe",), 312, 80, 1935, 64, None),
    (("NVIDIA H100 80GB HBM3",), 1979 / 2, 80, 3350, 900, 400),
    (("NVIDIA H100 PCIe",), 1513 / 2, 80, 2000, 128, None),
    (("NVIDIA H200",), 1979 / 2, 141, 4800, 900, 400),
    (("NVIDIA B200",), 4500 / 2, 180, 8000, 1800, 400),
    (("NVIDIA GB200",), 360_000 / 72 / 2, 186, 8000, 1800, 400),
    (("NVIDIA L40S",), 362.05, 48, 864, 64, None),
    (("NVIDIA L4",), 242 / 2, 24, 300, 64, None),
    (("NVIDIA A10G",), 70, 24, 600, 64, None),
    (("NVIDIA GeForce RTX 4090",), 165.2, 24, 1008, 64, None),
    (("NVIDIA RTX A6000",), 154.8, 48, 768, 64, None),
)
ACCELERATORS = (
    *(
        Accelerator(
            kinds,
            tflops / n * _TFLOPS,
            gib * _GIB // n,
            round(usable * _GIB),
            memory / n * _GB,
            ici and ici / n,
            dcn and dcn / n * GBIT,
            ghz * 1e9,
            *of_compiler,
        )
        for kinds, n, tflops, gib, usable, memory, ici, dcn, ghz, *of_compiler in _TPUS
    ),
    *(
        Accelerator(
            kinds,
            tflops * _TFLOPS,
            gb * _GB,
            memory_bandwidth=memory * _GB,
            ici_bandwidth=links * _GB,
            dcn_bandwidth=network and network * GBIT,
        )
        for kinds, tflops, gb, memory, links, network in _GPUS
    ),
)

BY_DEVICE_KIND = {kind: row for row in ACCELERATORS for kind in row.device_kinds}


def peak_flops(device_kind: str, dtype: object) -> float | None:
    """Returns the peak matmul FLOP/s of one JAX device of this kind, None if unknown.

    dtype: a name, a NumPy dtype or a scalar type. Only bfloat16 is supported: float32 products run
    in several precisions (one or more bfloat16 passes, TF32), so they have no single peak.
    """
    row = BY_DEVICE_KIND.get(device_kind)
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype)
    return row.bf16_flops if row is not None and name == "bfloat16" else None
