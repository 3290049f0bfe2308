"""The layout of a workdir, the folder of a run, on a disk or in a bucket.

`config.json` marks a workdir: it is written before anything else (except the lock, and what a time
budget measures and counts), and a folder that has other content but no `config.json` is refused
before anything in it changes.
"""

import dataclasses
import re
from pathlib import Path

from etils import epath

from bert_jax.storage.hub import is_hub
from bert_jax.storage.remote import absolute, is_remote, open_path, storage_errors

SCRATCH = ".time_budget.tmp"  # folder of a checkpoint that only measures how long one takes
# Names in a folder without config.json that is free nevertheless: the lock, the counted words and
# temporary files of a run that died before it wrote config.json, the files of its launcher, and the
# lost+found of a new file system.
MAY_PRECEDE_CONFIG = re.compile(
    rf"|\.lock|\.(config\.json|tokenizer\.json|word_start\.npz)\.(\d+\.)?tmp|{re.escape(SCRATCH)}"
    r"|word_start\.npz|launch|lost\+found"
)


@dataclasses.dataclass(frozen=True)
class Workdir:
    """The paths of a run; its text is the folder as the user gave it, for messages."""

    path: epath.Path
    # The run's id and configuration, the digests of its training data, the versions and devices it
    # last ran with, checkpoints that it adopted, the steps that a time budget decided.
    config_json: epath.Path
    tokenizer: epath.Path  # of the store, as it will be exported
    word_start: epath.Path  # what the words start from, counted in the store
    teacher: epath.Path  # what the teacher of a task says of its training examples
    checkpoints: epath.Path  # a folder for each step, see `catalog`
    quarantine: epath.Path  # damaged checkpoints, and those of other runs
    metrics: epath.Path  # records of training; in a bucket metrics-00001.jsonl, …
    evaluations: epath.Path  # records of `bert-jax evaluate`
    tensorboard: epath.Path
    profile: epath.Path  # traces of `bert-jax pretrain --profile`
    lock: epath.Path  # locked while a trainer runs

    @classmethod
    def open(cls, folder: epath.PathLike) -> "Workdir":
        """Returns the paths in a folder, where nothing has to exist yet.

        Raises:
            UserError: it is in a bucket whose client is not installed.
        """
        path, full = open_path(folder), absolute(folder)  # Orbax refuses relative paths
        return cls(
            path=path,
            config_json=path / "config.json",
            tokenizer=path / "tokenizer.json",
            word_start=path / "word_start.npz",
            teacher=path / "teacher_outputs.npz",
            checkpoints=full / "checkpoints",
            quarantine=full / "quarantine",
            metrics=path / "metrics.jsonl",
            evaluations=path / "evaluations.jsonl",
            tensorboard=path / "tensorboard",
            profile=path / "profile",
            lock=path / ".lock",
        )

    def is_run(self) -> bool:
        """Returns whether there are checkpoints; UserError if the bucket cannot be read."""
        with storage_errors(self.path):
            return self.checkpoints.is_dir()

    @property
    def name(self) -> str:
        """The folder's own name, also where it was given as "."."""
        return self.checkpoints.parent.name

    def __str__(self) -> str:
        return str(self.path)


def split_step(source: str) -> tuple[str, int | None]:
    """Splits `run@500` into the workdir and the step; the step is None if none is given, as of a
    model on the hub, which has revisions."""
    if is_hub(source):
        return source, None
    match = re.fullmatch(r"(.+)@(\d+)", source)
    if match and (is_remote(source) or not Path(source).exists()):
        return match[1], int(match[2])
    return source, None
