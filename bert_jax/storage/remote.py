"""Paths in buckets (gs://…): client setup, retries, and storage errors in one line.

Files are read and written through `etils.epath`, which uses gcsfs for gs://; gcsfs itself retries
transient failures (429, 5xx, lost connections) for about half a minute. Objects are replaced as a
whole: there is no rename and no append, and a folder exists while any object has its prefix.
"""

import errno
import functools
import logging
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from etils import epath

from bert_jax.errors import UserError
from bert_jax.storage import atomic
from bert_jax.storage.regular_file import UnfitFileError
from bert_jax.storage.retry import RetryPolicy, retry

HUB: Final = "hf:"  # begins the name of a repository on the Hugging Face hub, see hub.py
# Defaults for fsspec; the user's own configuration takes precedence.
_SETTINGS: Final = {
    "use_listings_cache": False,  # a cached listing would hide what others wrote since
    "requests_timeout": 60.0,  # seconds without a response
}
# Packages that raise client exceptions other than OSError.
_CLIENTS: Final = ("gcsfs", "fsspec", "aiohttp", "google", "requests")
# TensorStore reports storage failures as ValueError: the transient ones, and denied requests.
_TRANSIENT: Final = re.compile(
    r"\b(ABORTED|UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED): "
    r"|http_response_code='(408|429|5\d\d)'|curl_code="
)
_DENIED: Final = re.compile(
    r"\b(PERMISSION_DENIED|UNAUTHENTICATED): |http_response_code='(?!404|412|416)"
)
# The address of a repository in a browser, or its path for fsspec.
_ON_HUB: Final = re.compile(
    r"(?:hf:)?(?:https?://(?:www\.)?(?:huggingface|hf)\.co|hf:/)/(?:datasets/)?"
    r"([\w.-]+(?:/[\w.-]+)?)(?:(?:@|/(?:tree|blob|resolve|commit)/)(?!main\b|refs\b)([\w.-]+))?"
)
# Clients print whole requests, which may contain credentials: tokens, signatures.
_SECRET: Final = re.compile(r"(\?|Bearer )[^\s'\")]+|\bhf_[A-Za-z0-9]{16,}")
# Failures of the disk itself, which do not depend on its content.
_FAULTS: Final = frozenset(
    (
        *(errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EBUSY, errno.ENOMEM),
        *(errno.EMFILE, errno.ENFILE, errno.ENODEV, errno.ENXIO, errno.ENOTCONN),
    )
)
# Errors about the path or its permissions, which a retry would raise again.
_PERMANENT: Final = (
    *(FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError),
    *(PermissionError, UnfitFileError),
)
_BAD_NAME: Final = frozenset((errno.ELOOP, errno.ENAMETOOLONG))


def is_remote(path: epath.PathLike) -> bool:
    """Returns whether a path is in a bucket."""
    return "://" in os.fspath(path)


def from_any_folder(path: str) -> str:
    """Returns a path to record: absolute, so that commands find it from any folder; "" stays, and
    so does the name of a repository on the hub."""
    named = not path or is_remote(path) or path.startswith(HUB)
    return path if named else os.path.abspath(path)


def is_special(path: epath.PathLike) -> bool:
    """Returns whether a path is neither file nor folder, such as a pipe, whose opening would
    block."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # missing, or in a bucket
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def open_path(path: epath.PathLike) -> epath.Path:
    """Returns the path; sets up the client if it is in a bucket.

    Raises:
        UserError: the client is not installed, or the path is of another protocol than gs://,
            whose errors and guarantees are not known here.
    """
    if is_remote(path):
        _prepare(os.fspath(path))
    return epath.Path(path)


def absolute(path: epath.PathLike) -> epath.Path:
    """Returns the absolute path, which stays valid when the working folder changes."""
    opened = open_path(path)
    return opened if is_remote(path) else opened.resolve()  # `resolve` takes gs:// as a folder


def _prepare(path: str) -> None:
    check_protocol(path)
    # gcsfs's experimental class queries the type of every bucket over gRPC before opening anything;
    # its additional features are not needed here.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs errors as tracebacks
    import fsspec.config

    settings = fsspec.config.conf.setdefault("gcs", {})
    for name, value in _SETTINGS.items():
        settings.setdefault(name, value)
    try:
        from bert_jax.storage.first_contact import Client
    except ImportError:
        raise UserError(
            f"{path}: buckets need gcsfs, which is not installed; pip install 'bert-jax[gcs]'"
        ) from None
    fsspec.register_implementation("gcs", Client, clobber=True)
    fsspec.register_implementation("gs", Client, clobber=True)


def name_of_address(text: str) -> str:
    """Returns the name of what an address of the hub is of, hf:OWNER/NAME[@REVISION], or ""."""
    match = _ON_HUB.match(text)
    return HUB + "@".join(filter(None, match.groups())) if match else ""


def check_protocol(path: str) -> None:
    """Raises UserError for a path of another protocol than that of buckets."""
    protocol = path.partition("://")[0]
    if protocol == "gs":
        return
    name = name_of_address(path)
    remedy = f"on the Hugging Face hub it is {name}" if name else "use gs://… or a local path"
    raise UserError(f"{path}: unknown protocol {protocol}://; {remedy}")


def is_storage_error(error: BaseException) -> bool:
    """Returns whether an exception comes from a disk or a bucket rather than from a bug."""
    return isinstance(error, OSError) or type(error).__module__.split(".")[0] in _CLIENTS


def is_transient(error: BaseException) -> bool:
    """Returns whether a retry may succeed after this storage error."""
    if isinstance(error, _PERMANENT) or getattr(error, "errno", 0) in _BAD_NAME:
        return False
    code = _status(error)
    if code is not None:
        return code in (408, 429) or code >= 500
    return not str(error).startswith("Forbidden") and is_storage_error(error)


def is_unreachable(error: BaseException) -> bool:
    """Returns whether storage could not be read (unavailable, or no access), so its content is
    unknown.

    False for missing files and for content that cannot be parsed.
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return False
    if isinstance(error, PermissionError | TimeoutError | ConnectionError | MemoryError):
        return True
    if type(error).__module__.split(".")[0] in _CLIENTS or getattr(error, "errno", 0) in _FAULTS:
        return True
    text = str(error)
    return bool(text.startswith("Forbidden") or _TRANSIENT.search(text) or _DENIED.search(text))


