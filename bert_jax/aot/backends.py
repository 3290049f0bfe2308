"""The kinds of hardware that `bert-jax compile` takes: TPU slices and hosts with GPUs."""

from typing import Any

from bert_jax.aot.backend import Backend
from bert_jax.aot.gpu_backend import GpuBackend
from bert_jax.aot.tpu_backend import TpuBackend
from bert_jax.hardware.gpus import GpuHosts
from bert_jax.hardware.slices import Slice
from bert_jax.hardware.targets import Target

BACKENDS: dict[type, Backend[Any]] = {Slice: TpuBackend(), GpuHosts: GpuBackend()}


def of(target: Target) -> Backend[Any]:
    """Returns the backend of a target."""
    return BACKENDS[type(target)]
