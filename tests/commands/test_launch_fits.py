"""The check before a launch that a config fits its slices: compiled once, and said in one line."""

import dataclasses
import importlib.util
import json
import subprocess
import sys

import pytest
from compiled_reports import made

from bert_jax.aot import compile_report, topology
from bert_jax.commands import launch_fits
from bert_jax.commands.launch_fits import fits_check
from bert_jax.config.config_files import load
from bert_jax.errors import UserError
from bert_jax.launch.preflight import CheckFailedError
from bert_jax.metrics.run_records import strict

COMMAND = ("pretrain", "--config=base", "--config.data.store=gs://b/store", "--workdir=gs://b/run")


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """`bert-jax compile`, which says what the test wants; a list of its command lines."""
    (tmp_path / "libtpu.so").touch()
    monkeypatch.setenv(topology.LIBTPU_VARIABLE, str(tmp_path / "libtpu.so"))
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    calls: list[list[str]] = []

    def run(words: list[str], **options: object) -> subprocess.CompletedProcess:
        calls.append(words)
        return subprocess.CompletedProcess(words, run.code, run.out, run.err)

    run.out, run.err, run.code, run.calls = said(fits=True), "", 0, calls
    monkeypatch.setattr(launch_fits.subprocess, "run", run)
    return run


def said(*, fits: bool) -> str:
    return json.dumps(strict(compile_report.as_dict(made(fits))))


def test_a_task_is_not_compiled(compiler):
    """`bert-jax compile` would compile another model: that of pretraining."""
    line = fits_check(load("glue", {"task.name": "sst2"}), ("finetune",), "v5e-16").probe()
    assert line.startswith("not compiled for v5e-16: ")
    assert not compiler.calls


def test_a_config_is_compiled_once(compiler):
    config = load("base")
    assert fits_check(config, COMMAND, "v5e-16").probe() == "fits v5e-16"
    compile_ = [sys.executable, "-m", "bert_jax", "compile"]
    flags = ["--config=base", "--config.data.store=gs://b/store", "--topology=v5e-16", "--json"]
    assert compiler.calls == [[*compile_, *flags]]
    assert fits_check(config, COMMAND, "v5e-16").probe() == "fits v5e-16, as compiled before"
    assert len(compiler.calls) == 1


@pytest.mark.parametrize("change", ["config", "topology", "compiler"])
def test_anything_else_is_compiled_again(compiler, monkeypatch, change):
    config, slices = load("base"), "v5e-16"
    fits_check(config, COMMAND, slices).probe()
    if change == "config":
        config = dataclasses.replace(config, seed=config.seed + 1)
    if change == "topology":
        slices = "v5e-32"
    if change == "compiler":
        monkeypatch.setattr(topology, "version", lambda: "0.0.99")
    assert fits_check(config, COMMAND, slices).probe() == f"fits {slices}"
    assert len(compiler.calls) == 2


def test_what_does_not_fit_is_refused_with_what_would_help(compiler):
    compiler.out, compiler.code = said(fits=False), 1
    for _ in range(2):  # it is not cached
        with pytest.raises(CheckFailedError) as error:
            fits_check(load("base"), COMMAND, "v5e-16").probe()
        assert str(error.value) == (
            "phase 0 does not fit the memory of v5e-16; try --config.phases[0].micro_batches=4; "
            "`bert-jax compile` shows what uses it"
        )


def test_what_cannot_be_compiled_is_one_line(compiler):
    compiler.out, compiler.code = "", 1
    compiler.err = "warning: something\nerror: config.mesh (data=3) does not fit 16 devices\n"
    with pytest.raises(UserError, match=r"^config.mesh \(data=3\) does not fit 16 devices$"):
        fits_check(load("base"), COMMAND, "v5e-16").probe()


def test_without_the_compiler_the_line_says_so(monkeypatch):
    monkeypatch.delenv(topology.LIBTPU_VARIABLE, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = fits_check(load("base"), COMMAND, "v5e-16").probe()
    assert line.startswith("not compiled for v5e-16: the TPU compiler, libtpu, is not installed")
