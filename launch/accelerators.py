"""What an accelerator can do at best, by the name JAX gives its kind.

Numbers are per JAX device, which is a chip except on TPU v2, v3 and TPU7x: there a device is one of
the chip's two cores, so the chip's published figures are halved.
"""

from dataclasses import dataclass

_TFLOPS = 10**12
_GB = 10**9
_GIB = 2**30


@dataclass(frozen=True)
class Accelerator:
    """Peaks of one JAX device.

    device_kinds: the values of `jax.Device.device_kind` that name it.
    bf16_flops: dense bfloat16 FLOP/s of its matrix units, the peak that utilization divides by.
    memory_bytes: capacity of its high-bandwidth memory.
    """

    device_kinds: tuple[str, ...]
    bf16_flops: float
    memory_bytes: int


ACCELERATORS = (
    # Cloud TPU documentation, the page of each version, "Peak compute per chip (bf16)" and HBM
    # capacity. Device kinds: jax/_src/pallas/mosaic/tpu_info.py of JAX 0.10, which is also the
    # source of the TPU v2 peak (46 TFLOP/s per chip; so does Jouppi et al., "A Domain-Specific
    # Supercomputer for Training Deep Neural Networks", CACM 63(7), 2020). JAX's numbers in bytes
    # show that the pages' "16 GB" and "32 GB" of v5e and v6e are GiB.
    Accelerator(("TPU v2",), 46 / 2 * _TFLOPS, 16 * _GIB // 2),
    Accelerator(("TPU v3",), 123 / 2 * _TFLOPS, 32 * _GIB // 2),
    Accelerator(("TPU v4",), 275 * _TFLOPS, 32 * _GIB),  # one device a chip ("megacore")
    Accelerator(("TPU v5 lite", "TPU v5e"), 197 * _TFLOPS, 16 * _GIB),
    Accelerator(("TPU v5", "TPU v5p"), 459 * _TFLOPS, 95 * _GIB),
    Accelerator(("TPU v6 lite", "TPU v6e"), 918 * _TFLOPS, 32 * _GIB),
    Accelerator(("TPU7x",), 2307 / 2 * _TFLOPS, 192 * _GIB // 2),
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
