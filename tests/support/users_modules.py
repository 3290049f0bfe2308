"""Modules of a user, each of which adds a row in one file, and commands that take them."""

from pathlib import Path

import pytest
from rows import without_users_rows

from bert_jax import cli

THIRDS = '''
"""Masking `every_third`: each third token of an example."""

from bert_jax.data_pipeline.masking.mode import Mode
from bert_jax.data_pipeline.masking.settings import MODES
from bert_jax.data_pipeline.random.numba_jit import compiled


@compiled
def select(key, rule, scratch, count, wanted):
    taken = 0
    for k in range(0, count, 3):
        if taken < wanted:
            scratch.marked[k] = 1
            scratch.chosen[taken] = k
            taken += 1
    return taken


MODES.add("every_third", Mode(select))
'''

SHOUTING = '''
"""Source kind `shouting`: files in capitals, each of which is a document in small letters."""

from bert_jax.data_pipeline.sources import KINDS, Document, Kind, finding


def find(spec):
    return finding.find(spec, lambda path: path.suffix == ".loud", "loud files (.loud)")


def read(spec, part):
    yield Document(part.path.read_text().lower())


KINDS.add("shouting", Kind(find, read, extensions=(".loud",)))
'''


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text.lstrip())
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
