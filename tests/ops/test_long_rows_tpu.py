"""The cost of a layer with a window, through the TPU compiler; needs libtpu, but no TPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tpu_compiler import needs_libtpu

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks/long_rows.py"


@pytest.mark.nightly
@needs_libtpu
@pytest.mark.processes
def test_a_local_layer_costs_what_it_sees() -> None:
    """Rows of 8,192 tokens beside eight times as many of 1,024."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--windows=128", "--json"],
        env={**os.environ, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    short, long = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert (short["length"], long["length"]) == (1024, 8192)
    assert long["cycles"] <= 1.25 * short["cycles"]
    assert long["temporaries"] <= 1.1 * short["temporaries"]
