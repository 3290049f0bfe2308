"""Models and datasets by name on the Hugging Face hub: `hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]`.

The client, huggingface_hub, downloads and keeps the files: HF_ENDPOINT, HF_HOME, HF_TOKEN and
HF_HUB_OFFLINE have their usual meaning. Without a network, the copy in its cache is used. Nothing
that a repository has is run.

In a process a name means one commit, that which it meant when it was first asked for. A run and a
token store record it (`recorded`), and what resumes or builds them again takes the same (`use`).
"""

# Over 300 lines: a name, its commit, the client's calls and its errors are one protocol.

import errno
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from bert_jax.errors import UserError
from bert_jax.storage.remote import HUB as PREFIX
from bert_jax.storage.remote import name_of_address, without_secrets

MODEL_FORM: Final = f"{PREFIX}OWNER/NAME[@REVISION]"
DATASET_FORM: Final = f"{PREFIX}OWNER/NAME[/CONFIG][:SPLIT][@REVISION]"
TRAIN: Final = "train"  # the split that is meant without one
Kind = Literal["model", "dataset"]
_NAME: Final = re.compile(
    rf"{PREFIX}(?P<repository>[^/:@]+(?:/[^/:@]+)?)(?:/(?P<config>[^:@]+))?"
    r"(?::(?P<split>[^/:@]+))?(?:@(?P<revision>\S+))?"
)
_TOKEN: Final = re.compile("[!-~]+")
LOGIN: Final = "run `hf auth login` or set HF_TOKEN"
_COMMIT: Final = re.compile("[0-9a-f]{40}")
_DATASET: Final = re.compile(r"datasets/([\w.-]+/[\w.-]+)(?:@.*)?")  # a key, see `HubName.key`
# Packages whose exceptions say that the hub was not reached, by the releases of the client.
_NETWORK: Final = ("httpx", "httpx2", "httpcore", "requests", "urllib3", "hf_xet")
_MORE: Final = "For more information check:"  # what HTTP's statuses mean
# Errors of the disk of the client's cache.
_OF_CACHE: Final = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)
)
_commits: dict[str, str] = {}  # key of a name -> what it means in this process


class NoRevisionError(UserError):
    """A repository has no such revision."""


@dataclass(frozen=True)
class HubName:
    """The name of a repository, parsed.

    Attributes:
        config, split: of a dataset; "" if they are not given.
        revision: a branch, a tag or a commit; "": the main branch.
    """

    kind: Kind
    repository: str
    config: str = ""
    split: str = ""
    revision: str = ""

    @property
    def key(self) -> str:
        """The repository at its revision, for `recorded`."""
        return f"{self.kind}s/{self.repository}" + (f"@{self.revision}" if self.revision else "")

    @property
    def is_commit(self) -> bool:
        """True if the name itself has the commit."""
        return _COMMIT.fullmatch(self.revision) is not None

    def at(self, revision: str) -> "HubName":
        return replace(self, revision=revision)

    def __str__(self) -> str:
        config = self.config and f"/{self.config}"
        split = f":{self.split}" if self.split not in ("", TRAIN) else ""
        revision = self.revision and f"@{self.revision}"
        return f"{PREFIX}{self.repository}{config}{split}{revision}"


def is_hub(name: object) -> bool:
    """Returns whether a path names a repository on the hub."""
    return str(name).startswith(PREFIX)


def check_not_hub(path: object, key: str = "") -> None:
    """Raises UserError for a name on the hub where only files are read; key: before it, --flag=."""
    if is_hub(path):
        raise UserError(f"{key}{path}: not read from the hub; download it, and give its path")


def parse_model(name: str) -> HubName:
    """Returns the name of a model; UserError if it is none."""
    found = _NAME.fullmatch(name)
    if not found or found["config"] or found["split"]:
        raise UserError(f"{name}: not a model's name; {_meant(name) or f'write {MODEL_FORM}'}")
    return HubName("model", found["repository"], revision=found["revision"] or "")