def is_retryable(error: BaseException) -> bool:
    """Returns whether a retry may succeed after an error for which `is_unreachable` is true."""
    text = str(error)
    if _TRANSIENT.search(text):
        return True
    return not _DENIED.search(text) and is_transient(error)


def _status(error: BaseException) -> int | None:
    """Returns the HTTP status of an error, or None."""
    code = getattr(error, "code", None) or getattr(error, "status", None)
    try:
        return int(code) if code else None
    except (TypeError, ValueError):
        return None


def reason(error: BaseException) -> str:
    """Returns the reason of a storage error, in a few words on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, FileNotFoundError):
        return "no such bucket or object"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if str(error).startswith("Forbidden") or _status(error) in (401, 403):
        return "no permission"
    return without_secrets(str(error))[:200] or type(error).__name__


def without_secrets(text: str) -> str:
    """Returns the message of a client on one line, without what its requests may carry."""
    return " ".join(_SECRET.sub(r"\1…", text).split())


STORAGE_RETRIES: Final = RetryPolicy(
    attempts=4,  # per operation, each including the client's own retries
    pause=1.0,
    jitter=True,
    retryable=is_transient,
)


def check_bucket(path: epath.PathLike) -> None:
    """Lists the bucket of a path; raises the client's error if that fails."""
    system, url = file_system(path)
    bucket = url.partition("://")[2].partition("/")[0]
    retry(lambda: system.ls(bucket, detail=False, max_results=1), STORAGE_RETRIES)


def file_system(path: epath.PathLike) -> tuple[Any, str]:
    """Returns the client of a path in a bucket, and the URL that it takes."""
    import fsspec

    url = os.fspath(open_path(path))
    return fsspec.filesystem(url.partition("://")[0]), url


def read_range(path: epath.PathLike, start: int, length: int) -> bytes:
    """Reads `length` bytes of an object from byte `start`, in one request; thread-safe."""
    system, url = file_system(path)
    return bytes(system.cat_file(url, start=start, end=start + length))


def put(path: epath.PathLike, data: bytes) -> None:
    """Writes a file, or an object of a bucket, atomically: it has its old or its new content.

    Raises the errors of the disk or the client.
    """
    if is_remote(path):  # an object is replaced atomically, and cannot be renamed
        open_path(path).write_bytes(data)
        return
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    atomic.write_bytes(path, data)


def move_folder(source: epath.PathLike, target: epath.PathLike, *, first: str) -> None:
    """Renames a folder; in a bucket, object by object.

    Args:
        first: the file that marks the folder as complete; it is moved first, so that an interrupted
            move leaves no source that seems complete. The same call resumes the move.
    """
    start, end = open_path(source), open_path(target)
    if not is_remote(start):
        end.parent.mkdir(parents=True, exist_ok=True)
        start.rename(end)
        return
    system, url = file_system(start)
    top = url.partition("://")[2].rstrip("/") + "/"
    paths = retry(lambda: system.find(url), STORAGE_RETRIES)
    names = [path.removeprefix(top) for path in paths]

    def move(name: str) -> None:
        try:
            system.mv_file(os.fspath(start / name), os.fspath(end / name))
        except FileNotFoundError:  # moved by an attempt whose response was lost
            if not system.exists(os.fspath(end / name)):
                raise

    for name in sorted(names, key=lambda name: (name != first, name)):
        retry(functools.partial(move, name), STORAGE_RETRIES)


@contextmanager
def storage_errors(
    path: epath.PathLike, what: str = "cannot be read", remedy: str = ""
) -> Iterator[None]:
    """Turns storage errors into a UserError with the path, the failed operation and the reason."""
    try:
        yield
    except Exception as error:
        if not is_storage_error(error) or isinstance(error, UnfitFileError):
            raise
        raise UserError(
            f"{path}: {what} ({reason(error)}){remedy or _advice(path, error)}"
        ) from error


def _advice(path: epath.PathLike, error: BaseException) -> str:
    if not is_remote(path):
        return ""
    if reason(error) == "no permission":
        return (
            "; give this machine's account access to the bucket, or sign in with `gcloud auth "
            "application-default login`"
        )
    if isinstance(error, FileNotFoundError):
        return "; check the spelling of the bucket"
    return "; run the same command again to retry" if is_transient(error) else ""
