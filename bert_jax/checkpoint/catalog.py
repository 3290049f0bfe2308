"""The checkpoints of a run as they lie on disk: which there are, and why each is kept.

    <workdir>/checkpoints/STEP/      complete: it holds a commit marker, written last
             quarantine/STEP[-N]/    one that was not what had been saved, moved out of the way
                        STEP[-N].txt why

Needs neither JAX nor Orbax, so that `bert-jax status` answers at once. `manager.py` writes what
is read here, and removes what `reasons` gives no reason for.
"""

import bisect
import dataclasses
import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from etils import epath

from bert_jax.config.schema import CheckpointConfig
from bert_jax.data_pipeline.storage.remote import (
    absolute,
    is_remote,
    is_retryable,
    is_special,
    is_storage_error,
    is_unreachable,
    reason,
    retry,
)
from bert_jax.errors import StorageError

# Of `meta`; 1 had one phase and called the pair head nsp, 2 had no fingerprints.
FORMAT_VERSION = 3
MARKER = "commit_success.txt"
# What TensorStore says about itself before and after what is wrong.
_NOISE = re.compile(r"Error opening \"\w+\" driver: | \[\w+(\[\d+\])?='.*", re.DOTALL)

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
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
    """The steps that something in the folder of checkpoints is named after, ascending.

    Raises StorageError where it cannot be listed, as all that look for checkpoints.
    """
    names = names_in(folder_of(workdir))
    return sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)


def complete_steps(workdir: epath.PathLike) -> list[int]:
    """The steps of all checkpoints that were written to their end, ascending."""
    folder = folder_of(workdir)
    return [step for step in all_steps(workdir) if MARKER in names_in(folder / str(step))]


def names_in(folder: epath.Path) -> list[str]:
    """The names in a folder, none where there is no such folder.

    StorageError where it cannot be listed: in a bucket `is_dir` would say that there is none.
    """
    try:
        return retry_read(folder, lambda: sorted(path.name for path in folder.iterdir()))
    except DamagedError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return []
        raise


def with_digest(meta: Mapping[str, Any]) -> dict[str, Any]:
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
    return retry_read(folder, lambda: _read_meta(folder, step))


def retry_read(folder: epath.Path, read: Callable[[], Result], what: str = "") -> Result:
    """What `read` gives; again and again, with a line each time, while the storage is out of reach.

    Nothing is wrong with a checkpoint that may not be read, or not now.

    Args:
        what: says what is wrong if that is not it.

    Raises:
        StorageError: the storage does not serve it.
        DamagedError: anything else.
    """

    def passes(error: BaseException) -> bool:
        away = _away(error)
        return away is not None and is_retryable(away)

    def say(why: str) -> None:
        line = " ".join(_NOISE.sub("", why).split())
        print(f"warning: {folder}: cannot be read ({line})", file=sys.stderr, flush=True)

    try:
        return retry(read, passes, say)
    except Exception as error:  # of any library that reads from storage
        away, said = _away(error), one_line(error)
        if away is not None:
            why = one_line(away)
            raise StorageError(f"{folder}: cannot be read ({why}); nothing was changed") from error
        raise DamagedError(folder, f"{what} ({said})" if what else said) from error


def _away(error: BaseException) -> BaseException | None:
    """The error of a storage that did not serve, of those that led to this one."""
    return next((one for one in _chain(error) if is_unreachable(one)), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def one_line(error: BaseException) -> str:
    """What an error says, on one line that can still be read."""
    if is_storage_error(error) and not isinstance(error, FileNotFoundError):
        said = reason(error)
    else:
        said = str(getattr(error, "strerror", None) or error or type(error).__name__)
    said = " ".join(_NOISE.sub("", said).split())
    return said if len(said) <= 300 else f"{said[:150]} … {said[-150:]}"


def _check_kinds(folder: epath.Path) -> None:
    """Raises ValueError where something in a checkpoint is neither a file nor a folder."""
    for below, folders, names in os.walk(folder):
        paths = [os.path.join(below, name) for name in (*folders, *names)]
        for path in paths:
            if is_special(path) or (os.path.islink(path) and os.path.isdir(path)):
                raise ValueError(f"{os.path.relpath(path, folder)} in it is not a regular file")


def _read_meta(folder: epath.Path, step: int) -> dict[str, Any]:
    try:
        names = {path.name for path in folder.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError("not a folder") from None
    if not names:
        raise ValueError("an empty folder")
    if MARKER not in names:
        raise ValueError(f"no {MARKER} in it, so it was not written to its end")
    if not is_remote(folder):
        _check_kinds(folder)
    try:
        data = (folder / "meta" / "metadata").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError("no meta/metadata in it") from None
    try:
        meta = json.loads(data)
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


def health(
    workdir: epath.PathLike, foreign: Callable[[dict[str, Any]], str] = lambda meta: ""
) -> dict[int, str]:
    """Step -> what is wrong with its checkpoint as far as can be told without reading arrays.

    An empty text where nothing is.

    Args:
        foreign: says of a record why it is not the run's, see `run_identity.foreign`.
    """

    def trouble(step: int) -> str:
        try:
            return foreign(read_meta(workdir, step))
        except DamagedError as error:
            return error.reason

    return {step: trouble(step) for step in all_steps(workdir)}


def list_quarantined(workdir: epath.PathLike) -> list[Quarantined]:
    """What was moved out of the way, by name."""
    folder = quarantine_of(workdir)
    names = names_in(folder)

    def said(name: str) -> str:
        file = folder / f"{name}.txt"
        there = file.name in names and not is_special(file)
        return retry_read(file, lambda: file.read_text().strip()) if there else ""

    return [Quarantined(name, said(name)) for name in names if not name.endswith(".txt")]


def info_of(meta: dict[str, Any]) -> CheckpointInfo:
    evaluation = meta["evaluation"]
    return CheckpointInfo(meta["step"], evaluation["loss"] if evaluation else None)


def list_checkpoints(workdir: epath.PathLike) -> list[CheckpointInfo]:
    """All checkpoints that nothing seems to be wrong with (see `health`), by step."""
    saved = []
    for step in all_steps(workdir):
        with suppress(DamagedError):
            saved.append(info_of(read_meta(workdir, step)))
    return saved


def best_by_phase(saved: Iterable[CheckpointInfo], phase_ends: Sequence[int]) -> dict[int, int]:
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
    saved: Sequence[CheckpointInfo], config: CheckpointConfig, phase_ends: Sequence[int]
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
