"""`bert-jax compile` for GPUs: what it refuses, and what it reports of small models.

The compiler is asked in processes of its own; `make slow` has a copy of it.
"""

import functools
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from compiled_reports import compile_for, refused_here
from gpu_compiler import FOLDER, needs_gpu_compiler

from bert_jax import cli
from bert_jax.aot import gpu_compiler
from bert_jax.commands import compile as compile_command
from bert_jax.config.schema import ModelConfig
from bert_jax.errors import UserError
from bert_jax.ops.attention import cudnn
from bert_jax.training import resolve

ROOT = Path(__file__).resolve().parents[2]
JAXLIB = importlib.metadata.version("jaxlib")
SMALL = (
    "--config=base", "--config.model.num_hidden_layers=2", "--config.model.hidden_size=128",
    "--config.model.num_attention_heads=2", "--config.model.intermediate_size=512",
    "--config.model.vocab_size=1024", "--config.phases[0].batch_size=64",
)  # fmt: skip


@pytest.fixture
def say(capsys):
    return functools.partial(refused_here, capsys)


def test_without_the_compiler_one_line_says_how_to_get_it(say, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv(gpu_compiler.GPU_COMPILER_VARIABLE, raising=False)
    before = dict(os.environ)
    code, line = say("--config=base", "--topology=h100-1")
    assert code == 1
    assert f"jax-cuda13-pjrt=={JAXLIB}" in line
    assert f"{gpu_compiler.GPU_COMPILER_VARIABLE}=DIR" in line
    assert dict(os.environ) == before
    monkeypatch.setenv(gpu_compiler.GPU_COMPILER_VARIABLE, str(tmp_path))
    code, line = say("--config=base", "--topology=h100-1")
    assert code == 1
    assert f"{gpu_compiler.GPU_COMPILER_VARIABLE}={tmp_path}: no " in line


def test_the_compiler_of_an_installed_extra_is_found(monkeypatch, tmp_path) -> None:
    library = tmp_path / "jax_plugins" / "xla_cuda13" / "xla_cuda_plugin.so"
    library.parent.mkdir(parents=True)
    library.touch()
    for package in ("jax_cuda13_plugin", "jax_cuda13_pjrt"):
        _describe(tmp_path, package, JAXLIB)
    monkeypatch.delenv(gpu_compiler.GPU_COMPILER_VARIABLE, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert gpu_compiler.folder() == tmp_path
    _describe(tmp_path, "jax_cuda13_pjrt", "0.1.0")
    with pytest.raises(UserError, match=rf"^{tmp_path}: .*, jaxlib is {JAXLIB}: pip install"):
        gpu_compiler.folder()


def _describe(folder: Path, package: str, version: str) -> None:
    """Writes what pip records of an installed package."""
    for older in folder.glob(f"{package}-*.dist-info"):
        shutil.rmtree(older)
    about = folder / f"{package}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: {package}\nVersion: {version}\n", "utf-8")


def test_a_compiler_of_another_jaxlib_is_refused(say, monkeypatch, tmp_path) -> None:
    library = tmp_path / "jax_plugins" / "xla_cuda13" / "xla_cuda_plugin.so"
    library.parent.mkdir(parents=True)
    library.touch()
    for package in ("jax_cuda13_plugin", "jax_cuda13_pjrt"):
        _describe(tmp_path, package, "0.1.0")
    monkeypatch.setenv(gpu_compiler.GPU_COMPILER_VARIABLE, str(tmp_path))
    code, line = say("--config=base", "--topology=h100-1")
    assert code == 1
    assert f"0.1.0, jaxlib is {JAXLIB}" in line


@pytest.mark.parametrize(
    ("recorded", "line"),
    [
        (",7", "cannot be loaded ("),
        (",1000000", "has 7 bytes, not 1,000,000); its files are damaged"),
        ("sha256=x,7", "has other bytes than were installed); its files are damaged"),
    ],
)
def test_a_damaged_compiler_is_one_line_and_changes_nothing(
    say, monkeypatch, tmp_path, recorded, line
) -> None:
    library = tmp_path / "jax_plugins" / "xla_cuda13" / "xla_cuda_plugin.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"cut off")
    for package in ("jax_cuda13_plugin", "jax_cuda13_pjrt"):
        _describe(tmp_path, package, JAXLIB)
    # pip lists compiled files that Python may delete.
    listed = f"{library.relative_to(tmp_path)},{recorded}\n__pycache__/gone.pyc,,\n"
    (tmp_path / f"{package}-{JAXLIB}.dist-info" / "RECORD").write_text(listed, "utf-8")
    monkeypatch.setenv(gpu_compiler.GPU_COMPILER_VARIABLE, str(tmp_path))
    before, path = dict(os.environ), [*sys.path]
    code, said = say("--config=base", "--topology=h100-1")
    assert code == 1
    assert f"{tmp_path}: cannot be loaded (" in said
    assert line in said
    assert f"jax-cuda13-pjrt=={JAXLIB}" in said
    assert (dict(os.environ), sys.path) == (before, path)


def test_the_compiler_that_is_named_comes_before_an_installed_one(monkeypatch, tmp_path) -> None:
    package = "jax_cuda13_plugin"
    for name, number in (("installed", 91000), ("named", 92000)):
        (tmp_path / name / package).mkdir(parents=True)
        text = f"def cudnn_build_version():\n    return {number}\n"
        (tmp_path / name / package / "_versions.py").write_text(text, "utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "installed"), *sys.path])
    for name in (package, f"{package}._versions"):
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    monkeypatch.setattr(gpu_compiler.ctypes, "CDLL", lambda _: None)
    gpu_compiler._load(tmp_path / "named")
    assert gpu_compiler.cudnn_version() == (9, 20, 0)
    assert sys.path[1:2] == [str(tmp_path / "installed")]
    for name in (package, f"{package}._versions"):
        del sys.modules[name]


def test_a_wrong_share_of_the_memory_is_refused_before_anything_is_compiled(
    say, monkeypatch
) -> None:
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "95")
    monkeypatch.setattr(gpu_compiler, "prepare", lambda: pytest.fail("too late"))
    code, line = say("--config=base", "--topology=h100-1")
    assert code == 1
    assert "XLA_CLIENT_MEM_FRACTION=95: not a share of the memory" in line


def test_a_model_whose_architecture_is_wanted_must_be_there(say, monkeypatch) -> None:
    """Else the step of another model would be compiled."""
    monkeypatch.setattr(gpu_compiler, "prepare", lambda: None)
    words = ("--config=continue_domain", "--topology=h100-1", "--config.init=nowhere")
    code, line = say(*words)
    assert code == 1
    assert "config.init=nowhere: no model there" in line


@pytest.mark.parametrize(
    ("words", "named", "model"),
    [
        (["--config=glue"], "glue", "the default model"),
        (["--config=glue", "--config.init=M"], "glue", "config.init=M"),
        (["--config=sentences", "--config.task.name="], "sentences", "the default model"),
        (["--config=base"], "", ""),
    ],
)
def test_what_is_compiled_of_a_config_for_tasks_is_said(
    capsys, monkeypatch, words, named, model
) -> None:
    monkeypatch.setattr(gpu_compiler, "prepare", lambda: None)
    monkeypatch.setattr(resolve, "find_architecture", lambda _: ModelConfig())
    monkeypatch.setattr(compile_command, "_report", lambda *_: None)
    assert cli.main(["compile", *words, "--topology=h100-1"]) == 0
    line = f"compiling {named} as a step of pretraining, with the sizes of {model}\n"
    assert capsys.readouterr().err == (line if named else "")


def test_a_gpu_that_does_not_exist_is_refused(say) -> None:
    code, line = say("--config=base", "--topology=h100-5")
    assert code == 1
    assert "--topology: h100-5 does not exist; nearest: h100-4 and h100-8" in line


def test_the_compiler_is_installed_in_the_version_of_jaxlib() -> None:
    pins = (ROOT / "requirements" / "gpu_compiler.txt").read_text("utf-8")
    locked = (ROOT / "requirements" / "core.txt").read_text("utf-8")
    (jaxlib,) = re.findall(r"^jaxlib==(\S+)", locked, re.MULTILINE)
    for package in ("jax-cuda13-plugin", "jax-cuda13-pjrt"):
        assert f"{package}=={jaxlib}" in pins.splitlines()


def test_a_described_gpu_has_the_cudnn_of_its_compiler(monkeypatch) -> None:
    from jax._src.cudnn import fused_attention_stablehlo as jax_cudnn

    monkeypatch.setattr(jax_cudnn, "check_cudnn_version", jax_cudnn.check_cudnn_version)
    monkeypatch.setattr(gpu_compiler, "cudnn_version", lambda: (9, 12, 1))
    gpu_compiler._answer_for_cudnn()
    assert cudnn.version() == "9.12.1"


def report(*words: str) -> dict[str, Any]:
    done = compile_for("--json", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.processes
@needs_gpu_compiler
@pytest.mark.parametrize("config", ["tiny", "base"])
def test_a_step_compiles_for_one_gpu(config: str) -> None:
    layers = "--config.model.num_hidden_layers=2"
    plain = report(f"--config={config}", layers, "--phase=0", "--topology=h100-1")
    (phase,) = plain["phases"]
    assert plain["fits"]
    assert plain["estimated_hours"] is None
    assert phase["at_least_step_seconds"] > 0
    assert phase["attention"].startswith("attention: XLA")
    found = phase["analysis"]
    held, temporaries = found["held"], phase["memory"]["activations and temporaries"]
    assert sum(line["bytes"] for line in held) == pytest.approx(temporaries, rel=0.05)
    of_model = [p for p in found["products"] if not p["of_optimizer"]]
    counted = sum(p["flops"] for p in of_model)
    assert counted == pytest.approx(phase["flops"], rel=0.02)
    assert found["callbacks"] == 0
    assert found["wide"] == {}  # of the model in bfloat16: a float32 product is an error of ours
    designed = [line.partition(":")[0] for line in found["by_design"]]
    assert designed == (["model/heads.py"] if config == "base" else [])  # tiny is in float32


@pytest.mark.processes
@needs_gpu_compiler
@pytest.mark.parametrize(
    ("config", "words", "designed"),
    [
        pytest.param("distil", ("distillation.teacher_layers=0,2",), (), marks=pytest.mark.slow),
        pytest.param("electra_small", (), ("model/heads.py",), marks=pytest.mark.slow),
        pytest.param("base_sop", (), ("model/heads.py",), marks=pytest.mark.nightly),
        pytest.param("spanbert_base", (), ("model/heads.py",), marks=pytest.mark.nightly),
    ],
)
def test_a_step_of_each_objective_has_the_products_that_are_meant(
    config: str, words: tuple[str, ...], designed: tuple[str, ...]
) -> None:
    """Of a student, even those of the gradient of its logits are in bfloat16."""
    sizes = ("model.num_hidden_layers=2", "phases[0].batch_size=32", "phases[0].micro_batches=1")
    changes = [f"--config.{change}" for change in (*sizes, *words)]
    (phase,) = report(f"--config={config}", *changes, "--phase=0", "--topology=h100-1")["phases"]
    found = phase["analysis"]
    assert found["wide"] == {}
    assert {line.partition(":")[0] for line in found["by_design"]} == {*designed}


# A driver that has one GPU, and notes when it is used.
DRIVER = """
#include <stdio.h>
#include <stdlib.h>
int cuInit(unsigned flags) {
  fclose(fopen(getenv("DRIVER_USED"), "w"));
  return 0;
}
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
"""
# What JAX looks for before it asks the driver.
ONE_GPU = "from jax._src import hardware_utils as h; h._NVIDIA_GPU_DEVICES = ('/dev/null',)\n"


@pytest.mark.slow
@pytest.mark.processes
@needs_gpu_compiler
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_gpu_of_this_machine_is_left_alone(tmp_path) -> None:
    """A run asks the driver for it; `compile` does not, with the compiler of a [cuda] extra."""
    (tmp_path / "driver.c").write_text(DRIVER, "utf-8")
    cc = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so.1", "driver.c"]
    subprocess.run(cc, cwd=tmp_path, check=True)
    used = tmp_path / "used"
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(ROOT), FOLDER]), "LD_LIBRARY_PATH": str(tmp_path),
        "DRIVER_USED": str(used), gpu_compiler.GPU_COMPILER_VARIABLE: "",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # the libraries of CUDA, which are not here
    }  # fmt: skip

    def run(program: str, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-c", ONE_GPU + program, *words],
            env=environment, capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip

    run("import jax; jax.devices()")
    assert used.exists()
    used.unlink()
    one = "--config=tiny", "--config.model.num_hidden_layers=1", "--phase=0", "--topology=h100-1"
    done = run("from bert_jax.cli import main; raise SystemExit(main())", "compile", *one)
    assert done.returncode == 0, done.stderr
    assert not used.exists()


@pytest.mark.slow
@pytest.mark.processes
@needs_gpu_compiler
def test_a_step_compiles_for_two_hosts_with_cudnn() -> None:
    plain = report(*SMALL, "--topology=2xl4-2", "--config.model.attention_probs_dropout_prob=0.0")
    (phase,) = plain["phases"]
    assert plain["topology"]["hosts"] == 2
    assert phase["attention"].startswith("attention: cuDNN 9.")
    kernels = {
        k["name"]: k["runs"] for k in phase["analysis"]["kernels"] if k["library"] == "cuDNN"
    }
    assert sum(kernels.values()) == 4  # two layers, forward and backward
    assert {traffic["network"] for traffic in phase["analysis"]["collectives"]} == {"between hosts"}
    assert phase["at_least_step_seconds"] > 0


@pytest.mark.nightly
@pytest.mark.processes
@needs_gpu_compiler
@pytest.mark.parametrize(
    "mesh",
    [{}, {"data": 8}, {"data": 8, "compute.shard_optimizer": False}, {"data": 2, "fsdp": 4}],
    ids=str,
)
def test_arguments_are_those_of_the_shardings(mesh: dict[str, Any]) -> None:
    """The compiler's size of the step's inputs, within 5 % of the arithmetic."""
    words = [f"--config.{k if '.' in k else f'mesh.{k}'}={v}" for k, v in mesh.items()]
    two = ("--config=base", "--config.model.num_hidden_layers=2", "--phase=0")
    devices = mesh.get("data", 1) * mesh.get("fsdp", 1)
    (phase,) = report(*two, f"--topology=h100-{devices}", *words)["phases"]
    memory = phase["memory"]
    arithmetic = memory["parameters"] + memory["optimizer"] + memory["batch"]
    assert phase["input_bytes"] == pytest.approx(arithmetic, rel=0.05)
    assert memory["code, padding, metrics"] <= 0.05 * arithmetic
    width, tables = 768, (30_522 + 512 + 2) * 768
    layers = 2 * (12 * width**2 + 13 * width)
    heads = 2 * width**2 + 3 * width  # pooler, and the dense layer of the masked-token head
    # Each axis has its part of what lies between steps, but for `fsdp` of the tables.
    ways = mesh.get("data", 1) if mesh.get("compute.shard_optimizer", True) else 1
    parameters = 4 * (tables + (layers + heads) / mesh.get("fsdp", 1)) / ways
    assert memory["parameters"] == pytest.approx(parameters, rel=0.05)
    assert memory["optimizer"] == pytest.approx(2 * parameters, rel=0.05)


@pytest.mark.nightly
@pytest.mark.processes
@needs_gpu_compiler
@pytest.mark.parametrize(
    "config",
    ["roberta_base", "albert_base", "electra_base", "ettin_17m", "modernbert_base", "mmbert_small"],
)
def test_every_architecture_compiles(config: str) -> None:
    """With its layers in a loop."""
    done = compile_for(
        f"--config={config}", "--topology=h100-1", "--phase=0", "--json",
        "--config.compute.unroll_layers=1", "--config.phases[0].micro_batches=8",
    )  # fmt: skip
    (phase,) = json.loads(done.stdout)["phases"]
    assert done.returncode == (0 if phase["fits"] else 1), done.stderr
    assert phase["analysis"]["callbacks"] == 0
    assert phase["analysis"]["wide"] == {}  # all are in bfloat16
