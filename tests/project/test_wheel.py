"""What an installed wheel has and leaves alone."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
from configs import base

def get_config():
    config = base.get_config()
    config.data.store = "/nowhere"
    return config
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    subprocess.run(["git", "clone", "--quiet", ROOT, sources], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*command, "--no-build-isolation", "-w", folder, sources], check=True)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture
def installed(wheel, tmp_path) -> Path:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*command, "--target", tmp_path / "site", wheel], check=True)
    (tmp_path / "mine.py").write_text(CONFIG)
    return tmp_path / "site"


def pretrain(folder: Path, path: str) -> tuple[int, str]:
    words = ["pretrain", "--config=mine.py", "--workdir=run", "--cpu_devices=1"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bert_jax", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.processes
def test_a_wheel_puts_nothing_but_bert_jax_into_site_packages(wheel) -> None:
    with zipfile.ZipFile(wheel) as files:
        tops = {name.split("/")[0] for name in files.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"bert_jax"}


@pytest.mark.slow
@pytest.mark.processes
def test_a_users_config_file_imports_the_shipped_ones_as_configs(installed, tmp_path) -> None:
    code, said = pretrain(tmp_path, str(installed))
    assert (code, said.count("\n")) == (1, 1)
    assert said.startswith("error: /nowhere: not a token store")


@pytest.mark.slow
@pytest.mark.processes
def test_a_users_own_package_configs_goes_first(installed, tmp_path) -> None:
    (tmp_path / "own" / "configs").mkdir(parents=True)
    (tmp_path / "own" / "configs" / "base.py").write_text(
        "def get_config():\n    raise OSError('of mine')\n"
    )
    code, said = pretrain(tmp_path, os.pathsep.join([str(installed), str(tmp_path / "own")]))
    assert code == 1
    assert "get_config() failed (OSError: of mine)" in said


# A project whose modules have the names of folders of this repository.
PROJECT = ("configs/__init__.py", "data_pipeline/__init__.py", "launch.py")
SMALL = {
    "model.hidden_size": 32,
    "model.num_hidden_layers": 1,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 64,
    "model.vocab_size": 120,
    "phases[0].steps": 2,
    "phases[0].batch_size": 8,
    "evaluation.batches": 1,
}
NOTEBOOK = f"""
import configs, data_pipeline, launch
assert configs.MINE and data_pipeline.MINE and launch.MINE
import bert_jax
texts = [f"The cat of house {{i}} sat down. It purred {{i}} times." for i in range(60)]
store = bert_jax.build_store(texts, "store", vocab_size=120, progress=False)
config = bert_jax.config("mine.py", {SMALL} | {{"model.vocab_size": store.vocab_size}})
bert_jax.pretrain(config, "run")
bert_jax.export("run", "exported")
print(bert_jax.load("exported").config.hidden_act, store.vocab_size)
"""


@pytest.mark.slow
@pytest.mark.processes
def test_a_project_with_modules_of_the_same_names_works(installed, tmp_path) -> None:
    """In a notebook, whose folder is first on sys.path, and under python -m."""
    project = tmp_path / "project"
    for name in PROJECT:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("MINE = True\n")
    page = (ROOT / "docs" / "configs.md").read_text("utf-8")
    file = re.search(r"## Your own config file\n\n```python\n(.*?)```", page, re.DOTALL)
    (project / "mine.py").write_text(file[1])

    def python(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=project,
            env={**os.environ, "PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    act, size = python("-c", NOTEBOOK).split()[-2:]
    assert act == "gelu_tanh"
    values = {**SMALL, "model.vocab_size": size}
    words = [f"--config.{key}={value}" for key, value in values.items()]
    shown = python("-m", "bert_jax", "pretrain", "--config=mine.py", "--workdir=run", *words)
    assert "finished already, at step 2 in run" in shown
