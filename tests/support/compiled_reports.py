"""What the compiler reports, made by hand."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bert_jax import cli
from bert_jax.aot import report_data
from bert_jax.aot.cost.analysis import Analysis
from bert_jax.aot.cost.collectives import Traffic
from bert_jax.aot.cost.cycles import Line, Operation, Share
from bert_jax.aot.cost.memory import GIB, Memory
from bert_jax.aot.cost.roofline import Copies, Unestimated
from bert_jax.aot.hlo.sources import Source
from bert_jax.aot.memory_advice import Remedy
from bert_jax.config.config_files import load
from bert_jax.hardware import slices
from bert_jax.metrics.flops import step_flops

ROOT = Path(__file__).resolve().parents[2]


def analysis(**changes: Any) -> Analysis:
    """Ten milliseconds of a chip's work, handmade."""
    source = Source("attention", "forward", "model/attention.py:31")
    whole = Analysis(
        cycles=12_000_000,
        compute_seconds=8e-3,
        unestimated_seconds=0.5e-3,
        collective_seconds=3e-3,
        exposed_seconds=1.5e-3,
        shares=(Share("attention", "forward", 9_000_000), Share("heads", "backward", 3_000_000)),
        lines=(Line(source, 9_000_000, 24),),
        operations=(
            Operation("main", "fusion.1", "fusion", "dot", "bf16[8]", source, 375_000, 24),
        ),
        unestimated=(Unestimated("sort", 2, 10**6, 0, 0.5e-3),),
        copies=Copies(3, 10**6, 1e-6),
        collectives=(
            Traffic("all-reduce", ("data",), 16, False, "ici", True, 28, 3 * 2**20, 5e6, 3e-3),
        ),
        trips={"while.1": 12},
    )
    return dataclasses.replace(whole, **changes)


def made(
    fits: bool = True, found: Analysis | None = None, config: str = "base"
) -> report_data.Report:
    whole, of = load(config), slices.find("v5e-16")
    limit = of.generation.accelerator.usable_bytes
    memory = Memory(GIB, 2 * GIB, 10**6, (3 if fits else 30) * GIB, 0, limit, fits)
    advice = () if fits else (Remedy({"phases[0].micro_batches": 4}, 12 * GIB),)
    phase = whole.phases[0]
    one = report_data.PhaseReport(
        0, phase, memory, advice, (found or analysis()) if fits else None, 60.0,
        step_flops(whole, phase), of.devices * of.generation.accelerator.bf16_flops,
    )  # fmt: skip
    mesh = {"slice": 1, "data": 16, "fsdp": 1, "tensor": 1}
    return report_data.Report(config, whole, of, mesh, "libtpu 0.0.42.1", (one,))


def refused_here(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Runs `compile` in this process; returns its exit code and the last line of its errors."""
    code = cli.main(["compile", *words])
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return code, err.splitlines()[-1]


def compile_for(*words: str, timeout: int = 900) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "bert_jax", "compile", *words],
        env=environment, capture_output=True, text=True, check=False, timeout=timeout,
    )  # fmt: skip
