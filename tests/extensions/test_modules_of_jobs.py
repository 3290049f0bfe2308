"""A user's module is in every process of a job, on this machine and on the hosts of a backend."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import ablated
import pytest
from corpus import small_store
from launch_jobs import job
from rows import without_users_rows
from users_modules import SMALLEST, THIRDS, command, error, write

from bert_jax import cli
from bert_jax.launch import bundle
from bert_jax.launch.gke.backend import Gke
from bert_jax.launch.gke.manifest import config_map
from bert_jax.launch.slurm.backend import Slurm
from bert_jax.launch.tpu.submission import ROOT, at_root

BASE = "from bert_jax.configs.tiny import get_config\n"
SMALL = (*SMALLEST, "--config.data.masking=every_third")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small_store(tmp_path / "store", documents=60, held_out=20)
    write(tmp_path, "thirds.py", THIRDS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.processes
def test_it_is_in_every_process_of_a_job(folder: Path):
    start = [sys.executable, "-m", "bert_jax", "launch", "local", "run", "--processes=2"]
    words = ["pretrain", *SMALL, "--module=thirds.py", "--cpu_devices=1"]
    done = subprocess.run([*start, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads((folder / "run/config.json").read_text())["modules"]
    assert row["module"] == "thirds.py"


@pytest.mark.slow
@pytest.mark.processes
def test_processes_with_different_modules_do_not_start(folder: Path):
    start = [sys.executable, "-m", "bert_jax", "pretrain", *SMALL, "--cpu_devices=1"]
    place = ["--coordinator=localhost:29871", "--num_processes=2"]
    (folder / "b").mkdir()
    changed = write(folder / "b", "thirds.py", THIRDS + "\n# other\n")
    both = [
        subprocess.Popen(
            [*start, *place, f"--process_id={number}", f"--module={module}"],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, module in enumerate((folder / "thirds.py", changed))
    ]
    said = [process.communicate(timeout=300)[1] for process in both]
    assert all(process.returncode for process in both)
    assert any("differ in --module: thirds.py (sha256 " in text for text in said), said


@pytest.mark.parametrize("backend", [Slurm(), Gke(image="x")], ids=["slurm", "gke"])
def test_it_travels_to_the_hosts(folder: Path, backend):
    made = bundle.make("1.0", None, [folder / "thirds.py"], checkout=None)
    words = ("pretrain", "--config=tiny", "--module=thirds.py", "--workdir=/shared/b1")
    of = job(command=words, bundle=dataclasses.replace(made, has_code=False))
    assert of.words("/job")[2] == "--module=/job/modules/0/thirds.py"
    assert (
        at_root(f"--module={ROOT}/modules/0/thirds.py", "/r") == "--module=/r/modules/0/thirds.py"
    )
    if isinstance(backend, Gke):
        assert THIRDS.lstrip() in config_map(of)["data"].values()
    else:
        files = backend.render(of).files
        assert f"--module={of.folder}/{made.name}/modules/0/thirds.py" in files["batch.sh"]
        assert files[f"{made.name}.tar"] == made.archive


def test_the_launcher_reads_it_and_sends_it(folder: Path, capsys, monkeypatch):
    monkeypatch.setattr(bundle, "checkout_of", lambda module: None)
    flags = ("--name=b1", "--dry_run", "--allow_dirty", "--out=rendered", "--nodes=2")
    words = ("launch", "slurm", "run", *flags, "pretrain", *SMALL)
    assert "config.data.masking='every_third'; valid: " in error(capsys, *words)
    code, said = command(capsys, *words, "--module", "thirds.py")
    assert code == 0, said
    assert "/modules/0/thirds.py" in (folder / "rendered/batch.sh").read_text()


def test_the_runs_of_an_ablation_have_it(folder: Path, capsys):
    variants = {"token": {}, "thirds": {"data.masking": "every_third"}}
    file = ablated.write(folder, variants=variants, measures=("single/token",))
    words = ("ablate", "run", f"--config={file}", "--config.store=store", "--workdir=A")
    assert "config.data.masking='every_third'" in error(capsys, *words, "--plan")
    code, said = command(capsys, *words, "--plan", "--commands", "--module=thirds.py")
    assert code == 0, said
    lines = [line for line in said.splitlines() if " pretrain " in line]
    assert len(lines) == 6
    assert all(line.endswith(f"--module={folder}/thirds.py") for line in lines)


def test_rows_of_the_base_of_an_ablation_reach_what_measures_its_runs(folder: Path, capsys):
    """`evaluate` of a run executes no config file."""
    write(folder, "mine.py", THIRDS + BASE)
    variants = {"token": {}, "thirds": {"data.masking": "every_third"}}
    file = ablated.write(folder, variants=variants, measures=("single/token",))
    write(folder, file.name, file.read_text().replace('base="tiny"', 'base="mine.py"'))
    words = ("ablate", "run", f"--config={file}", "--config.store=store", "--workdir=A")
    code, said = command(capsys, *words, "--plan", "--commands")
    assert code == 0, said
    lines = [line for line in said.splitlines() if " pretrain " in line]
    assert len(lines) == 6
    assert all(line.endswith(f"--module={folder}/mine.py") for line in lines)


def test_an_ablation_knows_its_module(folder: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    from bert_jax.ablation import run

    monkeypatch.setattr(run.Runner, "run", lambda self: 1)
    variants = {"token": {}, "thirds": {"data.masking": "every_third"}}
    file = ablated.write(folder, variants=variants, measures=("single/token",))
    words = ("ablate", "run", f"--config={file}", "--config.store=store", "--workdir=A")
    with without_users_rows():
        cli.main([*words, "--module=thirds.py"])
    (row,) = json.loads((folder / "A/ablation.json").read_text())["modules"]
    assert row["row"] == "every_third"
    line = error(capsys, "ablate", "report", "--workdir=A")
    assert "made with --module=thirds.py" in line
    assert "no run has ended" in error(
        capsys, "ablate", "report", "--workdir=A", "--module=thirds.py"
    )
