"""Golden files of refusals: every input and, indented below it, the line that answers it."""

import os
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "goldens" / "refusals"
WRITE = "BERT_JAX_WRITE_REFUSALS"


def check(name: str, answer: Callable[[str], str]) -> None:
    """AssertionError where an input of the file is answered otherwise than it says."""
    path = FOLDER / f"{name}.txt"
    golden = path.read_text(encoding="utf-8")
    inputs = [line for line in golden.splitlines() if not line.startswith(" ")]
    said = "".join(f"{line}\n    {answer(line)}\n" for line in inputs)
    if WRITE in os.environ:
        path.write_text(said, encoding="utf-8")
    assert said == golden, f"if the change is meant: run this test with {WRITE}=1, commit {path}"
