"""Tests of the table of GPUs: names, refusals, and what the compiler is told of each."""

import importlib
import math

import pytest

from bert_jax.aot.gpu_backend import GpuBackend
from bert_jax.errors import UserError
from bert_jax.hardware import gpus, targets
from bert_jax.hardware.slices import Slice


@pytest.mark.parametrize(
    ("name", "kind", "devices", "hosts"),
    [
        ("h100-8", "NVIDIA H100 80GB HBM3", 8, 1),
        ("H100-SXM-4", "NVIDIA H100 80GB HBM3", 4, 1),
        ("h100-pcie-2", "NVIDIA H100 PCIe", 2, 1),
        ("4xa100-80g-8", "NVIDIA A100-SXM4-80GB", 32, 4),
        ("a100-40g-16", "NVIDIA A100-SXM4-40GB", 16, 1),
        ("l4-1", "NVIDIA L4", 1, 1),
        ("rtx-4090-1", "NVIDIA GeForce RTX 4090", 1, 1),
        ("18xgb200-4", "NVIDIA GB200", 72, 18),
        ("36xgb200-4", "NVIDIA GB200", 144, 36),
        ("h200-sxm-8", "NVIDIA H200", 8, 1),
        ("2xa100_80g-8", "NVIDIA A100-SXM4-80GB", 16, 2),
    ],
)
def test_a_name_is_hosts_with_gpus(name: str, kind: str, devices: int, hosts: int) -> None:
    found = targets.find(name)
    assert isinstance(found, gpus.GpuHosts)
    assert (found.model.device_kind, found.devices, found.hosts) == (kind, devices, hosts)
    assert targets.find(found.name) == found


@pytest.mark.parametrize("model", gpus.MODELS.values(), ids=lambda model: model.name)
def test_the_name_that_jax_gives_a_gpu_is_one(model: gpus.GpuModel) -> None:
    assert targets.find(f"2x{model.device_kind}-4") == gpus.GpuHosts(model, 4, hosts=2)


def test_of_any_text_there_are_words() -> None:
    with pytest.raises(ValueError, match="not a GPU that is known here"):
        gpus.find("h100-8\nfoo")


