"""The layout of the folder of an ablation, on a disk or in a bucket.

A/ablation.json              what was planned, see `record.py`
A/commands/DIGEST            the line of each `ablate run` that was typed
A/runs/VARIANT/SEED/         an ordinary workdir of `bert-jax pretrain`
A/runs/VARIANT/SEED/tasks/NAME/      the same run fine-tuned for a task, a workdir of `finetune`
A/runs/VARIANT/SEED/tasks/NAME.npz   the values of its held-out examples
A/runs/VARIANT/SEED.lock     locked by the `ablate run` that makes the run
A/runs/VARIANT/SEED.npz      its held-out values, see `training/per_example.py`
A/report.html …              see `report_files.py`
"""

import dataclasses

from etils import epath

from bert_jax.ablation import tasks
from bert_jax.ablation.spec import Run
from bert_jax.storage.remote import absolute
from bert_jax.workdir.layout import Workdir


@dataclasses.dataclass(frozen=True)
class AblationDir:
    """The paths of an ablation; its text is the absolute path of the folder."""

    path: epath.Path
    record: epath.Path
    commands: epath.Path
    runs: epath.Path
    report: epath.Path  # the page; beside it are report.json and report.md
    differences: epath.Path

    @classmethod
    def open(cls, folder: epath.PathLike) -> "AblationDir":
        """Returns the paths in a folder, where nothing has to exist yet.

        Raises:
            UserError: it is in a bucket whose client is not installed.
        """
        path = absolute(folder)
        files = ("ablation.json", "commands", "runs", "report.html", "differences.csv")
        return cls(path, *(path / name for name in files))

    def run(self, run: Run, task: str = "") -> Workdir:
        """Returns the workdir of a run, or of the same run fine-tuned for a task: its measure."""
        return Workdir.open(self._place(run, task))

    def values(self, run: Run, task: str = "") -> epath.Path:
        """Returns the file of its held-out values."""
        place = self._place(run, task)
        return place.with_name(f"{place.name}.npz")

    def lock(self, run: Run) -> epath.Path:
        """Returns the file that is locked while `ablate run` makes a run."""
        return self.runs / f"{run.name}.lock"

    def _place(self, run: Run, task: str) -> epath.Path:
        own = self.runs / run.name
        return own / "tasks" / task.removeprefix(tasks.PREFIX) if task else own

    def __str__(self) -> str:
        return str(self.path)
