"""`bert-jax doctor`: what it says of a machine, with small scripts for its programs."""

import importlib.metadata
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jax._src.cudnn import fused_attention_stablehlo

from bert_jax import cli
from bert_jax.hardware import gpus
from bert_jax.launch.preflight import Check
from bert_jax.launch.programs import how_to_install
from bert_jax.ops.attention import cudnn
from bert_jax.reporting import doctor
from bert_jax.runtime import compile_cache

GPU = {"platform": "gpu", "kinds": ["NVIDIA H100 80GB HBM3"] * 8, "cudnn": "9.12.0"}
FRACTIONS = (gpus.FRACTION_VARIABLE, gpus.OLDER_VARIABLE)
ASK = doctor._ask
SMI = "\n".join(["NVIDIA H100 80GB HBM3, 570.86.10"] * 8)
LACKS = {"gcloud": "tpu", "kubectl": "gke", "sbatch": "slurm", "sky": "sky"}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all programs of a machine with one CPU device."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    for name in ("JAX_PLATFORMS", *FRACTIONS, "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor, "_is_gpu_there", lambda: (folder / "nvidia-smi").exists())
    with_devices(monkeypatch, {"platform": "cpu", "kinds": ["cpu"]})
    return folder


def with_devices(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any]) -> None:
    def ask() -> dict[str, Any]:
        return found

    ask.cache_clear = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setattr(doctor, "_ask", ask)


def with_packages(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """versions: with _ for -."""
    real = importlib.metadata.version
    given = {name.replace("_", "-"): version for name, version in versions.items()}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: given.get(name) or real(name))


def program(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def examined(*names: str) -> dict[str, tuple[str, str]]:
    rows = [row for row in doctor.rows() if row.check.name in names]
    return {found.check: (found.state, found.line) for found in doctor.examine(rows)}


def test_a_machine_with_cpus_and_no_launchers_can_run(
    machine: Path, capsys: pytest.CaptureFixture
) -> None:
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in printed} >= {"versions", "devices", "caches", *LACKS}
    for name, launcher in LACKS.items():
        (line,) = (line for line in printed if line.startswith(f"{name} "))
        says = f"note    not installed ({how_to_install(name)}); needed for launch {launcher}"
        assert line.split(maxsplit=1)[1] == says


@pytest.mark.processes
def test_the_same_as_json_and_a_failure_is_exit_code_1(
    machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "file").touch()
    given = [f"--workdir={tmp_path}/file/run", f"--store={tmp_path}/store"]
    assert cli.main(["doctor", "--json", *given]) == 1
    found = json.loads(capsys.readouterr().out)
    states = {check["check"]: check["state"] for check in found["checks"]}
    assert not found["ok"]
    assert [name for name, state in states.items() if state == "failed"] == ["workdir", "store"]
    assert cli.main(["doctor", f"--workdir={tmp_path}/new/run"]) == 0
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".writable"))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("gcloud", "repair it, or install it again"),
        ("kubectl", "choose a cluster that answers (kubectl config use-context), and log in to it"),
        ("sbatch", "run this on a login node, where sinfo answers"),
        ("sky", "repair it, or install it again"),
    ],
)
def test_a_program_that_fails_has_a_remedy(machine: Path, name: str, remedy: str) -> None:
    program(machine, name, "echo 'no server' >&2; exit 1")
    state, line = examined(name)[name]
    assert state == "note"
    assert line.endswith(f": no server; {remedy}; needed for launch {LACKS[name]}")


