"""Paths in buckets (gs://…): their client, which of its errors pass, what they say in one line.

Files are read and written through `etils.epath`, which takes gcsfs for gs://; gcsfs repeats what a
server refuses for a moment (429, 5xx, lost connections) for about half a minute. Objects change
whole: there is no rename and no append, and a folder is there while an object below it is.
"""

import errno
import functools
import logging
import os
import random
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from etils import epath

from bert_jax.data_pipeline.errors import StorageError, UserError
from bert_jax.data_pipeline.storage import atomic

ATTEMPTS: Final = 4  # of one operation, each with what the client repeats by itself
_FIRST_PAUSE: Final = 1.0  # seconds before the second attempt; doubles
# For fsspec, where the user's own configuration says nothing else.
_SETTINGS: Final = {
    "use_listings_cache": False,  # a listing of before would hide what others have written since
    "requests_timeout": 60.0,  # seconds without an answer
}
# Where the exceptions of the client come from that are not OSErrors.
_CLIENTS: Final = ("gcsfs", "fsspec", "aiohttp", "google", "requests")
# What TensorStore says, in a ValueError, where a storage does not serve it; what may pass first.
_PASSES: Final = re.compile(
    r"\b(ABORTED|UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED): "
    r"|http_response_code='(408|429|5\d\d)'|curl_code="
)
_REFUSES: Final = re.compile(
    r"\b(PERMISSION_DENIED|UNAUTHENTICATED): |http_response_code='(?!404|412|416)"
)
# Clients say of a request all there was in it, and credentials may be: tokens, signatures.
_SECRET: Final = re.compile(r"(\?|Bearer )[^\s'\")]+")
# Of a disk: it does not work, which says nothing about what is on it.
_BROKEN: Final = frozenset(
    (
        *(errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EBUSY, errno.ENOMEM),
        *(errno.EMFILE, errno.ENFILE, errno.ENODEV, errno.ENXIO, errno.ENOTCONN),
    )
)
# Of what stands there, or may be done with it: the next time too.
_LASTING: Final = (
    *(FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError),
    PermissionError,
)
_NO_NAME: Final = frozenset((errno.ELOOP, errno.ENAMETOOLONG))

Result = TypeVar("Result")


def is_remote(path: epath.PathLike) -> bool:
    """Whether a path names something in a bucket."""
    return "://" in os.fspath(path)


def is_special(path: epath.PathLike) -> bool:
    """Whether a path is no file and no folder: opening a pipe waits for its other end."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # not there, or of a bucket
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def open_path(path: epath.PathLike) -> epath.Path:
    """The path, with its client ready if it is of a bucket.

    Raises:
        UserError: the client is not installed, or there is none for such a path.
    """
    if is_remote(path):
        _prepare(os.fspath(path))
    return epath.Path(path)


def absolute(path: epath.PathLike) -> epath.Path:
    """The path as it stands after a change of the working folder."""
    opened = open_path(path)
    return opened if is_remote(path) else opened.resolve()  # `resolve` takes gs:// for a folder


def _prepare(path: str) -> None:
    # gcsfs's other class asks over gRPC for the kind of every bucket before it opens anything;
    # nothing here needs what it adds.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs what it raises, as tracebacks
    import fsspec.config

    settings = fsspec.config.conf.setdefault("gcs", {})
    for name, value in _SETTINGS.items():
        settings.setdefault(name, value)
    protocol = path.partition("://")[0]
    try:
        if protocol in ("gs", "gcs"):
            from gcsfs.core import GCSFileSystem

            fsspec.register_implementation("gcs", GCSFileSystem, clobber=True)
            fsspec.register_implementation("gs", GCSFileSystem, clobber=True)
        fsspec.get_filesystem_class(protocol)
    except ImportError:
        raise UserError(
            f"{path}: buckets need gcsfs, which is not installed; pip install 'bert-jax[gcs]'"
        ) from None
    except ValueError:
        raise UserError(
            f"{path}: no storage is known as {protocol}://; give gs://… or a local path"
        ) from None


def is_storage_error(error: BaseException) -> bool:
    """Whether an exception comes from a disk or a bucket, not from a mistake in the program."""
    return isinstance(error, OSError) or type(error).__module__.split(".")[0] in _CLIENTS


def is_transient(error: BaseException) -> bool:
    """Whether a storage error may be gone the next time."""
    if isinstance(error, _LASTING) or getattr(error, "errno", 0) in _NO_NAME:
        return False
    code = _status(error)
    if code is not None:
        return code in (408, 429) or code >= 500
    return not str(error).startswith("Forbidden") and is_storage_error(error)


def is_unreachable(error: BaseException) -> bool:
    """Whether a storage could not be read, now or by us: nothing is known of what it holds.

    What is not there, and what cannot be understood, is no such error.
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return False
    if isinstance(error, PermissionError | TimeoutError | ConnectionError | MemoryError):
        return True
    if type(error).__module__.split(".")[0] in _CLIENTS or getattr(error, "errno", 0) in _BROKEN:
        return True
    said = str(error)
    return bool(said.startswith("Forbidden") or _PASSES.search(said) or _REFUSES.search(said))


