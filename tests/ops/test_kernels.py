"""Every form of attention gives what the plain one gives, and each device gets one it can run.

Kernels run here in Pallas' interpreter, on CPU devices; test_kernels_tpu.py compiles them.
"""

import dataclasses
import functools
import re
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import run_config

from bert_jax.config.config_files import load
from bert_jax.config.model_settings import generator_of
from bert_jax.config.schema import Config, MeshConfig
from bert_jax.errors import UserError
from bert_jax.ops.attention import cudnn, dispatch, pallas, splash, xla
from bert_jax.parallel import global_batch, partition
from bert_jax.parallel.mesh import MESH_AXES, make_mesh
from bert_jax.training.batches import held_out_config

interpreted = functools.partial(pallas.attend, interpret=True)


def arrays_of(B: int, S: int, A: int, D: int, *, packed: bool, dtype: str = "float32") -> tuple:
    """(q, k, v, examples, gradient of the result); rows end in padding of different length."""
    rng = np.random.default_rng(S + D)
    q, k, v, dy = (jnp.asarray(rng.normal(size=(B, S, A, D)), dtype) for _ in range(4))
    position, real = np.arange(S), S - 3 * np.arange(1, B + 1)[:, None]
    examples = np.where(position < real, 1 + position * (3 if packed else 1) // real, 0)
    return q, k, v, jnp.asarray(examples, jnp.int32), dy


def both_ways(form: Any, q: Any, k: Any, v: Any, examples: Any, dy: Any) -> list[np.ndarray]:
    """The result and the gradients of q, k and v, in float32."""

    def run(q, k, v, dy):
        y, gradients_of = jax.vjp(lambda q, k, v: form(q, k, v, examples), q, k, v)
        return y, *gradients_of(dy)

    return [np.asarray(x, np.float32) for x in jax.jit(run)(q, k, v, dy)]


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((6, 128, 4, 64), id="two-heads-a-step"),
        pytest.param((2, 256, 3, 16), id="all-heads-in-one-step"),
        pytest.param((1, 640, 1, 128), id="uneven-blocks-of-queries"),
        pytest.param((2, 1024, 2, 64), id="longest", marks=pytest.mark.slow),
        pytest.param((2, 512, 2, 64), id="512", marks=pytest.mark.slow),
        pytest.param((3, 128, 4, 96), id="heads-across-registers", marks=pytest.mark.slow),
    ],
)
def test_the_tpu_kernel_equals_the_plain_form(shape: tuple, packed: bool) -> None:
    arrays = arrays_of(*shape, packed=packed)
    for e, g in zip(both_ways(xla.attend, *arrays), both_ways(interpreted, *arrays), strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_the_kernel_of_long_rows_equals_the_plain_form(packed: bool) -> None:
    """640 positions are five blocks of queries and of keys."""
    arrays = arrays_of(1, 640, 2, 64, packed=packed)
    long = functools.partial(splash.attend, interpret=True)
    for e, g in zip(both_ways(xla.attend, *arrays), both_ways(long, *arrays), strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-5, atol=1e-5)


def test_in_bfloat16_the_tpu_kernel_is_as_near_to_float32_as_the_plain_form() -> None:
    """Errors of both, in the norm, are 0.3 to 0.6 % here."""
    arrays = arrays_of(2, 128, 2, 64, packed=True, dtype="bfloat16")
    exact = both_ways(
        xla.attend,
        *(x.astype(jnp.float32) if x.dtype != jnp.int32 else x for x in arrays),
    )
    for e, p, g in zip(
        exact,
        both_ways(xla.attend, *arrays),
        both_ways(interpreted, *arrays),
        strict=True,
    ):
        plain, kernel = (np.linalg.norm(x - e) / np.linalg.norm(e) for x in (p, g))
        assert kernel < 0.01
        assert kernel < 1.5 * plain


def test_padding_gives_finite_numbers_and_changes_no_others() -> None:
    q, k, v, examples, dy = arrays_of(2, 128, 2, 64, packed=True)
    real = np.asarray(examples > 0)[:, :, None, None]
    dy = jnp.where(real, dy, 0)  # as in training: nothing is predicted from padding
    one = both_ways(interpreted, q, k, v, examples, dy)
    other = both_ways(interpreted, *(jnp.where(real, x, 100.0) for x in (q, k, v)), examples, dy)
    for a, b in zip(one, other, strict=True):
        assert np.isfinite(b).all()
        np.testing.assert_array_equal(np.where(real, a, 0), np.where(real, b, 0))


@pytest.mark.parametrize("axes", [(1, 2, 2, 2), pytest.param((2, 2, 1, 2), marks=pytest.mark.slow)])
def test_every_device_runs_its_own_rows_and_heads(
    axes: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(dispatch._KERNELS, "pallas", interpreted)
    config = MeshConfig(**dict(zip(MESH_AXES, axes, strict=True)))
    mesh = make_mesh(config, jax.devices()[: np.prod(axes)])
    *qkv, examples, dy = arrays_of(8, 128, 4, 32, packed=True)
    each = jax.NamedSharding(mesh, partition.spec("batch", "position", "heads", "head_dim"))
    attend = functools.partial(dispatch.attend, "pallas", rate=0.1, key=None)

    @functools.partial(jax.jit, out_shardings=each)
    def run(q, k, v, examples, dy):
        y, gradients_of = jax.vjp(lambda q, k, v: attend(q, k, v, examples), q, k, v)
        return y, *gradients_of(dy)

    split = [jax.device_put(x, each) for x in (*qkv, dy)]
    with jax.set_mesh(mesh):
        compiled = run.lower(
            *split[:3], jax.device_put(examples, global_batch.batch_sharding(mesh)), split[3]
        ).compile()
        got = compiled(
            *split[:3], jax.device_put(examples, global_batch.batch_sharding(mesh)), split[3]
        )
    assert not re.findall(
        r"all-gather|all-to-all|collective-permute|all-reduce", compiled.as_text()
    )
    for e, g in zip(both_ways(xla.attend, *qkv, examples, dy), got, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-5, atol=1e-5)


CPU = SimpleNamespace(platform="cpu", device_kind="cpu")
TPU = SimpleNamespace(platform="tpu", device_kind="TPU v5 lite")
H200 = SimpleNamespace(platform="gpu", device_kind="NVIDIA H200", compute_capability="9.0")
V100 = SimpleNamespace(platform="gpu", device_kind="Tesla V100-SXM2", compute_capability="7.0")
MI300 = SimpleNamespace(
    platform="gpu", device_kind="AMD Instinct MI300X", compute_capability="gfx942"
)


def config_of(
    attention: str,
    *,
    dtype: str = "bfloat16",
    length: int = 128,
    head_dim: int = 64,
    drop: float = 0.0,
) -> Config:
    config = run_config()
    replace = dataclasses.replace
    return replace(
        config,
        model=replace(
            config.model,
            hidden_size=4 * head_dim,
            num_attention_heads=4,
            max_position_embeddings=2048,
            attention_probs_dropout_prob=drop,
        ),
        phases=(replace(config.phases[0], seq_length=length),),
        compute=replace(config.compute, attention=attention, dtype=dtype),
    )


KEPT = {"model.attention_probs_dropout_prob": 0.0}


@pytest.fixture(autouse=True)
def with_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "version", lambda: "9.12.0")


def refuse() -> str:
    raise RuntimeError("cuDNN is not detected.")


def gpu_note(device: Any, config: Config) -> str:
    sizes = {"slice": 1, "data": 2, "fsdp": 1, "tensor": 1}
    mesh: Any = SimpleNamespace(devices=np.array([[device, device]]), shape=sizes)
    return dispatch.gpu_note(config, config.phases[0], mesh)


def test_without_cudnn_xla_is_taken_and_the_line_says_why(monkeypatch) -> None:
    """As on a GPU whose cuDNN is missing, or that JAX refuses under CUDA 13."""
    monkeypatch.setattr(cudnn, "version", refuse)
    assert resolved(H200, config_of("auto")) == "xla"
    note = gpu_note(H200, config_of("auto"))
    assert "XLA" in note
    assert "cuDNN is not detected" in note
    with pytest.raises(UserError, match=r"cuDNN is not detected.*set it to"):
        resolved(H200, config_of("cudnn"))


def test_the_attention_of_a_gpu_is_named_and_what_dropout_costs() -> None:
    assert gpu_note(CPU, config_of("auto")) == ""
    assert "cuDNN 9.12.0" in gpu_note(H200, config_of("auto"))
    modern = load("ettin_17m")
    windows = sum(map(modern.model.is_local, range(modern.model.num_hidden_layers)))
    said = f"; XLA in {windows} of {modern.model.num_hidden_layers} layers, with windows of 128 tok"
    assert said in gpu_note(H200, modern)
    config = config_of("auto", drop=0.1)
    (phase,), model = config.phases, config.model
    note = gpu_note(H200, config)
    rows, layers = phase.batch_size / phase.micro_batches / 2, model.num_hidden_layers
    probabilities = rows * model.num_attention_heads * phase.seq_length**2 * layers * 2
    assert "XLA" in note
    assert "(0.1 here)" in note
    assert f"the probabilities take at least {probabilities / 2**20:,.0f} MiB a GPU; " in note
    assert note.endswith("; scores, masks and their copies take more")


@pytest.mark.parametrize("remat", ["none", "full"])
def test_the_probabilities_of_a_generator_and_of_a_decoder_count(remat: str) -> None:
    electra = load("electra_small_plus_plus", {"compute.remat": remat})
    (phase,), sizes = electra.phases, (electra.model, generator_of(electra.model))
    heads = [one.num_attention_heads * one.num_hidden_layers for one in sizes]
    if remat != "none":
        heads = [max(one.num_attention_heads for one in sizes)]
    taken = phase.batch_size / phase.micro_batches / 2 * sum(heads) * phase.row_tokens**2 * 2
    assert f"{taken / 2**20:,.0f} MiB" in gpu_note(H200, electra)
    task = load("sentences", {"task.name": "denoising", "compute.remat": remat})
    encoder = load("glue", {"phases[0].batch_size": 64, "compute.remat": remat})
    once, twice = (float(re.findall(r"([\d,.]+) MiB", gpu_note(H200, one))[0].replace(",", ""))
                   for one in (encoder, task))  # fmt: skip
    assert twice == (2 * once if remat == "none" else once)
    kept = load("sentences", {"task.name": "denoising", "model.attention_probs_dropout_prob": 0.0})
    assert gpu_note(H200, kept).endswith("flash attention; XLA in the decoder")


def test_the_windows_of_a_generator_count() -> None:
    config = load("electra_base", {"model.local_attention": 32} | KEPT)
    layers = config.model.num_hidden_layers, generator_of(config.model).num_hidden_layers
    said = f"; XLA in {sum(2 * one // 3 for one in layers)} of {sum(layers)} layers, with windows"
    assert said in gpu_note(H200, config)


def test_a_kernel_is_checked_for_the_generator_too() -> None:
    sizes = {"model.generator.hidden_size": 48, "model.generator.num_attention_heads": 4}
    config = load("electra_small", sizes | KEPT)
    assert config.model.head_dim % 8 == 0
    assert resolved(H200, config) == "xla"
    assert "tokens and the generator has heads of 12" in gpu_note(H200, config)
    assert resolved(H200, load("electra_small", KEPT)) == "cudnn"


@pytest.mark.parametrize(
    ("form", "device", "length"), [("pallas", TPU, 130), ("splash", TPU, 130), ("cudnn", H200, 129)]
)
def test_a_kernel_is_checked_for_the_rows_of_evaluation(
    form: str, device: Any, length: int
) -> None:
    """Where training packs examples into longer rows."""
    rows = {"phases[0].row_length": 512, "phases[0].examples_per_row": 8}
    config = load("base", rows | {"phases[0].seq_length": length} | KEPT)
    (phase,) = held_out_config(config, config.phases[0]).phases
    assert phase.row_tokens == length
    said = rf"config.phases\[0\] has rows of {length} tokens in evaluation and the model"
    with pytest.raises(UserError, match=said):
        resolved(device, config.replace({"compute.attention": form}))
    assert resolved(device, config) == ("xla" if device is H200 else "auto")


def resolved(device: Any, config: Config) -> str:
    mesh: Any = SimpleNamespace(devices=np.array([[device, device]]))
    return dispatch.resolve(config, mesh).attention


@pytest.mark.parametrize(
    ("device", "changes", "form"),
    [
        (CPU, {}, "xla"),
        (TPU, {}, "auto"),
        (TPU, {"length": 100}, "auto"),
        (H200, {}, "cudnn"),
        (H200, {"drop": 0.1}, "cudnn"),  # in evaluation
        (H200, {"dtype": "float32"}, "xla"),
        (H200, {"length": 127}, "xla"),
        (H200, {"head_dim": 4}, "xla"),
        (V100, {}, "xla"),
        (MI300, {}, "xla"),
    ],
)
def test_auto_is_what_the_devices_of_the_mesh_run(device: Any, changes: dict, form: str) -> None:
    assert resolved(device, config_of("auto", **changes)) == form


@pytest.mark.parametrize(
    ("device", "changes", "why"),
    [
        (CPU, {"length": 2048}, "on cpu"),
        (V100, {"length": 2048}, "on Tesla V100-SXM2"),
        (TPU, {"length": 2000}, "on TPU v5 lite"),
        (H200, {"length": 2048, "drop": 0.1}, "with dropout"),
        (CPU, {"length": 1024}, None),
        (TPU, {"length": 2048}, None),
        (H200, {"length": 2048}, None),
    ],
)
def test_long_rows_without_a_kernel_are_a_line_of_the_log(
    device: Any, changes: dict, why: str | None
) -> None:
    mesh: Any = SimpleNamespace(devices=np.array([[device, device]]))
    note = dispatch.memory_note(config_of("auto", **changes), mesh)
    assert bool(note) == (why is not None)
    if why:
        assert f"{changes['length']:,} tokens {why}: the memory" in note


def test_the_mask_that_cudnn_takes_of_long_rows_is_in_its_line() -> None:
    note = gpu_note(H200, config_of("auto", length=2048))
    assert note == "attention: cuDNN 9.12.0, flash attention; a mask takes 8 MiB a row"


@pytest.mark.parametrize(
    ("form", "device"), [("xla", CPU), ("xla", TPU), ("pallas", TPU), ("cudnn", H200)]
)
def test_a_form_that_the_devices_run_is_taken(form: str, device: Any) -> None:
    assert resolved(device, config_of(form)) == form


@pytest.mark.parametrize(
    ("form", "device", "changes", "says"),
    [
        ("pallas", CPU, {}, "runs on TPUs, not on cpu"),
        ("pallas", H200, {}, "runs on TPUs, not on NVIDIA H200"),
        ("cudnn", TPU, {}, "not on TPU v5 lite"),
        ("cudnn", MI300, {}, "not on AMD Instinct MI300X"),
        ("cudnn", H200, {"dtype": "float32"}, 'not in config.compute.dtype="float32"'),
        ("pallas", TPU, {"length": 100}, r"multiple of 128, .*config.phases\[0\] has rows of 100"),
        ("pallas", TPU, {"length": 2048}, "at most 1024"),
        ("pallas", TPU, {"head_dim": 4}, "heads of 4"),
        ("cudnn", H200, {"head_dim": 256}, "heads of 256"),
    ],
)
def test_a_form_that_cannot_run_is_refused_in_one_line(
    form: str, device: Any, changes: dict, says: str
) -> None:
    with pytest.raises(UserError, match=says) as refused:
        resolved(device, config_of(form, **changes))
    line = str(refused.value)
    assert line.startswith(f'config.compute.attention="{form}"')
    assert line.endswith('set it to "auto"')
    assert "\n" not in line


@pytest.mark.parametrize("form", ["pallas", "splash", "cudnn"])
def test_a_kernel_that_should_drop_probabilities_is_refused(form: str) -> None:
    with pytest.raises(UserError, match="has no attention dropout"):
        config_of(form, drop=0.1)


@pytest.mark.parametrize(
    ("form", "length", "key", "kernel"),
    [
        ("auto", 128, None, False),
        ("auto", 512, None, True),
        ("auto", 512, 7, False),
        ("auto", 520, None, False),
        ("auto", 2048, None, True),
        ("auto", 2000, None, False),
        ("splash", 2048, None, True),
        ("pallas", 128, None, True),
    ],
)
def test_the_length_and_dropout_decide_call_by_call(
    form: str, length: int, key: int | None, kernel: bool
) -> None:
    *qkv, examples, _ = arrays_of(1, length, 1, 8, packed=True)
    attend = functools.partial(
        dispatch.attend, form, rate=0.1, key=None if key is None else jnp.uint32(key)
    )
    assert ("pallas_call" in str(jax.make_jaxpr(attend)(*qkv, examples))) == kernel


def test_rows_that_do_not_suit_the_tpu_kernel_are_an_error() -> None:
    *qkv, examples, _ = arrays_of(1, 130, 1, 8, packed=True)
    with pytest.raises(ValueError, match="no kernel for 130 positions"):
        interpreted(*qkv, examples)


def test_cudnn_lowers_for_cuda_with_the_mask_of_the_examples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No more than that: it needs an NVIDIA GPU to run, and to be compiled."""
    from jax._src.cudnn import fused_attention_stablehlo

    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91_000)
    arrays = arrays_of(2, 128, 4, 64, packed=True, dtype="bfloat16")

    def run(q, k, v, examples, dy):
        y, gradients_of = jax.vjp(lambda *x: cudnn.attend(*x, examples), q, k, v)
        return y, *gradients_of(dy)

    calls = [f"__cudnn$fmhaScaleBiasSoftmax{way}" for way in ("", "Backward")]
    text = jax.export.export(
        jax.jit(run),
        platforms=["cuda"],
        disabled_checks=[jax.export.DisabledSafetyCheck.custom_call(call) for call in calls],
    )(*arrays).mlir_module()
    for call in calls:
        (line,) = (line for line in text.splitlines() if f"@{call}(" in line)
        assert "tensor<2x1x128x128xbf16>" in line
