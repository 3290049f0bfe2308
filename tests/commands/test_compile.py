"""`bert-jax compile`: what it prints, what it refuses; for real slices with libtpu.

The TPU compiler is asked in processes of its own, see test_slices.py; `make slow` has a copy of it.
"""

import dataclasses
import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from compiled_reports import analysis, compile_for, made, refused_here
from signals import with_signals
from tpu_compiler import needs_libtpu

from bert_jax.aot import compile_report, report_sections, topology
from bert_jax.config.config_files import load, shipped, slice_of
from bert_jax.errors import UserError
from bert_jax.hardware import slices
from bert_jax.metrics.run_records import strict

ROOT = Path(__file__).resolve().parents[2]
MEANT = {name: found for name, path in shipped().items() if (found := slice_of(path))}


@pytest.fixture
def say(capsys):
    return functools.partial(refused_here, capsys)


def test_without_libtpu_one_line_says_how_to_get_it(say, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv(topology.LIBTPU_VARIABLE, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, line = say("--config=base")
    assert code == 1
    assert "libtpu, is not installed: pip install 'bert-jax[tpu]'" in line
    monkeypatch.setenv(topology.LIBTPU_VARIABLE, str(tmp_path))
    code, line = say("--config=base")
    assert code == 1
    assert f"{topology.LIBTPU_VARIABLE}={tmp_path}: no such file" in line


@pytest.mark.parametrize(
    ("recorded", "line"),
    [
        ("libtpu/libtpu.so,,9", "libtpu/libtpu.so has 7 bytes, not 9"),
        (f"libtpu/libtpu.so,sha256={'x' * 43},7", "libtpu/libtpu.so has other bytes than were"),
        ("libtpu/sdk.so,,7", "libtpu/sdk.so is missing"),
    ],
)
def test_a_damaged_libtpu_is_one_line_and_changes_nothing(
    say, monkeypatch, tmp_path, recorded, line
) -> None:
    """Loaded, it would kill the process."""
    library, about = tmp_path / "libtpu/libtpu.so", tmp_path / "libtpu-9.0.dist-info"
    library.parent.mkdir()
    library.write_bytes(b"cut off")
    about.mkdir()
    (about / "METADATA").write_text("Name: libtpu\nVersion: 9.0\n", "utf-8")
    (about / "RECORD").write_text(f"{recorded}\nlibtpu/__pycache__/gone.pyc,,\n", "utf-8")
    monkeypatch.setenv(topology.LIBTPU_VARIABLE, str(library))
    before = dict(os.environ)
    code, said = say("--config=base")
    assert code == 1
    assert f"{library}: cannot be loaded ({line}" in said
    assert said.rstrip().endswith("its files are damaged: install libtpu 9.0 again")
    assert dict(os.environ) == before


def test_every_config_for_a_tpu_says_which() -> None:
    on_cpu = {"tiny", "demo", "wiki_books_small", "glue_small"}
    assert set(MEANT) == set(shipped()) - on_cpu
    for name, found in MEANT.items():
        devices = slices.find(found).devices
        for phase in load(name).phases:
            assert phase.batch_size % (devices * phase.micro_batches) == 0, name


def test_what_is_printed_says_what_it_is_and_what_is_estimated() -> None:
    said = report_sections.render(made())
    for part in (
        "base on v5e-16: 16 chips, 4 hosts; mesh data 16",
        "bfloat16, attention auto, all layers unrolled, remat none, optimizer sharded",
        "nothing ran",
        "Times are estimates",
        "6.00 GiB of 15.75 GiB, fits",
        "1.00 GiB  parameters",
        "2.00 GiB  optimizer",
        "10.00 ms, 3,276,800 tokens/s including padding, 56.8% MFU; all estimated by the compiler",
        "12.0 million cycles",
        "sort 0.50 ms",
        "75.0%",
        "model/attention.py:31",
        "all-reduce over data, asynchronous",
        "3.0 MiB",
        "Whole run: 2.78 hours, 44 chip-hours; estimated",
    ):
        assert part in said


def test_what_does_not_fit_says_by_how_much_and_what_would_help() -> None:
    said = report_sections.render(made(fits=False))
    assert "33.00 GiB of 15.75 GiB, DOES NOT FIT" in said
    assert "Over the limit by 17.25 GiB." in said
    assert "12.00 GiB  '--config.phases[0].micro_batches=4'" in said
    assert "estimates, not compiled" in said
    assert "not estimated, because it does not fit" in said
    assert "hours" not in said


def test_without_a_known_network_the_time_is_not_known() -> None:
    found = analysis(exposed_seconds=None, collective_seconds=None)
    assert made(found=found).hours is None
    assert "Whole run: time unknown" in report_sections.render(made(found=found))


@pytest.mark.parametrize(
    ("steps", "said"),
    [(1000, "Whole run: 10.0 s, 0.044 chip-hours"), (10**6, "Whole run: 2.78 hours, 44 chip-")],
)
def test_a_short_run_takes_seconds(steps: int, said: str) -> None:
    whole = made()
    (phase,) = whole.phases
    shorter = dataclasses.replace(phase.phase, steps=steps)
    phases = (dataclasses.replace(phase, phase=shorter),)
    assert said in report_sections.render(dataclasses.replace(whole, phases=phases))


def test_some_phases_are_not_the_whole_run() -> None:
    assert "This phase: " in report_sections.render(made(config="wiki_books_base"))


@pytest.mark.parametrize("fits", [True, False])
def test_json_is_strict_and_holds_everything(fits: bool) -> None:
    plain = json.loads(json.dumps(strict(compile_report.as_dict(made(fits))), allow_nan=False))
    (phase,) = plain["phases"]
    assert plain["fits"] == phase["fits"] == fits
    assert plain["topology"]["chips"] == 16
    memory = phase["memory"]
    total, limit = memory.pop("total"), memory.pop("limit")
    assert sum(memory.values()) == total
    assert (total <= limit) == fits
    assert (phase["analysis"] is not None) == fits
    assert bool(phase["remedies"]) != fits
    if fits:
        assert phase["estimated_step_seconds"] == pytest.approx(0.01)
        assert plain["estimated_chip_hours"] == pytest.approx(16 * plain["estimated_hours"])


# With libtpu.


@pytest.mark.nightly
@needs_libtpu
@pytest.mark.parametrize("name", sorted(set(MEANT) - {"sentences"}))  # which is of a task
@pytest.mark.processes
def test_every_config_compiles_and_fits_its_slice(name: str) -> None:
    done = compile_for(f"--config={name}", "--json")
    assert done.returncode == 0, done.stderr
    plain = json.loads(done.stdout)
    assert plain["fits"]
    assert plain["topology"]["name"] == MEANT[name]
    assert len(plain["phases"]) == len(load(name).phases)
    for phase in plain["phases"]:
        memory = phase["memory"]
        assert 0 < memory["parameters"] < memory["optimizer"] < memory["limit"]
        assert memory["total"] <= memory["limit"]
        found = phase["analysis"]
        assert found["cycles"] > 10**6
        assert None not in found["trips"].values()
        kinds = {(one["kind"], *one["axes"]) for one in found["collectives"]}
        assert ("all-reduce", "data") in kinds
        assert 0 < phase["estimated_utilization"] < 1
    # Nothing but what this program says: libtpu has nothing to complain of.
    assert all(line.startswith(f"compiling {name}") for line in done.stderr.splitlines())


@needs_libtpu
@pytest.mark.processes
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--config=ettin_17m", "--phase=0"], id="ettin", marks=pytest.mark.slow),
        pytest.param(
            ["--config=modernbert_base", "--phase=1", "--config.model.num_hidden_layers=2"],
            id="long-rows",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_layers_with_windows_compile_and_fit(words: list[str]) -> None:
    done = compile_for(*words, "--json")
    assert done.returncode == 0, done.stderr
    (phase,) = json.loads(done.stdout)["phases"]
    assert phase["fits"]
    assert None not in phase["analysis"]["trips"].values()
    assert 0 < phase["estimated_utilization"] < 1


@pytest.mark.slow
@needs_libtpu
@pytest.mark.processes
def test_a_step_too_large_is_reported_with_what_would_help() -> None:
    done = compile_for("--config=base", "--config.phases[0].batch_size=65536")
    assert done.returncode == 1, done.stderr
    assert "of 15.75 GiB, DOES NOT FIT" in done.stdout
    assert "--config.phases[0].micro_batches=" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@needs_libtpu
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--config.phases[0].batch_size=24"], "batch_size=24 is not divisible by 16 devices"),
        (["--config.mesh.data=3"], "config.mesh (slice=1, data=3, fsdp=1, tensor=1) does not fit"),
        (["--topology=2xv5e-16"], "set config.mesh.slice to the number of slices"),
        (["--config.mesh.tensor=16"], "config.mesh.tensor=16 does not divide"),
        (["--config.data.store=nowhere"], "nowhere"),
    ],
)
@pytest.mark.processes
def test_what_does_not_go_together_with_a_slice_is_one_line(words: list[str], says: str) -> None:
    done = compile_for("--config=base", *words)
    assert done.returncode == 1
    assert done.stdout == ""
    (*_, line) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert says in line


@pytest.mark.slow
@needs_libtpu
@pytest.mark.processes
def test_every_kind_of_slice_is_what_libtpu_describes() -> None:
    """The smallest and the largest of each generation, and one of several slices."""
    script = (
        "from bert_jax.aot import topology\n"
        "topology.prepare()\n"
        "from bert_jax.hardware import slices\n"
        "for row in slices.GENERATIONS.values():\n"
        "    for shape in (row.shapes[0], *row.shapes[-3:]):\n"
        "        of = slices.Slice(row, shape)\n"
        "        found = topology.devices(of)\n"
        "        hosts = len({d.process_index for d in found})\n"
        "        assert hosts == of.hosts, (of.name, hosts)\n"
        "        assert found[0].device_kind == row.device_kind, of.name\n"
        "two = topology.devices(slices.find('2xv5e-16'))\n"
        "assert {d.slice_index for d in two} == {0, 1}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_slice_that_libtpu_does_not_know_is_one_line(monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("INVALID_ARGUMENT: no such\n  topology")

    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", refuse)
    monkeypatch.setattr(topology, "version", lambda: "9.9")
    with pytest.raises(UserError, match=r"libtpu 9\.9 cannot describe v5e-16: INVALID"):
        topology.devices(slices.find("v5e-16"))


@pytest.mark.slow
@pytest.mark.processes
@needs_libtpu
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_compiling_is_one_line(number: signal.Signals) -> None:
    """Without it, libtpu prints its stack at SIGTERM, and SIGINT waits for the compiler."""
    words = ["compile", "--config=base", "--topology=v5e-16"]
    command = with_signals([sys.executable, "-m", "bert_jax", *words])
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr.readline() == "compiling base for v5e-16 …\n"
        time.sleep(5)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err == f"{number.name}: interrupted without a result\n"
