import jax.numpy as jnp
import numpy as np
import pytest

from launch.accelerators import ACCELERATORS, BY_DEVICE_KIND, peak_flops


@pytest.mark.parametrize(
    ("device_kind", "flops"),
    [
        ("TPU v3", 61.5e12),  # half a chip: a JAX device is a core
        ("TPU v4", 275e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5", 459e12),  # without "lite" it is a v5p
        ("TPU v6 lite", 918e12),
        ("TPU7x", 1153.5e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989.5e12),
        ("NVIDIA H200", 989.5e12),
    ],
)
def test_peak_is_per_jax_device(device_kind: str, flops: float) -> None:
    assert peak_flops(device_kind, "bfloat16") == flops


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.dtype("bfloat16"), "bfloat16"])
def test_dtype_may_be_named_in_any_way(dtype: object) -> None:
    assert peak_flops("TPU v4", dtype) == 275e12


@pytest.mark.parametrize(
    ("device_kind", "dtype"),
    [("cpu", "bfloat16"), ("TPU v4", np.float32), ("TPU v4", "float32"), ("TPU v99", "bfloat16")],
)
def test_an_unknown_peak_is_none(device_kind: str, dtype: object) -> None:
    assert peak_flops(device_kind, dtype) is None


def test_each_kind_names_one_row_with_plausible_numbers() -> None:
    assert len(BY_DEVICE_KIND) == sum(len(row.device_kinds) for row in ACCELERATORS)
    for row in ACCELERATORS:
        assert 10e12 < row.bf16_flops < 10e15
        assert 8e9 <= row.memory_bytes <= 300e9