def test_a_flag_that_xla_does_not_know_is_to_be_mended(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_devices(monkeypatch, {"no_devices": "python -c: Unknown flag in XLA_FLAGS: --nonsense"})
    assert examined("devices")["devices"][1].endswith("; unset XLA_FLAGS, or mend the flag")
    with_devices(monkeypatch, {"no_devices": "python -c: timed out"})
    assert examined("devices")["devices"][1].endswith("or unset JAX_PLATFORMS")


@pytest.mark.processes
def test_gpus_that_jax_does_not_use_fail(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(machine, "nvidia-smi", f"echo '{SMI}'")
    assert examined("driver") == {"driver": ("ok", "570.86.10, 8 of NVIDIA H100 80GB HBM3")}
    wanted = "1 of cpu (cpu), but there is a GPU; pip install 'bert-jax[cuda]'"
    assert examined("devices") == {"devices": ("failed", wanted)}
    with monkeypatch.context() as context:
        context.setenv("JAX_PLATFORMS", "cpu")  # as the user wants it
        assert examined("devices")["devices"][0] == "ok"
        assert examined("driver") == {"driver": ("ok", "not used (JAX_PLATFORMS=cpu)")}
    with_packages(monkeypatch, jax_cuda13_plugin="0.10.2")
    state, line = examined("driver")["driver"]
    assert (state, line.partition(";")[0]) == (
        "failed",
        "570.86.10 is too old for jax-cuda13-plugin",
    )
    program(machine, "nvidia-smi", "echo 'Driver/library version mismatch' >&2; exit 18")
    assert (
        "Driver/library version mismatch; install NVIDIA's driver"
        in examined("driver")["driver"][1]
    )


@pytest.mark.parametrize("hidden", ["", "-1", None])
def test_a_gpu_that_jax_does_not_see_is_a_line_with_its_reason(
    machine: Path, monkeypatch: pytest.MonkeyPatch, hidden: str | None
) -> None:
    """With the plugin: to install it again changes nothing."""
    program(machine, "nvidia-smi", "")
    with_packages(monkeypatch, jax_cuda13_plugin="0.10.2")
    warnings = ["CUDA backend failed to initialize: no supported devices.", "no CUDA jaxlib"]
    with_devices(monkeypatch, {"platform": "cpu", "kinds": ["cpu"], "warnings": warnings})
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    state, line = examined("devices")["devices"]
    said, _, remedy = line.partition("; ")
    assert (state, said) == ("failed", f"1 of cpu (cpu), but there is a GPU ({warnings[0]})")
    unset = f"unset CUDA_VISIBLE_DEVICES={hidden}, which may hide it"
    assert remedy == unset if hidden is not None else remedy.startswith("repair what driver")


def test_a_package_that_any_release_meets_is_missing_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = ["nvidia-nvvm; extra == 'with-cuda'", "nvidia-none>=2; extra == 'with-cuda'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: wanted)
    lines = ["nvidia-nvvm missing", "nvidia-none missing, not >=2"]
    assert doctor._unmet("jax-cuda13-plugin", "with-cuda") == lines


def test_cudnn_is_named_or_what_lacks_it(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_devices(monkeypatch, GPU)
    assert examined("cuDNN") == {"cuDNN": ("ok", "9.12.0")}
    with_devices(monkeypatch, {**GPU, "no_cudnn": "cuDNN is not detected."})
    state, line = examined("cuDNN")["cuDNN"]
    assert (state, line.partition(";")[0]) == ("note", "cuDNN is not detected.")


def test_cudnns_version_is_the_one_that_jax_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = SimpleNamespace(cudnn_get_version=lambda: 91_203)
    monkeypatch.setattr(fused_attention_stablehlo, "cuda_versions", installed)
    assert cudnn.version() == "9.12.3"
    monkeypatch.setattr(fused_attention_stablehlo, "cuda_versions", None)
    with pytest.raises(RuntimeError, match="cuDNN is not detected"):
        cudnn.version()


@pytest.mark.parametrize(
    ("packages", "line"),
    [
        ({"jaxlib": "0.9.0"}, "jaxlib 0.9.0, not <="),
        ({"jax_cuda13_plugin": "0.9.0"}, "jax-cuda13-plugin 0.9.0, not 0."),
        ({"libtpu": "0.0.1"}, "libtpu 0.0.1, not "),
    ],
)
def test_packages_that_do_not_fit_are_named(
    machine: Path, monkeypatch: pytest.MonkeyPatch, packages: dict[str, str], line: str
) -> None:
    with_packages(monkeypatch, **packages)
    state, said = examined("versions")["versions"]
    assert (state, said.startswith(line)) == ("failed", True), said


@pytest.mark.parametrize(
    ("value", "state"), [("", "ok"), (".95", "ok"), ("95", "failed"), ("95%", "failed")]
)
def test_a_memory_fraction_is_a_part(
    machine: Path, monkeypatch: pytest.MonkeyPatch, value: str, state: str
) -> None:
    if value:
        monkeypatch.setenv(FRACTIONS[0], value)
    assert examined("GPU memory")["GPU memory"][0] == state


@pytest.mark.parametrize(
    ("variable", "value", "state", "line"),
    [
        ("PREALLOCATE", "false", "ok", "taken as it is needed"),
        ("PREALLOCATE", "FALSE", "ok", "JAX takes 75%"),
        ("ALLOCATOR", "platform", "ok", "taken as it is needed"),
        ("ALLOCATOR", "foo", "failed", "JAX refuses its variables (XLA_PYTHON_CLIENT_ALLOCATOR"),
    ],
)
def test_variables_of_memory_are_read_as_jax_reads_them(
    variable: str, value: str, state: str, line: str,
    machine: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv(f"XLA_PYTHON_CLIENT_{variable}", value)
    found = examined("GPU memory")["GPU memory"]
    assert (found[0], found[1].startswith(line)) == (state, True), found[1]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("hf:me/run", "hf:me/run: nothing is written there"),
        ("s3://bucket/run", "s3://bucket/run: unknown protocol s3://"),
        ("others", "others: holds manifest.json, but no config.json"),
        ("new/run", "can be written"),
    ],
)
def test_a_workdir_is_one_that_a_run_takes(
    name: str, line: str, machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "others").mkdir()
    (tmp_path / "others/manifest.json").write_text("{}")
    (found,) = doctor.examine([row for row in doctor.rows(name) if row.check.name == "workdir"])
    assert line in found.line
    assert found.state == ("ok" if name == "new/run" else "failed")


def test_libraries_of_cuda_that_come_first_are_named(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr(doctor, "_installed", lambda _: "")
        assert examined("CUDA") == {"CUDA": ("ok", "no CUDA plugin of JAX")}
    with_packages(monkeypatch, jax_cuda13_plugin="0.10.2")
    monkeypatch.setattr(doctor, "_unmet", lambda *_: [])
    assert examined("CUDA") == {"CUDA": ("ok", "libraries of jax-cuda13-plugin")}
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/cuda/lib64")
    state, line = examined("CUDA")["CUDA"]
    assert state == "note"
    assert line.startswith("LD_LIBRARY_PATH=/usr/local/cuda/lib64: these libraries come before")


@pytest.mark.parametrize("fault", ["hangs", "raises", "prints"])
@pytest.mark.processes
def test_what_jax_says_of_devices_is_one_line_and_is_waited_for_once(
    machine: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    body = {"hangs": "exec /bin/sleep 60", "raises": "echo boom >&2; exit 1", "prints": "echo {"}
    program(machine, "python", f"echo asked >> {machine}/asked\n{body[fault]}")
    monkeypatch.setattr(doctor, "_ask", ASK)
    monkeypatch.setattr(doctor.sys, "executable", str(machine / "python"))
    if fault == "hangs":
        monkeypatch.setattr(doctor, "_START", 3.0)
    found = examined("devices", "cuDNN")
    assert found["devices"][0] == "failed"
    assert "JAX finds no devices (" in found["devices"][1]
    assert found["cuDNN"][0] == "note"
    assert found["cuDNN"][1].startswith("not known without devices; see devices")
    assert (machine / "asked").read_text() == "asked\n"


@pytest.mark.processes
@pytest.mark.parametrize("name", sorted(LACKS))
@pytest.mark.parametrize("printed", ["hello world", "", "{}", "[1]", "version 7"])
def test_a_program_that_prints_no_version_is_said_to(
    machine: Path, name: str, printed: str
) -> None:
    program(machine, name, f"echo '{printed}'")
    repair = "repair it, or install it again"
    expected = f"printed no version, but {printed!r}; {repair}; needed for launch {LACKS[name]}"
    assert examined(name) == {name: ("note", expected)}


@pytest.mark.processes
def test_a_program_that_hangs_is_a_note(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_ANSWER", 0.3)
    program(machine, "sky", "exec /bin/sleep 60")
    repair = "repair it, or install it again"
    expected = f"sky --version: timed out after 0.3 s; {repair}; needed for launch sky"
    assert examined("sky") == {"sky": ("note", expected)}


def test_a_cache_that_others_may_write_to_is_a_note(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As JAX has them outside the tests, which share a cache.
    settings = {"jax_enable_compilation_cache": True, "jax_compilation_cache_dir": None}
    config = SimpleNamespace(config=SimpleNamespace(values=settings))
    monkeypatch.setattr(compile_cache, "jax", config)
    assert examined("compiled")["compiled"][0] == "ok"
    os.chmod(tmp_path / "cache/compiled", 0o777)
    state, line = examined("compiled")["compiled"]
    assert state == "note"
    assert "others could write programs there" in line


def test_what_no_check_foresaw_ends_none_of_the_others(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def broken() -> str:
        raise PermissionError(13, "Permission denied", "/cache")

    table = [doctor.Row(Check("disk", broken)), doctor.Row(Check("odd", lambda: str(1 / 0)))]
    monkeypatch.setattr(doctor, "rows", lambda *_: [*table, doctor.Row(Check("last", str))])
    assert cli.main(["doctor", "--json"]) == 1
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)["checks"]}
    assert found["disk"]["line"].startswith("cannot be checked (/cache: Permission denied)")
    assert found["odd"]["line"].startswith("cannot be checked (ZeroDivisionError: ")
    assert [one["state"] for one in found.values()] == ["failed", "failed", "ok"]


@pytest.mark.processes
def test_answers_that_say_nothing_are_lines(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_packages(monkeypatch, jax_cuda13_plugin="0.10.2")
    program(machine, "nvidia-smi", "echo 'NVIDIA-SMI has failed'")
    state, line = examined("driver")["driver"]
    assert (state, line.partition(";")[0]) == (
        "failed",
        "nvidia-smi answers 'NVIDIA-SMI has failed', no version",
    )


def test_caches_that_cannot_be_written_fail_as_every_run_would(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert examined("caches")["caches"][0] == "ok"
    assert not (tmp_path / "cache").exists()
    (tmp_path / "cache").write_text("a file")
    said = f"{tmp_path}/cache: a file; set BERT_JAX_CACHE to a folder"
    assert examined("caches")["caches"] == ("failed", said)
    monkeypatch.setenv("BERT_JAX_CACHE", "/proc/none/cache")  # which not even root can make
    state, line = examined("caches")["caches"]
    assert state == "failed"
    assert line.startswith("/proc/none/cache: cannot be written (")
    assert line.endswith("); set BERT_JAX_CACHE to a folder of yours")


@pytest.mark.slow
@pytest.mark.processes
def test_jax_is_asked_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert examined("devices")["devices"][1].endswith("of cpu (cpu)")
    warns = 'logging.getLogger("jax._src.x").warning("CUDA backend\\nfailed")\ntry:\n    devices'
    with monkeypatch.context() as context:  # as JAX does where the plugin fails
        context.setattr(doctor, "_ASK", doctor._ASK.replace("try:\n    devices", warns))
        doctor._ask.cache_clear()
        assert doctor._ask()["warnings"] == ["CUDA backend failed"]
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    state, line = examined("devices")["devices"]
    assert (state, line.startswith("JAX finds no devices for JAX_PLATFORMS=cuda")) == (
        "failed",
        True,
    )
