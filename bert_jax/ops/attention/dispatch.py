"""Selects the attention kernel for a mesh's devices and runs it on each of them."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.config.model_settings import generator_of
from bert_jax.config.schema import ComputeConfig, Config, ModelConfig, PhaseConfig
from bert_jax.errors import UserError
from bert_jax.ops.attention import cudnn, local, pallas, splash, xla
from bert_jax.parallel.mesh import axis_size
from bert_jax.parallel.partition import AXES, spec

_SQUARE = 1024  # longest row whose scores without a kernel are not worth a line of the log
# Row length from which the TPU kernel is used. In the compiler's schedules for v5e both kernels
# take about as long at 128 and 256 tokens, where the scores stay on the chip with XLA too; at 512
# they do not, and XLA takes three times as long.
_LONG = 512


def _has_cudnn(device: jax.Device) -> bool:
    """True for NVIDIA GPUs since Ampere; the compute capability of AMD GPUs is not a number."""
    try:
        return device.platform == "gpu" and float(device.compute_capability) >= 8
    except ValueError:
        return False


def _cudnn_missing() -> str | None:
    """Returns why JAX refuses cuDNN, None if it does not: it asks when it traces the kernel, also
    where it was told to use one that it did not load (jax-ml/jax#32430)."""
    try:
        cudnn.version()
    except Exception as error:  # RuntimeError, or any of the library's
        return f"JAX does not find cuDNN ({' '.join(str(error).split())[:120]})"
    return None


def _is_tpu(device: jax.Device) -> bool:
    return device.platform == "tpu"


_KERNELS = {"pallas": pallas.attend, "splash": splash.attend, "cudnn": cudnn.attend}
_SUPPORTS = {"pallas": pallas.supports, "splash": splash.supports, "cudnn": cudnn.supports}
_RUNS = {"pallas": _is_tpu, "splash": _is_tpu, "cudnn": _has_cudnn}
_DEVICES = {"pallas": "TPUs", "splash": "TPUs", "cudnn": "NVIDIA GPUs (Ampere or later)"}
_SHAPES = {
    "pallas": f"a row length that is a multiple of {pallas.LANES}, at most "
    f"{pallas.LONGEST}, and a head dimension that is a multiple of 8",
    "splash": f"a row length that is a multiple of {splash.LANES} and a head dimension that is a "
    "multiple of 8",
    "cudnn": "an even row length and a head dimension that is a multiple of 8, at most 128",
}


def resolve(config: Config, mesh: Mesh, model: ModelConfig | None = None) -> ComputeConfig:
    """Returns the compute configuration with an attention kernel that the mesh's devices support.

    The mesh decides, not the default backend, which is the CPU when compiling for a TPU. "auto"
    stays "auto" on TPUs, where `attend` chooses by row length, which differs between phases.

    model: that is computed, such as a teacher; by default the config's.

    Raises:
        UserError: the requested kernel does not support these devices or phases.
    """
    compute, kernel = config.compute, config.compute.attention
    if kernel == "xla":
        return compute
    device = mesh.devices.flat[0]
    if kernel == "auto":
        if device.platform != "tpu":
            kernel = "xla" if _unsupported("cudnn", config, device, model) else "cudnn"
    elif reason := _unsupported(kernel, config, device, model):
        raise UserError(f'config.compute.attention="{kernel}" {reason}; set it to "auto"')
    return dataclasses.replace(compute, attention=kernel)


def gpu_note(config: Config, phase: PhaseConfig, mesh: Mesh) -> str:
    """Returns a line on the attention of a phase's training step on GPUs and why it is taken; ""
    for other devices.

    Where XLA computes it, the line has the bytes of the probabilities that one device saves for the
    backward pass (see `saved_probabilities`), which cuDNN's kernel does not save.

    phase: with the rows of its batches.
    """
    device = mesh.devices.flat[0]
    if device.platform != "gpu":
        return ""
    rate = config.model.attention_probs_dropout_prob
    wanted = config.compute.attention
    reason = _unsupported("cudnn", config, device)
    if reason is None and wanted != "xla" and not rate:
        more = _with_windows(config) + _with_mask(phase.row_tokens) + _with_decoder(config)
        return f"attention: cuDNN {cudnn.version()}, flash attention{more}"
    if wanted == "xla":
        why = 'config.compute.attention="xla"'
    elif reason is not None:
        why = f"cuDNN's attention {reason}"
    else:
        why = f"cuDNN {cudnn.version()} (for evaluation) drops no probabilities ({rate:g} here)"
    taken = saved_probabilities(config, phase, mesh) / 2**20
    return (
        f"attention: XLA, because {why}; the probabilities take at least {taken:,.0f} MiB a GPU; "
        "scores, masks and their copies take more"
    )


def _networks(config: Config) -> dict[str, ModelConfig]:
    """Returns the models that a step trains, by their names in messages."""
    both = {"generator": generator_of(config.model)} if config.data.replaced_tokens else {}
    return {"model": config.model, **both}


def _with_windows(config: Config) -> str:
    """Returns in words which layers take no kernel; "" if all do."""
    models = _networks(config).values()
    layers = [model.is_local(layer) for model in models for layer in range(model.num_hidden_layers)]
    of = f"{sum(layers)} of {len(layers)} layers, with windows of"
    return f"; XLA in {of} {config.model.local_attention} tokens" if any(layers) else ""


def _with_mask(length: int) -> str:
    """Returns in words the mask that cuDNN takes of a long row, see `cudnn.attend`."""
    return f"; a mask takes {2 * length**2 / 2**20:,.0f} MiB a row" if length > _SQUARE else ""


def _with_decoder(config: Config) -> str:
    """Returns in words that a decoder's attention, which is causal, takes no kernel; "" without."""
    return "; XLA in the decoder" if _has_decoder(config) else ""


def _has_decoder(config: Config) -> bool:
    return config.task.name == "denoising"


def saved_probabilities(config: Config, phase: PhaseConfig, mesh: Mesh) -> int:
    """Returns the bytes of attention probabilities that XLA saves for a device's backward pass: of
    every head and pair of tokens, in the compute dtype, of all layers without a window and all of a
    decoder, of one layer with rematerialization.

    phase: with the rows of its batches.
    """
    rows = phase.batch_size / phase.micro_batches / axis_size(mesh, AXES["batch"])
    heads = [
        model.num_attention_heads
        for model in _networks(config).values()
        for layer in range(model.num_hidden_layers)
        if not model.is_local(layer)
    ]
    if _has_decoder(config):
        heads += [config.model.num_attention_heads] * config.model.num_hidden_layers
    saved = sum(heads) if config.compute.remat == "none" else max(heads, default=0)
    size = jnp.dtype(config.compute.dtype).itemsize
    return round(rows * saved / mesh.shape["tensor"] * phase.row_tokens**2 * size)


def memory_note(config: Config, mesh: Mesh) -> str:
    """Returns a line on attention to all tokens of long rows without a kernel; "" if there is
    none."""
    longest = max(phase.row_tokens for phase in config.phases)
    kernel: str = resolve(config, mesh).attention
    drops = config.model.attention_probs_dropout_prob > 0
    if kernel == "auto":
        kernel = _fastest_on_tpu(longest, config.model.head_dim)
    if longest <= _SQUARE or (kernel != "xla" and not drops):
        return ""
    why = "with dropout" if drops else f"on {mesh.devices.flat[0].device_kind}"
    return (
        f"no kernel attends to all of {longest:,} tokens {why}: the memory of layers without a "
        "window grows with the square of the row length"
    )


def _unsupported(
    kernel: str, config: Config, device: jax.Device, model: ModelConfig | None = None
) -> str | None:
    """Returns why a kernel does not support a configuration, or None if it does; model: as in
    `resolve`."""
    if not _RUNS[kernel](device):
        return f"runs on {_DEVICES[kernel]}, not on {device.device_kind}"
    if kernel == "cudnn" and (missing := _cudnn_missing()):
        return f"cannot run: {missing}"
    if kernel == "cudnn" and config.compute.dtype != "bfloat16":
        return f'computes in bfloat16, not in config.compute.dtype="{config.compute.dtype}"'
    models = {"model": model} if model else _networks(config)
    for i, phase in enumerate(config.phases):
        lengths = dict.fromkeys((phase.row_tokens, phase.seq_length))  # the latter in evaluation
        for length, (name, one) in itertools.product(lengths, models.items()):
            if not _SUPPORTS[kernel](length, one.head_dim):
                when = "" if length == phase.row_tokens else " in evaluation"
                return (
                    f"needs {_SHAPES[kernel]}; config.phases[{i}] has rows of {length} "
                    f"tokens{when} and the {name} has heads of {one.head_dim}"
                )
    return None


def _fastest_on_tpu(length: int, head_dim: int) -> str:
    if length < _LONG:
        return "xla"
    kernels = ("pallas", "splash")
    return next((name for name in kernels if _SUPPORTS[name](length, head_dim)), "xla")


def attend(
    name: str,
    q_BxSxAxD: jax.Array,
    k_BxSxAxD: jax.Array,
    v_BxSxAxD: jax.Array,
    examples_BxS: jax.Array,
    *,
    window: int = 0,
    causal: bool = False,
    rate: float,
    key: jax.Array | None,
) -> jax.Array:
    """Returns attention by the kernel that `resolve` chose; within a window, causal, with dropout,
    or where a position reads another example than its own, always by XLA.

    The other arguments and the result are the same as in `xla.attend`; window: see `local.attend`,
    0 for attention to all; causal: to no position after its own.
    """
    S, D = q_BxSxAxD.shape[1], q_BxSxAxD.shape[3]
    if name == "auto":
        name = _fastest_on_tpu(S, D)
    arrays = (q_BxSxAxD, k_BxSxAxD, v_BxSxAxD, examples_BxS)
    if causal:
        half = (window // 2 or S) / 2
        return xla.attend(*arrays, rate=rate, key=key, band=xla.Band(half, offset=-half))
    if window:
        return local.attend(*arrays, window=window, rate=rate, key=key)
    if name == "xla" or (key is not None and rate > 0) or examples_BxS.ndim == 3:
        return xla.attend(*arrays, rate=rate, key=key)
    kernel = _KERNELS[name]
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes:  # nothing to shard, or already per-device code
        return kernel(*arrays)
    # The partitioner cannot split a kernel: each device runs it over its own rows and heads.
    each, rows = spec("batch", "position", "heads", "head_dim"), spec("batch", "position")
    sharded = jax.shard_map(
        kernel, in_specs=(each, each, each, rows), out_specs=each, check_vma=False
    )
    return sharded(*arrays)
