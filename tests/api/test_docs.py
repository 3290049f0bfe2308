"""The pages about Python: docs/api.md is up to date, the notebook runs."""

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
NOTEBOOK = DOCS / "notebooks" / "first_hour.ipynb"
# What the test puts in place of a line of the notebook: four steps.
SHORTER = {
    '"phases[0].steps": 300,': '"phases[0].steps": 4, "phases[0].batch_size": 8,',
    "vocab_size=4000,": "vocab_size=500,",
}


def cells(kind: str) -> list[dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text("utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_the_page_of_the_api_is_that_of_the_docstrings():
    script = DOCS / "make_api.py"
    made = runpy.run_path(str(script))["page"]()
    assert made == (DOCS / "api.md").read_text("utf-8"), f"run: python {script}"


def test_the_page_has_every_name():
    headings = re.findall(r"^### (\w+)$", (DOCS / "api.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(headings) == sorted(set(bert_jax.__all__) - {"__version__"})


def test_the_notebook_is_stored_without_results():
    assert all(not cell["outputs"] and not cell["execution_count"] for cell in cells("code"))


def test_the_links_of_the_notebook_lead_somewhere():
    text = "".join("".join(cell["source"]) for cell in cells("markdown"))
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (NOTEBOOK.parent / target).exists(), target


@pytest.mark.slow
@pytest.mark.processes
def test_the_notebook_runs(tmp_path):
    """Its cells one after another in one program; the last expression of each is shown."""
    code = "\n\n".join("".join(cell["source"]) for cell in cells("code"))
    for line, shorter in SHORTER.items():
        assert code.count(line) == 1, line
        code = code.replace(line, shorter)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "unknown key config.phases[0].batchsize; did you mean phases[0].batch_size?" in done.stdout
    )
    assert re.search(r"^step 4: [\d.]+ nats per mask", done.stdout, re.MULTILINE)
    assert (tmp_path / "exported" / "model.safetensors").exists()
