import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.hardware.accelerators import ACCELERATORS, BY_DEVICE_KIND, Accelerator, peak_flops


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


TPUS = [row for row in ACCELERATORS if row.device_kinds[0].startswith("TPU")]


@pytest.mark.parametrize("tpu", TPUS, ids=lambda row: row.device_kinds[0])
def test_what_the_compiler_says_of_a_tpu_is_within_what_it_can(tpu: Accelerator) -> None:
    """Published and estimated figures of a device are consistent."""
    assert tpu.clock
    assert tpu.flops_per_cycle
    assert tpu.bytes_per_cycle
    assert tpu.memory_bandwidth
    assert tpu.usable_bytes
    assert 0.8 < tpu.flops_per_cycle * tpu.clock / tpu.bf16_flops < 1
    assert 0.7 < tpu.bytes_per_cycle * tpu.clock / tpu.memory_bandwidth < 1
    assert 0.9 < tpu.usable_bytes / tpu.memory_bytes < 1.01
    for links in (tpu.ici_bandwidth, tpu.dcn_bandwidth):
        assert links is None or links < tpu.memory_bandwidth