def test_names_of_slices_are_found_as_before() -> None:
    assert isinstance(targets.find("2xv5e-256"), Slice)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a100-8", "did you mean a100-40g or a100-80g"),
        ("h300-8", "did you mean h100"),
        ("a100-sxm-8", "did you mean a100-40g or a100-80g"),
        ("h200-nvl-8", "did you mean h200"),
        ("h100-pcie-80gb-1", "did you mean h100-pcie"),
        ("h100-nvl-8", r"did you mean h100\?"),
        ("20xgb200-4", "18 hosts with gb200 make a rack; give fewer, or a multiple"),
        ("h100-3", "nearest: h100-2 and h100-4"),
        ("h100-16", "nearest: h100-8; several hosts are 2xh100-8"),
        ("h100", "as in h100-8$"),
        ("0xh100-8", "1 to 512 hosts"),
        ("v100-8", "CUDA 13.*7.0"),
        ("4xv100-8", "CUDA 13.*7.0"),
        ("Tesla-V100-SXM2-32GB-8", "CUDA 13.*7.0"),
        ("v100s-1", "CUDA 13.*7.0"),
        ("K80-8", "CUDA 13.*K80.*3.7"),
        ("GTX-1080", "CUDA 13.*GTX-1080.*6.1"),
        ("4xQuadroP4000-2", "CUDA 13.*P4000.*6.1"),
        ("M4000-1", "CUDA 13.*5.2"),
        ("TitanV-1", "CUDA 13.*7.0"),
        ("MI300X-8", "not a GPU of NVIDIA"),
        ("Gaudi2-8", "not a GPU of NVIDIA"),
        ("Trainium-16", "not a GPU of NVIDIA"),
        ("inferentia2-1", "not a GPU of NVIDIA"),
        ("t4-1", '^"t4-1" is not a GPU that is known here; '),
        ("tesla-t4-1", "not a GPU that is known here; valid: a100-40g"),
        ("a30-4", "not a GPU that is known here; nearest: a100-40g, a100-80g, a10g, a6000$"),
        ("a40-8", "not a GPU that is known here; nearest: a100-40g, a100-80g, a10g, a6000$"),
        ("l20-1", "not a GPU that is known here; nearest: l4$"),
        ("nvidia-tesla-a100-8", "did you mean a100-40g or a100-80g"),
        ("dgx-h100", r'"dgx-h100" is not a GPU that is known here; did you mean h100\?'),
        ("DGX A100-8", "did you mean a100-40g or a100-80g"),
        ("a100:8", "did you mean a100-40g or a100-80g"),
        ("jetson-orin-1", '^"jetson-orin-1" is not hardware that is known here; TPU slices are v2'),
        ("p4d.24xlarge", "is not hardware .*, as in v5e-16; GPUs are a100-40g, .*, as in h100-8$"),
        ("h100-٨", "not a GPU that is known here"),
        ("v5e-١٦", "is not a TPU slice"),
        ("gtx1660-1", "not a GPU that is known here; valid: a100-40g"),
        ("titan-rtx-1", "not a GPU that is known here; valid: a100-40g"),
        ("2xGH200-1", "not a GPU that is known here; did you mean"),
        ("RTX-3090", "not a GPU that is known here"),
        ("A100-SXM-80GB-8", r"did you mean a100-80g\?"),
        ("A100-PCIE-40GB-1", r"did you mean a100-40g\?"),
        ("8xh100", "after a dash, as in h100-8 .a number in front is one of hosts"),
        ("h100:8", "h100:8: give the GPUs of a host after a dash, as in h100-8"),
        ("A100-80GB:4", "as in a100-80g-4"),
        ("h100-8\nfoo", '^"h100-8 foo" is not a GPU that is known here'),
        ("nonsense\nfoo", '^"nonsense foo" is not hardware that is known here'),
        ("nonsense", "v5e-16.*GPUs are a100-40g"),
        ("v5e-20", "nearest: v5e-16"),
    ],
)
def test_other_names_are_refused_with_the_nearest_or_why(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        targets.find(name)


@pytest.mark.parametrize("model", gpus.MODELS.values(), ids=lambda model: model.name)
def test_what_the_driver_and_the_data_sheet_say_of_a_gpu_agree(model: gpus.GpuModel) -> None:
    row = model.accelerator
    assert 0.9 < model.memory / row.memory_bytes < 1.08
    assert row.memory_bandwidth
    assert row.ici_bandwidth
    # Operations of a core in a cycle are a power of two; the rate of some counts at a lower clock.
    per_cycle = math.log2(row.bf16_flops / model.cores / model.clock / 1e9)
    assert round(per_cycle) - 0.15 < per_cycle < round(per_cycle) + 0.01
    assert (model.links == "NVLink") == (row.ici_bandwidth > 200e9)


def test_the_limit_of_memory_is_what_jax_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpus.MODELS["h100"]
    names, source = (gpus.FRACTION_VARIABLE, gpus.OLDER_VARIABLE), gpus.ALLOCATOR_VARIABLE
    monkeypatch.delenv(source, raising=False)
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert model.usable_bytes == round(0.75 * model.memory)
    for name in names:
        with monkeypatch.context() as context:
            context.setenv(name, ".9")
            assert model.usable_bytes == round(0.9 * model.memory)
            assert gpus.memory_fraction() == (0.9, name)
            context.setenv(source, "Platform")  # which reads no share
            assert model.usable_bytes == model.memory
            (said,) = GpuBackend().of_memory(gpus.find("h100-8"))
            assert said == f"The limit is 100% of 79.11 GiB, the most that JAX takes ({source})."


@pytest.mark.parametrize(
    ("name", "gbits"),
    [
        ("2xl4-1", 32), ("2xl4-2", 16), ("2xl4-8", 12.5), ("2xa10g-1", 25), ("2xa10g-2", None),
        ("2xa10g-4", 12.5), ("2xh100-1", 400), ("2xrtx4090-1", None),
    ],
)  # fmt: skip
def test_a_gpu_has_its_part_of_the_network_of_its_host(name: str, gbits: float | None) -> None:
    assert gpus.find(name).accelerator.dcn_bandwidth == (gbits and gbits * 1e9 / 8)


@pytest.mark.parametrize("model", gpus.MODELS.values(), ids=lambda model: model.name)
def test_a_network_is_that_of_the_gpu_or_of_each_size_of_host(model: gpus.GpuModel) -> None:
    assert len(model.network) in (0, len(model.sizes))
    assert not (model.network and model.accelerator.dcn_bandwidth)


def test_several_hosts_train_as_one_job() -> None:
    words = "--config=base"
    alone = GpuBackend().train_command(gpus.find("h100-8"), words)
    assert alone == "bert-jax pretrain --config=base --config.data.store=… --workdir=…"
    job = " --coordinator=HOST:8476 --num_processes=4 --process_id=I"
    assert GpuBackend().train_command(gpus.find("4xa100-80g-8"), words) == alone + job


@pytest.mark.parametrize("value", ["95", "nan", "0.9x", "0", "-1", "inf"])
def test_a_share_of_the_memory_that_is_none_is_refused(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(gpus.OLDER_VARIABLE, raising=False)
    monkeypatch.setenv(gpus.FRACTION_VARIABLE, value)
    with pytest.raises(UserError, match=f"_FRACTION={value}: not a share of the memory; give one"):
        assert gpus.MODELS["h100"].usable_bytes


def test_more_than_the_gpu_has_is_a_share_of_unified_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(gpus.OLDER_VARIABLE, raising=False)
    monkeypatch.setenv(gpus.FRACTION_VARIABLE, "4.0")
    with pytest.raises(UserError, match="above 1 only with TF_FORCE_UNIFIED_MEMORY=1"):
        gpus.memory_fraction()
    monkeypatch.setenv("TF_FORCE_UNIFIED_MEMORY", "1")
    assert gpus.memory_fraction() == (4.0, gpus.FRACTION_VARIABLE)


def test_both_names_of_the_share_are_refused_as_by_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    xla_client = importlib.import_module("jaxlib.xla_client")
    for name in (gpus.FRACTION_VARIABLE, gpus.OLDER_VARIABLE):
        monkeypatch.setenv(name, ".9")
    with pytest.raises(ValueError, match=gpus.OLDER_VARIABLE):
        xla_client.generate_pjrt_gpu_plugin_options()
    with pytest.raises(UserError, match=f"unset {gpus.OLDER_VARIABLE}"):
        gpus.memory_fraction()
    monkeypatch.delenv(gpus.OLDER_VARIABLE)
    options = xla_client.generate_pjrt_gpu_plugin_options()
    assert options["memory_fraction"] == gpus.memory_fraction()[0]


def test_nvlink_joins_hosts_of_a_rack_only() -> None:
    assert targets.find("4xh100-8").linked == 8
    assert targets.find("4xgb200-4").linked == 16
