"""The pages about Python: docs/api.md is up to date, the notebooks run."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bert_jax

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
ABLATION, FIRST_HOUR, TASK, TPU = NOTEBOOKS
# What the tests put in place of lines of the notebooks: four steps.
SHORTER = {
    '"phases[0].steps": 300,': '"phases[0].steps": 4, "phases[0].batch_size": 8,',
    "vocab_size=4000,": "vocab_size=500,",
}
SMALL = """"model.hidden_size": 32, "model.num_attention_heads": 2,
    "model.num_hidden_layers": 1, "model.intermediate_size": 64, "phases[0].batch_size": 8,"""
SHORTER_TASK = {
    '"phases[0].steps": 300,': f'"phases[0].steps": 4, {SMALL}',
    "run/checkpoints/300": "run/checkpoints/4",
    "vocab_size=4000,": "vocab_size=500,",
    '"--config=glue_small",': """"--config=glue_small", "--config.task.fewest_steps=1",
    "--config.task.most_steps=4", "--config.phases[0].seq_length=32",""",
}
SHORTER_ABLATION = {
    '"phases[0].steps": 150,': f"""{SMALL} "phases[0].steps": 4,
    "model.hidden_dropout_prob": 0.0, "model.attention_probs_dropout_prob": 0.0,""",
    "vocab_size=4000,": "vocab_size=500,",
    'base="demo",': 'base="tiny",',
    "seeds=range(3),": "seeds=range(1),",
}
# On eight CPU devices instead of a TPU's.
ON_CPU = {
    '%pip install --quiet "bert-jax[tpu,gcs] @ git+https://github.com/bert-jax/bert-jax"': "",
    "vocab_size=4000,": "vocab_size=500,",
    '"--config=demo",': """"--config=demo", "--cpu_devices=8", "--config.phases[0].steps=4",
    "--config.log_every_steps=1",
    "--config.phases[0].batch_size=16", "--config.model.hidden_size=32",
    "--config.model.num_attention_heads=2", "--config.model.intermediate_size=64",""",
}


def cells(notebook: Path, kind: str) -> list[dict[str, Any]]:
    found = json.loads(notebook.read_text("utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == kind]


_HANGS = 1800  # seconds after which a notebook is ended: far more than any takes


def run_notebook(notebook: Path, replaced: dict[str, str], folder: Path) -> str:
    """Its cells one after another in one program; returns what it prints."""
    code = "\n\n".join("".join(cell["source"]) for cell in cells(notebook, "code"))
    for line, other in replaced.items():
        assert code.count(line) == 1, line
        code = code.replace(line, other)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder, capture_output=True, text=True, check=False, timeout=_HANGS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_of_the_api_is_that_of_the_docstrings():
    script = DOCS / "make_api.py"
    made = runpy.run_path(str(script))["page"]()
    assert made == (DOCS / "api.md").read_text("utf-8"), f"run: python {script}"


def test_the_page_has_every_name():
    headings = re.findall(r"^### (\w+)$", (DOCS / "api.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(headings) == sorted(set(bert_jax.__all__) - {"__version__"})


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_results(notebook):
    assert all(
        not cell["outputs"] and not cell["execution_count"] for cell in cells(notebook, "code")
    )


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_links_of_a_notebook_lead_somewhere(notebook):
    text = "".join("".join(cell["source"]) for cell in cells(notebook, "markdown"))
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (notebook.parent / target).exists(), target


@pytest.mark.slow
@pytest.mark.processes
def test_the_first_hour_runs(tmp_path):
    printed = run_notebook(FIRST_HOUR, SHORTER, tmp_path)
    assert "unknown key config.phases[0].batchsize; did you mean phases[0].batch_size?" in printed
    assert re.search(r"^step 4: [\d.]+ nats per mask", printed, re.MULTILINE)
    assert (tmp_path / "exported" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.processes
def test_the_task_runs(tmp_path):
    printed = run_notebook(TASK, SHORTER_TASK, tmp_path)
    assert re.search(
        r"^fine-tuned: [\d.]+%\nmajority: [\d.]+%\nbag of words:", printed, re.MULTILINE
    )
    assert re.search(r"^(files|network|numbers|threads): [\d.]+%$", printed, re.MULTILINE)
    assert (tmp_path / "fields_exported" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.processes
def test_the_ablation_runs(tmp_path):
    printed = run_notebook(ABLATION, SHORTER_ABLATION, tmp_path)
    assert "no dropout" in printed
    report = json.loads((tmp_path / "dropout" / "report.json").read_text())
    assert sorted(report["runs"]) == ["dropout/0", "no dropout/0"]
    assert (tmp_path / "dropout" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.processes
def test_the_notebook_for_a_tpu_runs_on_eight_devices(tmp_path):
    """The second session resumes what the first could not finish."""
    ended = ON_CPU | {'TIME_LIMIT = "8h30m"': 'TIME_LIMIT = "26s"'}  # a second, and the grace
    assert "\nended with 42\n" in run_notebook(TPU, ended, tmp_path)
    again = run_notebook(TPU, ON_CPU, tmp_path)
    assert "step 4/4" in again
    assert "\ndone\n" in again
    assert (tmp_path / "exported" / "model.safetensors").exists()
