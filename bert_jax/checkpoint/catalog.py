"""The checkpoints of a run on disk: which exist, and what is wrong with them.

    Workdir.checkpoints/STEP/        complete: it holds a commit marker, written last
    Workdir.quarantine/STEP[-N]/     a damaged checkpoint or one of another run
                       STEP[-N].txt  the reason

Imports neither JAX nor Orbax, so that `bert-jax status` starts fast. `manager.py` writes the
checkpoints, and removes those that `retention.py` gives no reason to keep.
"""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from etils import epath

from bert_jax.errors import StorageError
from bert_jax.runtime.log import logger
from bert_jax.storage import json_record
from bert_jax.storage.digest import json_digest
from bert_jax.storage.read_files import read_bytes
from bert_jax.storage.remote import (
    STORAGE_RETRIES,
    is_remote,
    is_retryable,
    is_special,
    is_storage_error,
    is_unreachable,
    reason,
)
from bert_jax.storage.retry import retry

# Format of `meta`; 1 had one phase and called the pair head nsp, 2 had no fingerprints.
FORMAT_VERSION = 3
MARKER = "commit_success.txt"
_DETECTION = "rtd/loss"  # a held-out metric, with the weight config.rtd_weight in training
# TensorStore's prefix and suffix around the actual error.
_NOISE = re.compile(r"Error opening \"\w+\" driver: | \[\w+(\[\d+\])?='.*", re.DOTALL)

Result = TypeVar("Result")
# A checkpoint's metadata -> why it is not the run's, or an empty string; see
# `identity.foreign_reason`.
ForeignReason = Callable[[dict[str, Any]], str]


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint: its step, and what it was evaluated to, if it was.

    Attributes:
        loss: the sum of the objectives' held-out losses.
        error: of a task.
        weighted: the sum with the weights of training, of a run of replaced-token detection.
    """

    step: int
    loss: float | None
    error: float | None = None
    weighted: float | None = None

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> "CheckpointInfo":
        """meta: the metadata of the checkpoint."""
        found, weighted = meta["evaluation"] or {}, None
        loss, detection = found.get("loss"), found.get(_DETECTION)
        if loss is not None and detection is not None:
            weighted = loss + (meta["config"]["rtd_weight"] - 1) * detection
        return cls(meta["step"], loss, found.get("error"), weighted)

    @property
    def criterion(self) -> float | None:
        """The value by which checkpoints are ranked; the best one has the lowest."""
        values = (self.error, self.weighted, self.loss)
        return next((value for value in values if value is not None), None)


@dataclasses.dataclass(frozen=True)
class Quarantined:
    """A checkpoint in quarantine: its folder there, and the reason."""

    folder: str
    reason: str


class DamagedError(StorageError):
    """A checkpoint differs from what was saved."""

    def __init__(self, folder: epath.Path, reason: str):
        super().__init__(f"{folder}: damaged: {reason}")
        self.reason = reason


def all_steps(checkpoints: epath.Path) -> list[int]:
    """Returns all steps with an entry in the checkpoint folder, complete or not, ascending.

    Raises:
        StorageError: the folder cannot be listed (as in all functions that list checkpoints).
    """
    names = names_in(checkpoints)
    return sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)


def complete_steps(checkpoints: epath.Path) -> list[int]:
    """Returns the steps of all complete checkpoints, ascending."""
    return [s for s in all_steps(checkpoints) if MARKER in names_in(checkpoints / str(s))]


def names_in(folder: epath.Path) -> list[str]:
    """Returns the names in a folder, an empty list if it does not exist.

    Raises:
        StorageError: it cannot be listed (in a bucket, `is_dir` would return False).
    """
    try:
        return retry_read(folder, lambda: sorted(path.name for path in folder.iterdir()))
    except DamagedError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return []
        raise


def with_digest(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `meta` with a digest of its content, so that changes are detected."""
    meta = json.loads(json.dumps(meta))
    return {**meta, "digest": json_digest(meta)}


def read_meta(checkpoints: epath.Path, step: int) -> dict[str, Any]:
    """Reads a checkpoint's metadata: step, phase, evaluation, config, data, fingerprints, …

    Raises:
        DamagedError: it is incomplete, differs from what was written, has another step, or was
            written by another version of this program in another format.
        StorageError: the storage is unavailable.
    """
    folder = checkpoints / str(step)
    return retry_read(folder, lambda: _read_meta_once(folder, step))


