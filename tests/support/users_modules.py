"""Modules of a user, each of which adds a row in one file, and commands that take them."""

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

LION = '''
"""Optimizer `lion` (Chen et al. 2023), as optax has it."""

import optax

from bert_jax.config.optimizers import OPTIMIZERS
from bert_jax.optimizers.optimizer import Optimizer


def make(config, axes, storage):
    return optax.scale_by_lion(config.b1, config.b2)


OPTIMIZERS.add("lion", Optimizer(make, moments=("mu",), counts=("count",)))
'''

REVIEWS = '''
"""Task `reviews`: a file for each text, in a folder for each class, as in aclImdb."""

from pathlib import Path

from bert_jax.finetune.tasks.examples import Example, Examples
from bert_jax.finetune.tasks.registry import KINDS
from bert_jax.finetune.tasks.text_task import CLASSIFICATION, TextTask


class Reviews(TextTask):
    def read(self, task):
        return texts(task.data, "train"), texts(task.data, "test")

    def read_new(self, task, source, split):
        return texts(source, split)


def texts(folder, split):
    names = ("neg", "pos")
    files = [path for name in names for path in sorted(Path(folder, split, name).glob("*.txt"))]
    examples = tuple(
        Example(path.stem, (path.read_text(),), names.index(path.parent.name), row)
        for row, path in enumerate(files, 1)
    )
    return Examples(folder, "reviews", names, examples, {})


KINDS.add(
    "reviews",
    Reviews(
        name="reviews",
        objectives=CLASSIFICATION.objectives,
        problem_type=CLASSIFICATION.problem_type,
        of_tables=("accuracy",),
        settings=(),
    ),
)
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
