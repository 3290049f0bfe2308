"""Hardware that a step is compiled for without having it: TPU slices or hosts with GPUs."""

from bert_jax.errors import nearest_name
from bert_jax.hardware import gpus, slices
from bert_jax.hardware.gpus import GpuHosts
from bert_jax.hardware.slices import Slice

Target = Slice | GpuHosts


def find(name: str) -> Target:
    """Returns the hardware of a name: v5e-16, 2xv5e-256, h100-8, 4xa100-80g-8.

    Raises:
        ValueError: there is none; says the nearest.
    """
    name = " ".join(name.split())  # a message is one line
    if gpus.known(name):
        return gpus.find(name)
    plain = name.strip().lower().rpartition("x")[2] if name[:1].isdigit() else name.strip().lower()
    kind = plain.rpartition("-")[0] or plain
    near = nearest_name(kind, [*gpus.MODELS, *gpus.ALIASES, *slices.GENERATIONS, *slices.ALIASES])
    if near in gpus.MODELS or near in gpus.ALIASES:
        return gpus.find(name)
    try:
        return slices.find(name)
    except ValueError:
        if near or plain[:1] == "v":
            raise
        raise ValueError(
            f'"{name}" is not hardware that is known here; TPU slices are '
            f"{', '.join(slices.GENERATIONS)}, as in v5e-16; GPUs are {', '.join(gpus.MODELS)}, as "
            "in h100-8"
        ) from None