def retry_read(folder: epath.Path, read: Callable[[], Result], what: str = "") -> Result:
    """Returns `read()`; retries with a warning each time while the storage is unavailable.

    A checkpoint that cannot be read now, or without permission, is not damaged.

    Args:
        what: prefix of the reason for a DamagedError.

    Raises:
        StorageError: the storage is unavailable.
        DamagedError: any other error.
    """

    def can_retry(error: BaseException) -> bool:
        unavailable = _unavailable(error)
        return unavailable is not None and is_retryable(unavailable)

    def warn(error: Exception, when: str) -> None:
        why = " ".join(_NOISE.sub("", reason(error)).split())
        logger.warning(f"{folder}: cannot be read ({why}; {when})")

    try:
        return retry(read, dataclasses.replace(STORAGE_RETRIES, retryable=can_retry), warn)
    except Exception as error:  # of any library that reads from storage
        unavailable, message = _unavailable(error), one_line(error)
        if unavailable is not None:
            why = one_line(unavailable)
            raise StorageError(f"{folder}: cannot be read ({why}); nothing was changed") from error
        raise DamagedError(folder, f"{what} ({message})" if what else message) from error


def _unavailable(error: BaseException) -> BaseException | None:
    """Returns the error of unavailable storage in the chain of causes, or None."""
    return next((e for e in _chain(error) if is_unreachable(e)), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def one_line(error: BaseException) -> str:
    """Returns an error's message on one line of at most 303 characters."""
    if is_storage_error(error) and not isinstance(error, FileNotFoundError):
        text = reason(error)
    else:
        text = str(getattr(error, "strerror", None) or error or type(error).__name__)
    text = " ".join(_NOISE.sub("", text).split())
    return text if len(text) <= 300 else f"{text[:150]} … {text[-150:]}"


def _check_kinds(folder: epath.Path) -> None:
    """Raises ValueError if a checkpoint holds anything but regular files and folders."""
    for below, folders, names in os.walk(folder):
        paths = [os.path.join(below, name) for name in (*folders, *names)]
        for path in paths:
            if is_special(path) or (os.path.islink(path) and os.path.isdir(path)):
                raise ValueError(f"{os.path.relpath(path, folder)} in it is not a regular file")


def _read_meta_once(folder: epath.Path, step: int) -> dict[str, Any]:
    try:
        names = {path.name for path in folder.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError("not a folder") from None
    if not names:
        raise ValueError("an empty folder")
    if MARKER not in names:
        raise ValueError(f"no {MARKER} in it: the write did not finish")
    if not is_remote(folder):
        _check_kinds(folder)
    try:
        data = read_bytes(folder / "meta" / "metadata")
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError("no meta/metadata in it") from None
    try:
        meta = json_record.parse(data)
    except ValueError:
        raise ValueError("its meta/metadata is not JSON") from None
    if not isinstance(meta, dict) or "format_version" not in meta:
        raise ValueError("its meta/metadata has no format_version")
    if meta["format_version"] != FORMAT_VERSION:
        raise ValueError(
            f"it has format {meta['format_version']!r:.20}, this program reads format "
            f"{FORMAT_VERSION}: use the version that wrote it, or train again in a new --workdir"
        )
    if meta.pop("digest", None) != json_digest(meta):
        raise ValueError("its meta/metadata differs from what was written")
    if meta["step"] != step:
        raise ValueError(f"it is of step {meta['step']}")
    return meta


def health(
    checkpoints: epath.Path, foreign_reason: ForeignReason = lambda meta: ""
) -> dict[int, str]:
    """Returns step -> problem of its checkpoint, an empty string if none; reads no arrays."""

    def problem(step: int) -> str:
        try:
            return foreign_reason(read_meta(checkpoints, step))
        except DamagedError as error:
            return error.reason

    return {step: problem(step) for step in all_steps(checkpoints)}


def list_quarantined(quarantine: epath.Path) -> list[Quarantined]:
    """Returns the checkpoints in quarantine, by name."""
    names = names_in(quarantine)

    def read_reason(name: str) -> str:
        file = quarantine / f"{name}.txt"
        exists = file.name in names and not is_special(file)
        data = retry_read(file, lambda: read_bytes(file)) if exists else b""
        return data.decode("utf-8", "replace").strip()

    return [Quarantined(name, read_reason(name)) for name in names if not name.endswith(".txt")]


def list_checkpoints(checkpoints: epath.Path) -> list[CheckpointInfo]:
    """Returns all checkpoints without a known problem (see `health`), by step."""
    saved = []
    for step in all_steps(checkpoints):
        with suppress(DamagedError):
            saved.append(CheckpointInfo.of(read_meta(checkpoints, step)))
    return saved