def parse_dataset(name: str) -> HubName:
    """Returns the name of a dataset, whose split is train by default; UserError if it is none."""
    found = _NAME.fullmatch(name)
    if not found or "/" not in found["repository"]:
        raise UserError(f"{name}: not a dataset's name; {_meant(name) or f'write {DATASET_FORM}'}")
    on_page = name.removeprefix(f"{PREFIX}datasets/")  # as in the address of its page
    if on_page != name and "/" in on_page:
        raise UserError(
            f"{name}: datasets are named {DATASET_FORM}; did you mean {PREFIX}{on_page}?"
        )
    parts = {part: found[part] or "" for part in ("config", "split", "revision")}
    return HubName("dataset", found["repository"], **{**parts, "split": parts["split"] or TRAIN})


def _meant(name: str) -> str:
    """Returns the end of a message about an address in place of a name; "" if it is none."""
    meant = name_of_address(name)
    return meant and f"did you mean {meant}?"


def use(commits: Mapping[str, str]) -> None:
    """From now on, names mean these commits; as returned by `recorded`."""
    _commits.update(commits)


@contextmanager
def own_commits() -> Iterator[None]:
    """After the context, names mean again what they meant before it."""
    before = dict(_commits)
    try:
        yield
    finally:
        _commits.clear()
        _commits.update(before)


def forget() -> None:
    """Names mean what the hub says again."""
    _commits.clear()


def recorded(names: Iterable[HubName]) -> dict[str, str]:
    """Returns the commits of names, those that name one themselves left out; errors as `fetch`."""
    return {name.key: commit_of(name) for name in names if not name.is_commit}


