"""The checkpoints of a run as they lie on disk: which there are, and why each is kept.

Needs neither JAX nor Orbax, so that `bert-jax status` answers at once. `checkpoint.py` writes what
is read here, and removes what `reasons` gives no reason for.
"""

import bisect
import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from etils import epath

from bert_jax.config import CheckpointConfig
from bert_jax.errors import UserError
from data_pipeline.buckets import absolute

FORMAT_VERSION = 2  # of `meta`; 1 had one phase and called the pair head nsp


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint: updates done, and the held-out loss if it was evaluated when it was saved."""

    step: int
    loss: float | None


def folder_of(workdir: epath.PathLike) -> epath.Path:
    return absolute(workdir) / "checkpoints"


def complete_steps(workdir: epath.PathLike) -> list[int]:
    """The steps of all complete checkpoints, ascending."""
    folder = folder_of(workdir)
    if not folder.exists():
        return []
    names = (path for path in folder.iterdir() if path.name.isdigit())
    return sorted(int(path.name) for path in names if (path / "commit_success.txt").exists())


def read_meta(workdir: epath.PathLike, step: int) -> dict[str, Any]:
    """What a checkpoint says of itself: format_version, step, phase, evaluation, config, data.

    Raises:
        UserError: another version of this program wrote it in another format.
    """
    meta = json.loads((folder_of(workdir) / str(step) / "meta" / "metadata").read_text())
    if meta["format_version"] != FORMAT_VERSION:
        raise UserError(
            f"{workdir}: its checkpoint of step {step} has format {meta['format_version']}, this "
            f"program reads format {FORMAT_VERSION}; use the version that wrote it, or train anew "
            "in a new --workdir"
        )
    return meta


def saved_of(meta: dict[str, Any]) -> Saved:
    evaluation = meta["evaluation"]
    return Saved(meta["step"], evaluation["loss"] if evaluation else None)


def list_saved(workdir: epath.PathLike) -> list[Saved]:
    """All complete checkpoints, by step."""
    return [saved_of(read_meta(workdir, step)) for step in complete_steps(workdir)]


def best_by_phase(saved: Iterable[Saved], phase_ends: Sequence[int]) -> dict[int, int]:
    """Phase -> the step with the lowest held-out loss of its checkpoints, the later of equals.

    Losses of phases are not compared: another length is another task.
    """
    best: dict[int, tuple[float, int]] = {}
    for one in saved:
        if one.loss is None or not math.isfinite(one.loss):
            continue
        phase = bisect.bisect_left(phase_ends, one.step)
        rank = (one.loss, -one.step)
        best[phase] = min(best.get(phase, rank), rank)
    return {phase: -negative for phase, (_, negative) in best.items()}


def reasons(
    saved: Sequence[Saved], config: CheckpointConfig, phase_ends: Sequence[int]
) -> dict[int, list[str]]:
    """Step -> why its checkpoint is kept; without a reason it is removed at the next save."""
    steps = sorted(one.step for one in saved)
    why: dict[int, list[str]] = {step: [] for step in steps}
    for step in steps[-config.keep :]:
        why[step].append("newest" if step == steps[-1] else f"newest {config.keep}")
    for step in steps:
        if config.keep_every_steps and step % config.keep_every_steps == 0:
            why[step].append(f"every {config.keep_every_steps} steps")
        if step in phase_ends:
            why[step].append(f"end of phase {phase_ends.index(step) + 1}")
    if config.keep_best:
        for phase, step in best_by_phase(saved, phase_ends).items():
            why[step].append(f"best of phase {phase + 1}")
    return why