def is_retryable(error: BaseException) -> bool:
    """Whether what `is_unreachable` may be there the next time."""
    said = str(error)
    if _PASSES.search(said):
        return True
    return not _REFUSES.search(said) and is_transient(error)


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error carries."""
    code = getattr(error, "code", None) or getattr(error, "status", None)
    try:
        return int(code) if code else None
    except (TypeError, ValueError):
        return None


def reason(error: BaseException) -> str:
    """What a storage error says, in a few words on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, FileNotFoundError):
        return "no such bucket or object"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if str(error).startswith("Forbidden") or _status(error) in (401, 403):
        return "no permission"
    text = " ".join(_SECRET.sub(r"\1…", str(error)).split())
    return text[:200] or type(error).__name__


def retry(
    call: Callable[[], Result],
    passes: Callable[[BaseException], bool] = is_transient,
    say: Callable[[str], None] = lambda line: None,
) -> Result:
    """Calls until it does not fail for a reason that passes; raises what the last attempt does.

    say: is told, of every attempt but the last that fails, why, and when the next is.
    """
    pause = _FIRST_PAUSE
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return call()
        except Exception as error:
            if attempt == ATTEMPTS or not passes(error):
                raise
            # Processes that were refused together come back one after another.
            wait = pause * (0.5 + random.random())
            say(f"{reason(error)}; attempt {attempt} of {ATTEMPTS}, the next in {wait:.1f} s")
        time.sleep(wait)
        pause *= 2
    raise AssertionError("unreachable")


def check_bucket(path: epath.PathLike) -> None:
    """Lists the bucket of a path, whatever is in it: raises what the client does if it cannot."""
    protocol, _, rest = os.fspath(open_path(path)).partition("://")
    import fsspec

    system = fsspec.filesystem(protocol)
    retry(lambda: system.ls(rest.partition("/")[0], detail=False, max_results=1))


def read_range(path: epath.PathLike, start: int, length: int) -> bytes:
    """Bytes of an object, in one request; safe to call from several threads at once."""
    import fsspec

    url = os.fspath(open_path(path))
    system = fsspec.filesystem(url.partition("://")[0])
    data: bytes = system.cat_file(url, start=start, end=start + length)
    return data


def write_named(path: epath.PathLike, data: bytes) -> None:
    """Writes a file that a user named: through a link, with its old content until it has the new.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        if is_remote(path):
            open_path(path).write_bytes(data)
        else:
            atomic.write_bytes(os.path.realpath(path), data)
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(f"{os.fspath(path)}: cannot be written ({reason})") from error


def put(path: epath.PathLike, data: bytes) -> None:
    """Writes a file, or an object of a bucket, that has its old content until it has the new one.

    Raises what the disk or the client does.
    """
    if is_remote(path):  # an object changes whole, and has no name to be moved to
        open_path(path).write_bytes(data)
        return
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    atomic.write_bytes(path, data)


def move_folder(source: epath.PathLike, target: epath.PathLike, *, first: str) -> None:
    """Gives a folder another name; in a bucket, object by object.

    Args:
        first: the file in it that says that the folder is complete; it goes first, so that a move
            that is interrupted leaves no folder that seems complete. The same call goes on.
    """
    start, end = open_path(source), open_path(target)
    if not is_remote(start):
        end.parent.mkdir(parents=True, exist_ok=True)
        start.rename(end)
        return
    import fsspec

    system = fsspec.filesystem(os.fspath(start).partition("://")[0])
    top = os.fspath(start).partition("://")[2].rstrip("/") + "/"
    names = [name.removeprefix(top) for name in retry(lambda: system.find(os.fspath(start)))]

    def move(name: str) -> None:
        try:
            system.mv_file(os.fspath(start / name), os.fspath(end / name))
        except FileNotFoundError:  # moved by an attempt whose answer was lost
            if not system.exists(os.fspath(end / name)):
                raise

    for name in sorted(names, key=lambda name: (name != first, name)):
        retry(functools.partial(move, name))


@contextmanager
def storage_errors(path: epath.PathLike, what: str = "cannot be read") -> Iterator[None]:
    """Turns what a bucket refuses into a UserError: the path, what cannot be done, and why."""
    try:
        yield
    except Exception as error:
        if not is_storage_error(error):
            raise
        raise UserError(f"{path}: {what} ({reason(error)}){_advice(path, error)}") from error


def _advice(path: epath.PathLike, error: BaseException) -> str:
    if not is_remote(path):
        return ""
    if reason(error) == "no permission":
        return (
            "; give this machine's account access to the bucket, or sign in with `gcloud auth "
            "application-default login`"
        )
    if isinstance(error, FileNotFoundError):
        return "; look at the spelling of the bucket"
    return "; the same command tries again" if is_transient(error) else ""
