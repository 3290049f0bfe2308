"""A step of two networks beside both alone, at BERT-base's sizes by the TPU compiler."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tpu_compiler import needs_libtpu

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly
@pytest.mark.processes
@needs_libtpu
@pytest.mark.parametrize("pair", ["distil", "electra"])
def test_two_networks_cost_little_more_than_both_alone(pair: str) -> None:
    words = [sys.executable, "benchmarks/two_networks.py", f"--only={pair}"]
    done = subprocess.run(
        words, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=3600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (*_, whole) = done.stdout.strip().splitlines()
    assert whole.startswith("a step of ")
    assert 1 < float(whole.split()[-1]) <= 1.05
