"""Modules of a user, each of which adds a row in one file, and commands that take them.

The modules are those of docs/extending.md.
"""

import re
from pathlib import Path

import pytest
from rows import without_users_rows

from bert_jax import cli

# The flags of a run that takes seconds, with a store of `small_store` in "store".
SMALLEST = (
    "--config=tiny", "--config.data.store=store", "--config.model.hidden_size=32",
    "--config.model.intermediate_size=64", "--config.model.max_position_embeddings=32",
    "--config.phases[0].steps=2", "--config.phases[0].batch_size=8",
    "--config.phases[0].seq_length=32", "--config.phases[0].max_predictions=5", "--workdir=run",
)  # fmt: skip
PAGE = Path(__file__).parents[2] / "docs/extending.md"
_ON_PAGE = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL))
THIRDS, LION = _ON_PAGE["thirds"], _ON_PAGE["lion"]
SUBTITLES, REVIEWS = _ON_PAGE["subtitles"], _ON_PAGE["reviews"]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """The exit code of a command in which no module was executed before, and what it says."""
    capsys.readouterr()
    with without_users_rows():
        code = cli.main([*map(str, words)])
    return code, "".join(capsys.readouterr())


def error(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The line of the error with which a command fails."""
    code, said = command(capsys, *words)
    assert code == 1, said
    (line,) = (line for line in said.splitlines() if line.startswith("error: "))
    return line.removeprefix("error: ")
