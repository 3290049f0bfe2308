"""Which form of attention a mesh's devices run, and running it on each of them."""

import dataclasses

import jax
from jax.sharding import Mesh

from bert_jax.config.schema import ComputeConfig, Config
from bert_jax.errors import UserError
from bert_jax.ops.attention import cudnn, pallas, xla
from bert_jax.parallel.partition import spec

# Rows from which the TPU kernel is worth it. In the compiler's schedules for v5e attention takes
# about as long in either form at 128 and 256 tokens, where the scores stay on the chip in XLA's
# form too; at 512 they do not, and XLA's form takes three times as long.
_LONG = 512


def _has_cudnn(device: jax.Device) -> bool:
    """NVIDIA's, since Ampere; AMD's capabilities are no numbers."""
    try:
        return device.platform == "gpu" and float(device.compute_capability) >= 8
    except ValueError:
        return False


_KERNELS = {"pallas": pallas.attend, "cudnn": cudnn.attend}
_SUITS = {"pallas": pallas.supports, "cudnn": cudnn.supports}
_RUNS = {"pallas": lambda device: device.platform == "tpu", "cudnn": _has_cudnn}
_DEVICES = {"pallas": "TPUs", "cudnn": "NVIDIA GPUs (Ampere or later)"}
_SHAPES = {
    "pallas": f"rows of a multiple of {pallas.LANES} tokens, at most "
    f"{pallas.LONGEST}, and heads of a multiple of 8",
    "cudnn": "rows of an even number of tokens and heads of a multiple of 8, at most 128",
}


def resolve(config: Config, mesh: Mesh) -> ComputeConfig:
    """How to compute on a mesh: with a form of attention that its devices run.

    The mesh decides, not the default backend: that is the CPU while one compiles for a TPU.
    "auto" stays on TPUs, where `attend` chooses by the length of a row: phases differ in it.

    Raises:
        UserError: the form asked for does not run on these devices, or not with these phases.
    """
    compute, form = config.compute, config.compute.attention
    if form == "xla":
        return compute
    device = mesh.devices.flat[0]
    if form == "auto":
        if device.platform != "tpu":
            form = "xla" if _refusal("cudnn", config, device) else "cudnn"
    elif refusal := _refusal(form, config, device):
        raise UserError(f'config.compute.attention="{form}" {refusal}; set it to "auto"')
    return dataclasses.replace(compute, attention=form)


def _refusal(form: str, config: Config, device: jax.Device) -> str | None:
    """What a kernel lacks for a configuration, None where it can compute it."""
    if not _RUNS[form](device):
        return f"runs on {_DEVICES[form]}, not on {device.device_kind}"
    if form == "cudnn" and config.compute.dtype != "bfloat16":
        return f'computes in bfloat16, not in config.compute.dtype="{config.compute.dtype}"'
    for i, phase in enumerate(config.phases):
        if not _SUITS[form](phase.row_tokens, config.model.head_dim):
            return (
                f"wants {_SHAPES[form]}; config.phases[{i}] has rows of {phase.row_tokens} and "
                f"the model heads of {config.model.head_dim}"
            )
    return None


def attend(
    form: str,
    q_BxSxAxD: jax.Array,
    k_BxSxAxD: jax.Array,
    v_BxSxAxD: jax.Array,
    examples_BxS: jax.Array,
    *,
    rate: float,
    key: jax.Array | None,
) -> jax.Array:
    """Attention in a form that `resolve` gave; where probabilities are dropped always XLA's.

    Other arguments and the result are those of `attention_xla.attend`.
    """
    S, D = q_BxSxAxD.shape[1], q_BxSxAxD.shape[3]
    if form == "auto":
        form = "pallas" if S >= _LONG and pallas.supports(S, D) else "xla"
    arrays = (q_BxSxAxD, k_BxSxAxD, v_BxSxAxD, examples_BxS)
    if form == "xla" or (key is not None and rate > 0):
        return xla.attend(*arrays, rate=rate, key=key)
    kernel = _KERNELS[form]
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes:  # nothing to split, or written for one device
        return kernel(*arrays)
    # No partitioner looks into a kernel: each device runs it over its own rows and heads.
    each, rows = spec("batch", "position", "heads", "head_dim"), spec("batch", "position")
    sharded = jax.shard_map(
        kernel, in_specs=(each, each, each, rows), out_specs=each, check_vma=False
    )
    return sharded(*arrays)
