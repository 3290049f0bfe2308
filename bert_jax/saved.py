"""The checkpoints of a run as they lie on disk: which there are, and why each is kept.

    <workdir>/checkpoints/STEP/      complete: it holds a commit marker, written last
             quarantine/STEP[-N]/    one that was not what had been saved, moved out of the way
                        STEP[-N].txt why

Needs neither JAX nor Orbax, so that `bert-jax status` answers at once. `checkpoint.py` writes what
is read here, and removes what `reasons` gives no reason for.
"""

import bisect
import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from etils import epath

from bert_jax.config import CheckpointConfig
from bert_jax.errors import StorageError
from data_pipeline.buckets import absolute

# Of `meta`; 1 had one phase and called the pair head nsp, 2 had no fingerprints.
FORMAT_VERSION = 3
MARKER = "commit_success.txt"
# What TensorStore and the clients of buckets say of a storage that does not serve them.
_AWAY = re.compile("PERMISSION_DENIED|UNAUTHENTICATED|UNAVAILABLE|DEADLINE_EXCEEDED")

# What TensorStore says about itself before and after what is wrong.
_NOISE = re.compile(r"Error opening \"\w+\" driver: | \[\w+(\[\d+\])?='.*", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint: updates done, and the held-out loss if it was evaluated when it was saved."""

    step: int
    loss: float | None


@dataclasses.dataclass(frozen=True)
class Quarantined:
    """A checkpoint that was moved out of the way: its folder there, and why."""

    folder: str
    reason: str


class DamagedError(StorageError):
    """A checkpoint that is not what was saved."""

    def __init__(self, folder: epath.Path, reason: str):
        super().__init__(f"{folder}: damaged: {reason}")
        self.reason = reason


def folder_of(workdir: epath.PathLike) -> epath.Path:
    return absolute(workdir) / "checkpoints"


def quarantine_of(workdir: epath.PathLike) -> epath.Path:
    return absolute(workdir) / "quarantine"


def all_steps(workdir: epath.PathLike) -> list[int]:
    """The steps that something in the folder of checkpoints is named after, ascending."""
    folder = folder_of(workdir)
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir()]
    return sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)


def complete_steps(workdir: epath.PathLike) -> list[int]:
    """The steps of all checkpoints that were written to their end, ascending."""
    folder = folder_of(workdir)
    return [step for step in all_steps(workdir) if (folder / str(step) / MARKER).exists()]


def sealed(meta: Mapping[str, Any]) -> dict[str, Any]:
    """`meta` with the digest of its content, so that it cannot change unseen."""
    meta = json.loads(json.dumps(meta))
    return {**meta, "digest": _digest(meta)}


def read_meta(workdir: epath.PathLike, step: int) -> dict[str, Any]:
    """What a checkpoint says of itself: step, phase, evaluation, config, data, fingerprints, …

    Raises:
        DamagedError: it is not complete, or this is not what was written, or not of this step, or
            another version of this program wrote it in another format.
        StorageError: the storage does not serve it.
    """
    folder = folder_of(workdir) / str(step)
    try:
        return _read_meta(folder, step)
    except Exception as error:  # of any library that reads from storage
        raise unreadable(folder, error) from error


def unreadable(folder: epath.Path, error: Exception, what: str = "") -> StorageError:
    """What to raise where a checkpoint cannot be read: is it damaged, or the storage out of reach?

    Nothing is wrong with a checkpoint that may not be read, or not now. `what` says what is.
    """
    away = isinstance(error, PermissionError | TimeoutError | ConnectionError | MemoryError)
    if away or _AWAY.search(str(error)):
        return StorageError(f"{folder}: cannot be read ({in_a_line(error)}); nothing was changed")
    return DamagedError(folder, f"{what} ({in_a_line(error)})" if what else in_a_line(error))


def in_a_line(error: BaseException) -> str:
    """What an error says, on one line that can still be read."""
    said = str(getattr(error, "strerror", None) or error or type(error).__name__)
    said = " ".join(_NOISE.sub("", said).split())
    return said if len(said) <= 300 else f"{said[:150]} … {said[-150:]}"


def _read_meta(folder: epath.Path, step: int) -> dict[str, Any]:
    if not folder.is_dir():
        raise ValueError("not a folder")
    if not any(folder.iterdir()):
        raise ValueError("an empty folder")
    if not (folder / MARKER).exists():
        raise ValueError(f"no {MARKER} in it, so it was not written to its end")
    file = folder / "meta" / "metadata"
    if not file.exists():
        raise ValueError("no meta/metadata in it")
    try:
        meta = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        raise ValueError("its meta/metadata is not JSON") from None
    if not isinstance(meta, dict) or "format_version" not in meta:
        raise ValueError("its meta/metadata does not say its format_version")
    if meta["format_version"] != FORMAT_VERSION:
        raise ValueError(
            f"it has format {meta['format_version']!r:.20}, this program reads format "
            f"{FORMAT_VERSION}: use the version that wrote it, or train anew in a new --workdir"
        )
    if meta.pop("digest", None) != _digest(meta):
        raise ValueError("its meta/metadata is not what was written")
    if meta["step"] != step:
        raise ValueError(f"it is of step {meta['step']}")
    return meta


def _digest(meta: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def health(workdir: epath.PathLike) -> dict[int, str]:
    """Step -> what is wrong with its checkpoint as far as can be told without reading arrays.

    An empty text where nothing is.
    """
    return {step: _trouble(workdir, step) for step in all_steps(workdir)}


def _trouble(workdir: epath.PathLike, step: int) -> str:
    try:
        read_meta(workdir, step)
    except DamagedError as error:
        return error.reason
    return ""


def list_quarantined(workdir: epath.PathLike) -> list[Quarantined]:
    """What was moved out of the way, by name."""
    folder = quarantine_of(workdir)
    if not folder.is_dir():
        return []
    reasons_of = {path.stem: path for path in folder.iterdir() if path.suffix == ".txt"}
    return [
        Quarantined(path.name, reasons_of[path.name].read_text().strip())
        if path.name in reasons_of
        else Quarantined(path.name, "")
        for path in sorted(folder.iterdir())
        if path.suffix != ".txt"
    ]


def saved_of(meta: dict[str, Any]) -> Saved:
    evaluation = meta["evaluation"]
    return Saved(meta["step"], evaluation["loss"] if evaluation else None)


def list_saved(workdir: epath.PathLike) -> list[Saved]:
    """All checkpoints that nothing seems to be wrong with (see `health`), by step."""
    saved = []
    for step in all_steps(workdir):
        with suppress(DamagedError):
            saved.append(saved_of(read_meta(workdir, step)))
    return saved


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
