"""An ablation whose workdir is in a bucket, and a run of it that was started with another command.

Its state is in the workdirs, so it counts whoever made a run.
"""

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path

import ablated
import pytest
from corpus import small_store
from gcs_emulator import Emulator

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.xdist_group("ablation"),
    pytest.mark.skipif(
        not importlib.util.find_spec("gcsfs"), reason="needs gcsfs: pip install 'bert-jax[gcs]'"
    ),
]
LIMIT = 900  # seconds


def typed(server: Emulator, *words: str) -> str:
    """Returns what a command of bert-jax prints; it succeeds."""
    done = subprocess.run(
        [sys.executable, "-m", "bert_jax", *words],
        env=os.environ | server.env | {"JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_runs_in_a_bucket_count_whatever_command_made_them(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", documents=60, held_out=20, repeat=True)
    file = ablated.write(tmp_path, seeds=(0,), **{"phases[0]__steps": 20})
    with Emulator("bucket") as server:
        words = [word.replace(f"--workdir={tmp_path}/A", "--workdir=gs://bucket/A")
                 for word in ablated.words(file, store, tmp_path / "A")]  # fmt: skip
        first = typed(server, *words, "--plan", "--commands").splitlines()[0]
        assert "--workdir=gs://bucket/A/runs/token/0" in first
        job = ["launch", "local", "run", "--processes=1"]
        typed(server, *job, *shlex.split(first)[1:], "--cpu_devices=1")
        said = typed(server, *words)
        assert [f"{name}: launch" in said for name in ("token/0", "span/0")] == [False, True]
        assert [f"{name}: evaluate" in said for name in ("token/0", "span/0")] == [True, True]
        again = typed(server, *words)
        assert ": launch" not in again + said.split("span/0: launch")[1]
        assert ": evaluate" not in again
        said = typed(server, "ablate", "report", "--workdir=gs://bucket/A")
        assert "2 of 2 runs trained and measured" in said
        names = server.names("bucket", "A/")
        for name in ("ablation.json", "differences.csv", "report.html", "report.json", "report.md"):
            assert f"A/{name}" in names
        page = server.read("bucket", "A/report.html").decode()
        line = next(line for line in page.splitlines() if " ablate run --" in line)
        assert all(word in line for word in words)
    assert not (tmp_path / "A").exists()
