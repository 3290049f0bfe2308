"""The lines of Python in docs/data.md that turn rows with a text into a source `lines`."""

import csv
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.data_pipeline.sources import find, parse_source, read

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]
LONG = ["A rather long text consists of many sentences."] * 4000
TEXTS = [
    "One, of \u201cthe first\u201d. Two.",
    "Three\nof the second row! Four? Five.",
    "Six.",
    " ".join(LONG),
]
SENTENCES = [
    "One, of \u201cthe first\u201d.\nTwo.",
    "Three\nof the second row!\nFour?\nFive.",
    "Six.",
    "\n".join(LONG),
]


def snippets() -> dict[str, str]:
    """Name of the module that reads the rows -> the lines."""
    page = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    section = page.partition("### Text in other forms\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return {
        re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE)[0]: block
        for block in blocks
        if "text.txt" in block  # the others call bert_jax: tests/project/test_readme.py runs them
    }


def write_rows(folder: Path) -> None:
    with (folder / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *enumerate(TEXTS)])
    lines = [json.dumps({"text": text}) + "\n" for text in TEXTS]
    (folder / "rows.jsonl").write_text("".join(lines), encoding="utf-8")
    if importlib.util.find_spec("pyarrow"):
        import pyarrow.parquet

        table = pyarrow.table({"text": TEXTS, "id": range(len(TEXTS))})
        pyarrow.parquet.write_table(table, folder / "rows.parquet", row_group_size=2)


def test_every_form_has_its_lines() -> None:
    assert set(snippets()) == {"csv", "json", "pyarrow", "datasets"}


@pytest.mark.parametrize("module", ["csv", "json", "pyarrow", "datasets"])
def test_the_lines_make_documents_of_sentences(module: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    write_rows(tmp_path)
    text = snippets()[module]
    if module == "datasets":  # a folder takes the place of a name on the hub
        (tmp_path / "hub").mkdir()
        (tmp_path / "rows.jsonl").rename(tmp_path / "hub/train.jsonl")
        text = text.replace('"OWNER/NAME"', '"hub"')
    program = [sys.executable, "-c", text]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    source = parse_source(f"lines:{tmp_path / 'text.txt'}")
    (path,) = find(source).files
    assert [document.text for document in read(source, path)] == SENTENCES
