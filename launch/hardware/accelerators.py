"""What an accelerator can do, by the name JAX gives its kind.

Numbers are per JAX device, which is a chip except on TPU v2, v3 and TPU7x: there a device is one of
the chip's two cores, so the chip's published figures are halved.
"""

from dataclasses import dataclass

_TFLOPS = 10**12
_GB = 10**9
_GBIT = 10**9 / 8
_GIB = 2**30


@dataclass(frozen=True)
class Accelerator:
    """What one JAX device has and does; None where it is not known, or not meant for this kind.

    device_kinds: the values of `jax.Device.device_kind` that name it.
    bf16_flops: dense bfloat16 FLOP/s of its matrix units, the peak that utilization divides by.
    memory_bytes: capacity of its high-bandwidth memory.
    usable_bytes: what the TPU compiler gives a program of it, its runtime's share taken off.
    memory_bandwidth: bytes/s of that memory.
    ici_bandwidth: bytes/s over all its links to other chips of a slice, in both directions at once.
    dcn_bandwidth: bytes/s to other slices, over the network of the data center.
    clock: cycles/s, of those in which the TPU compiler estimates.
    flops_per_cycle, bytes_per_cycle: what the TPU compiler takes a cycle to be worth where one
        bound alone holds: of a bfloat16 product of 4096 x 4096 matrices, and of reading and writing
        256 MiB each.
    fusion_kib: KiB of on-chip memory that the TPU compiler may give to what one operation works
        on, where another value than its own was found to be better.
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


def _gib(amount: float) -> int:
    return round(amount * _GIB)


ACCELERATORS = (
    # Cloud TPU documentation, the page of each version, "Peak compute per chip (bf16)" and HBM
    # capacity and bandwidth. Device kinds: jax/_src/pallas/mosaic/tpu_info.py of JAX 0.10, which is
    # also the source of the TPU v2 peak (46 TFLOP/s per chip; so does Jouppi et al., "A
    # Domain-Specific Supercomputer for Training Deep Neural Networks", CACM 63(7), 2020) and of its
    # bandwidth. JAX's numbers in bytes show that the pages' "16 GB" and "32 GB" of v5e and v6e are
    # GiB.
    #
    # Links: "Bidirectional inter-chip interconnect (ICI) bandwidth per chip" of the pages; those of
    # v3 and v4 give only the all-reduce bandwidth of a pod (340 TB/s over 1,024 chips, 1.1 PB/s
    # over 4,096). Of v5e the page has both, and there the first is twice the second per chip.
    # Network: the pages' "Data center network (DCN) bandwidth per chip"; of v5e 6.4 Tbit/s a pod.
    #
    # Usable memory: "exceeds available HBM (15.75G)", as libtpu 0.0.42 refuses a program that is
    # too large. Per cycle: the estimates of the same compiler for one such operation alone. Clock:
    # the peak over the multiplications and additions that the matrix units do in a cycle, a power
    # of two (v5e 131,072; v3 half of that for a core; TPU7x 524,288); published for v2, v3 (CACM
    # 63(7)) and v4 (Jouppi et al., "TPU v4", ISCA 2023) with the same result.
    Accelerator(
        ("TPU v2",),
        46 / 2 * _TFLOPS,
        16 * _GIB // 2,
        usable_bytes=_gib(7.48),
        memory_bandwidth=716 / 2 * _GB,
        clock=0.70e9,
        flops_per_cycle=32_024,
        bytes_per_cycle=446,
    ),
    Accelerator(
        ("TPU v3",),
        123 / 2 * _TFLOPS,
        32 * _GIB // 2,
        usable_bytes=_gib(15.48),
        memory_bandwidth=900 / 2 * _GB,
        ici_bandwidth=2 * 340e12 / 1024 / 2,
        clock=0.94e9,
        flops_per_cycle=62_431,
        bytes_per_cycle=448,
    ),
    Accelerator(
        ("TPU v4",),  # one device a chip ("megacore")
        275 * _TFLOPS,
        32 * _GIB,
        usable_bytes=_gib(30.75),
        memory_bandwidth=1200 * _GB,
        ici_bandwidth=2 * 1.1e15 / 4096,
        clock=1.05e9,
        flops_per_cycle=230_384,
        bytes_per_cycle=897,
    ),
    Accelerator(
        ("TPU v5 lite", "TPU v5e"),
        197 * _TFLOPS,
        16 * _GIB,
        usable_bytes=_gib(15.75),
        memory_bandwidth=819 * _GB,
        ici_bandwidth=400 * _GB,
        dcn_bandwidth=6400 / 256 * _GBIT,
        clock=1.5e9,
        flops_per_cycle=126_898,
        bytes_per_cycle=443,
        # Of 128 MiB; twice the default. By the compiler's estimate BERT-large at 512 goes from
        # 128.7 to 115.0 million cycles a step, with as much memory.
        fusion_kib=32_768,
    ),
    Accelerator(
        ("TPU v5", "TPU v5p"),
        459 * _TFLOPS,
        95 * _GIB,
        usable_bytes=_gib(95.74),  # more than the page's 95
        memory_bandwidth=2765 * _GB,
        ici_bandwidth=1200 * _GB,
        dcn_bandwidth=50 * _GBIT,
        clock=1.75e9,
        flops_per_cycle=252_216,
        bytes_per_cycle=1141,
    ),
    Accelerator(
        ("TPU v6 lite", "TPU v6e"),
        918 * _TFLOPS,
        32 * _GIB,
        usable_bytes=_gib(31.25),
        memory_bandwidth=1638 * _GB,
        ici_bandwidth=800 * _GB,
        dcn_bandwidth=100 * _GBIT,
        clock=1.75e9,
        flops_per_cycle=455_675,
        bytes_per_cycle=757,
    ),
    Accelerator(
        ("TPU7x",),
        2307 / 2 * _TFLOPS,
        192 * _GIB // 2,
        usable_bytes=_gib(94.75),
        memory_bandwidth=7380 / 2 * _GB,
        ici_bandwidth=1200 / 2 * _GB,
        dcn_bandwidth=100 / 2 * _GBIT,
        clock=2.2e9,
        flops_per_cycle=434_504,
        bytes_per_cycle=1265,
    ),
    # NVIDIA A100 Tensor Core GPU data sheet: 312 dense.
    Accelerator(("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"), 312 * _TFLOPS, 40 * _GB),
    Accelerator(("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"), 312 * _TFLOPS, 80 * _GB),
    # NVIDIA H100 Tensor Core GPU data sheet: 1,979 (SXM) and 1,513 (PCIe) with 2:4 sparsity, which
    # doubles the dense rate.
    Accelerator(("NVIDIA H100 80GB HBM3",), 1979 / 2 * _TFLOPS, 80 * _GB),
    Accelerator(("NVIDIA H100 PCIe",), 1513 / 2 * _TFLOPS, 80 * _GB),
    # NVIDIA H200 Tensor Core GPU data sheet (SXM): 1,979 with sparsity, 141 GB.
    Accelerator(("NVIDIA H200",), 1979 / 2 * _TFLOPS, 141 * _GB),
    # NVIDIA Blackwell architecture technical brief, HGX B200: 4,500 with sparsity; DGX B200 data
    # sheet: 1,440 GB in eight GPUs.
    Accelerator(("NVIDIA B200",), 4500 / 2 * _TFLOPS, 180 * _GB),
    # NVIDIA L40S data sheet: 362.05 dense, 48 GB of GDDR6.
    Accelerator(("NVIDIA L40S",), 362.05 * _TFLOPS, 48 * _GB),
    # NVIDIA L4 data sheet: 242 with sparsity, 24 GB of GDDR6.
    Accelerator(("NVIDIA L4",), 242 / 2 * _TFLOPS, 24 * _GB),
)

BY_DEVICE_KIND = {kind: row for row in ACCELERATORS for kind in row.device_kinds}


def peak_flops(device_kind: str, dtype: object) -> float | None:
    """Peak FLOP/s of one JAX device of this kind at matrix products of `dtype`, None where unknown.

    dtype: a name, a NumPy dtype or a scalar type. Only bfloat16 has a row: float32 products run in
    several precisions (one or more bfloat16 passes, TF32), so that no one peak belongs to them.
    """
    row = BY_DEVICE_KIND.get(device_kind)
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype)
    return row.bf16_flops if row is not None and name == "bfloat16" else None