def datasets_in(commits: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the datasets, OWNER/NAME, of what `recorded` returned, with their commits."""
    found = ((_DATASET.fullmatch(key), commit) for key, commit in commits.items())
    return [(name[1], commit) for name, commit in found if name]


def known_commit(name: HubName) -> str | None:
    """Returns the commit that a name means in this process; None if it was not asked for."""
    return name.revision if name.is_commit else _commits.get(name.key)


def commit_of(name: HubName) -> str:
    """Returns the commit that a name means; errors as `fetch`, which is asked the first time."""
    if (known := known_commit(name)) is not None:
        return known
    fetch(name, ["config.json"] if name.kind == "model" else ["README.md", ".gitattributes"])
    return _commits[name.key]


def origin_of(name: HubName) -> str:
    """Returns a name with its commit; errors as `fetch`."""
    return str(name.at(commit_of(name)))


def fetch(name: HubName, patterns: Sequence[str], left_out: Sequence[str] = ()) -> Path:
    """Returns the local folder of a repository at its commit, with the files that patterns name.

    Args:
        patterns, left_out: of `fnmatch`, on paths in the repository.

    Raises:
        UserError: no such repository or revision, access is denied, the hub refuses or breaks off,
            or there is neither a network nor a cached copy.
    """
    from huggingface_hub import snapshot_download

    revision = known_commit(name) or name.revision or None
    with hub_errors(name):
        folder = Path(
            snapshot_download(
                name.repository,
                repo_type=name.kind,
                revision=revision,
                allow_patterns=[*patterns],
                ignore_patterns=[*left_out],
            )
        )
    if not name.is_commit:
        _commits.setdefault(name.key, folder.name)
    return folder


def files_of(name: HubName) -> list[str]:
    """Returns the paths of all files in a repository; errors as `fetch`.

    Without a network, the client must be of a release that keeps the list in its cache: what older
    ones have there may be a part.
    """
    import huggingface_hub
    from huggingface_hub import errors

    at = name.at(commit_of(name))
    if cached := getattr(huggingface_hub, "get_cached_repo_tree", None):  # not in older releases
        with suppress(errors.CachedRepoTreeNotFoundError):
            listed = cached(at.repository, repo_type=at.kind, revision=at.revision)
            return sorted(entry.path for entry in listed)
    with hub_errors(name):
        api = huggingface_hub.HfApi()
        return sorted(api.list_repo_files(at.repository, repo_type=at.kind, revision=at.revision))


@contextmanager
def hub_errors(name: HubName) -> Iterator[None]:
    """Turns what the client raises into a UserError that says what to do; its warnings, which say
    the same of each attempt, and with the signed address of a file, are left out, and its bars
    where there is no terminal."""
    from huggingface_hub import errors

    check_token(str(name))
    bars_on_terminals()
    try:
        with without_warnings():
            yield
    except errors.GatedRepoError:
        raise UserError(f"{name}: gated; accept its terms on its page, then {LOGIN}") from None
    except errors.RevisionNotFoundError:
        raise NoRevisionError(
            f"{name}: no such revision; give a branch, a tag or a commit"
        ) from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"{name}: no such {name.kind}; check the name, or set HF_TOKEN if it is private"
        ) from None
    except errors.HFValidationError as error:
        raise UserError(f"{name}: not a {name.kind}'s name ({line(error)})") from None
    except Exception as error:
        if not _is_of_client(error):
            raise
        raise UserError(f"{name}: {_explained(error)}") from None


@contextmanager
def without_warnings() -> Iterator[None]:
    """Leaves out the client's warnings, unless the user has set what it logs."""
    log = logging.getLogger("huggingface_hub")
    level = log.level
    try:
        if not os.environ.get("HF_HUB_VERBOSITY"):
            log.setLevel(logging.ERROR)
        yield
    finally:
        log.setLevel(level)


@contextmanager
def naming(name: str, folder: Path) -> Iterator[None]:
    """Messages about files in a folder of the client's cache name them as on the hub."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error).replace(str(folder), name)) from None


def check_token(where: str) -> None:
    """Raises UserError, which begins with `where`, for a token that no header can have: the
    transport would fail with a message that has the token in it."""
    from huggingface_hub import get_token

    if (token := get_token()) and not _TOKEN.fullmatch(token):
        raise UserError(f"{where}: the token has characters that no token has; {LOGIN}")


def bars_on_terminals() -> None:
    """Leaves out the client's bars where there is no terminal, unless the user has set them."""
    from huggingface_hub import constants, utils

    if constants.HF_HUB_DISABLE_PROGRESS_BARS is None and not sys.stderr.isatty():
        utils.disable_progress_bars()


def status_of(error: BaseException) -> int | None:
    """Returns the HTTP status of the response that an error of the client is about."""
    return getattr(getattr(error, "response", None), "status_code", None)


def _explained(error: BaseException) -> str:
    """Returns what went wrong between the client and the hub, and what to do."""
    from huggingface_hub import errors, get_token

    of_cache = isinstance(error, errors.LocalEntryNotFoundError)
    cause = error.__cause__ if of_cache and error.__cause__ else error
    if isinstance(cause, errors.OfflineModeIsEnabled):
        return "is not in the cache, and HF_HUB_OFFLINE is set; unset it to download it"
    if isinstance(cause, OSError) and cause.errno in _OF_CACHE:
        where = f"{cause.filename}: " if cause.filename else ""
        return (
            f"cannot be stored ({where}{cause.strerror}); free space in the client's cache, or set "
            "HF_HOME to another folder"
        )
    status = status_of(cause)
    if status == 401 and not get_token():
        return f"the hub asks for a token (401); {LOGIN}"
    if status == 401:
        return "the hub refuses the token (401); set HF_TOKEN to a valid one, or sign in again"
    if status == 403:
        return "no permission (403); give HF_TOKEN of an account that may read it"
    if status == 404:
        return f"has no such file (404: {line(cause)})"
    if status == 429:
        return "the hub asks to wait (429, too many requests); try again later, or set HF_TOKEN"
    return f"cannot be downloaded and is not in the cache ({line(cause)}); try again"


def _is_of_client(error: BaseException) -> bool:
    """Returns whether an error is one of the hub, the network or the disk, not a bug."""
    return isinstance(error, OSError) or _is_unreachable(error)


def _is_unreachable(error: BaseException) -> bool:
    return isinstance(error, ConnectionError | TimeoutError) or any(
        kind.__module__.split(".")[0] in _NETWORK for kind in type(error).__mro__
    )


def line(error: BaseException) -> str:
    """Returns the message of an error of the client, or of the hub, on one line, without
    secrets."""
    from huggingface_hub import get_token

    text = getattr(error, "server_message", None) or str(error)
    if token := get_token():
        text = text.replace(token, "…")
    text = without_secrets(text).partition(_MORE)[0]
    return text.strip()[:200] or type(error).__name__
