"""Pushes an export to a model repository of the Hugging Face hub, private unless stated otherwise.

The upload is one call of `huggingface_hub.HfApi.upload_folder`: a push that was cut off, run again,
sends what is missing. Only files that SHA256SUMS lists are sent, and none replaces a file that was
edited on the hub. No message has the token in it.
"""

import hashlib
import re
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bert_jax.convert import checksums
from bert_jax.convert.checksums import SUMS
from bert_jax.errors import UserError
from bert_jax.publish.export import CARD
from bert_jax.publish.weight_writer import is_export
from bert_jax.storage import hub
from bert_jax.storage.digest import file_digest
from bert_jax.storage.read_files import local_path, read_bytes
from bert_jax.storage.remote import name_of_address

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MAIN: Final = "main"
_ATTRIBUTES: Final = ".gitattributes"  # in every repository from the start
_BRANCH: Final = re.compile(r"[A-Za-z0-9_][\w.-]*")


@dataclass(frozen=True)
class Target:
    """A branch of a model repository on the hub.

    Attributes:
        repository: OWNER/NAME.
        private: whether only its owner sees it.
        branch: made from `main` if the repository lacks it.
    """

    repository: str
    private: bool = True
    branch: str = MAIN

    def command(self, folder: Path | str) -> str:
        """Returns the command that pushes a folder there."""
        words = [f"--from={folder}", f"--push={self.repository}"]
        words += [f"--revision={self.branch}"] * (self.branch != MAIN)
        words += ["--public"] * (not self.private)
        return f"bert-jax convert push {shlex.join(words)}"


def check_target(target: Target) -> None:
    """Raises UserError if a name or the token is malformed, or there is none; uses no network."""
    from huggingface_hub import errors, get_token
    from huggingface_hub.utils import validate_repo_id

    where = f"--push={target.repository}"
    given = name_of_address(target.repository) or target.repository
    if hub.is_hub(given):
        name = given.removeprefix(hub.PREFIX).partition("@")[0]
        raise UserError(f"{where}: did you mean --push={name}?")
    try:
        validate_repo_id(target.repository)
    except errors.HFValidationError as error:
        raise UserError(f"{where}: not the name of a repository ({hub.line(error)})") from None
    if "/" not in target.repository:
        raise UserError(f"{where}: give OWNER/NAME, such as me/{target.repository}")
    if not _BRANCH.fullmatch(target.branch):
        raise UserError(f"--revision={target.branch}: not the name of a branch; give chck_10M")
    if not get_token():
        raise UserError(f"{where}: no token; {hub.LOGIN}, with one that may write there")
    hub.check_token(where)


def push(folder: Path | str, target: Target, command: str = "") -> None:
    """Pushes an export or import, and prints the address.

    A branch that has an earlier export gets the files of this one; files in it that no export
    wrote stay, and so does a model card that was edited there.

    Args:
        command: pushes this folder and others that are to follow, for the error of a cut push.

    Raises:
        UserError: as `check_target`; the folder is no export, or a file but the model card differs
            from it; the repository has other or edited content, or is not as private as asked; the
            hub cannot be reached, or refuses. The folder is unchanged.
    """
    check_target(target)
    folder = local_path(folder)
    sums = _read_sums(folder)
    from huggingface_hub import HfApi, get_token

    hub.bars_on_terminals()
    try:
        with hub.without_warnings():  # such as that there is nothing to send
            api = HfApi(token=get_token(), library_name="bert-jax")
            commit, is_new = _push(api, folder, sums, target)
    except UserError as error:
        raise UserError(f"{error}; {folder} stays") from None
    except Exception as error:  # whatever the client or its transports raise
        raise UserError(
            f"{target.repository}: cannot be pushed ({_reason(error)}); {folder} stays: "
            f"push {'the rest' if command else 'it again'} with "
            f"`{command or target.command(folder)}`"
        ) from None
    access = "private" if target.private else "public"
    done = f"{folder} pushed to" if is_new else f"{folder}: nothing to push; all of it is at"
    print(f"{done} {commit} ({access}, revision {target.branch})")


def _read_sums(folder: Path) -> Mapping[str, str]:
    """Returns the checksums of an export, whose files were compared with them."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give one that `bert-jax convert export` wrote")
    sums = checksums.read_checksums(folder)
    given = "give a folder that an export or import wrote"
    if sums is None:
        inside = [path.parent for path in folder.glob(f"*/{SUMS}")]  # of --all_steps
        if inside:
            last = max(inside, key=lambda path: (len(path.name), path.name))  # step-10, not step-2
            given = f"give one of its folders, such as {last}"
        raise UserError(f"{folder}: no {SUMS} in it; {given}")
    for name in sums:
        if name != CARD:  # it may be edited
            with checksums.checked(folder, name, sums):
                pass
    if not is_export(folder):
        raise UserError(f"{folder}: its weights were not written by bert-jax; {given}")
    kept = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    others = sorted(name for name in kept - {*sums, SUMS} if not name.startswith(".cache/"))
    if others:
        print(f"not pushed, since {SUMS} does not list them: {', '.join(others)}")
    return sums


def _push(api: "HfApi", folder: Path, sums: Mapping[str, str], target: Target) -> tuple[str, bool]:
    """Returns the address of the commit, and whether it is new."""
    name = where = target.repository
    api.create_repo(name, private=target.private, exist_ok=True)
    info = api.model_info(name, files_metadata=True)
    if bool(info.private) != target.private:
        raise UserError(_other_access(name, is_private=bool(info.private)))
    _check_content(info.siblings or (), folder, sums, name)
    if target.branch != MAIN:
        api.create_branch(name, branch=target.branch, exist_ok=True)
        info = api.model_info(name, revision=target.branch, files_metadata=True)
        where = f"{name}@{target.branch}"
        _check_content(info.siblings or (), folder, sums, where)
    with tempfile.TemporaryDirectory() as temporary:
        place, files = Path(temporary), info.siblings or ()
        there = _Branch(api, target, place / "there", {file.rfilename for file in files})
        earlier = there.sums()
        edited = [
            file.rfilename for file in files if _is_edited(file, folder, sums, there, earlier)
        ]
        if others := sorted(name for name in edited if name != CARD):
            raise UserError(
                f"{where}: {others[0]} was edited there since it was pushed; give a new name, or "
                "remove the file on its page"
            )
        sent = {name: digest for name, digest in sums.items() if name not in edited}
        if edited:
            print(f"{CARD} was edited at {where} and stays; to replace it, remove it on its page")
        if CARD in sent:  # it may have been edited in the folder
            sent[CARD] = file_digest(folder / CARD)
        _link(folder, place / "sent", sent)
        commit = api.upload_folder(
            repo_id=name,
            folder_path=place / "sent",
            revision=target.branch,
            commit_message="Upload by bert-jax",
            delete_patterns=sorted(earlier.keys() & there.names - {*sums, SUMS}) or None,
        )
    return str(commit.commit_url), commit.oid != info.sha


@dataclass(frozen=True)
class _Branch:
    """The files of a branch; they are downloaded to `folder`."""

    api: "HfApi"
    target: Target
    folder: Path
    names: set[str]

    def digest(self, name: str) -> str:
        path = self.api.hf_hub_download(
            self.target.repository, name, revision=self.target.branch, local_dir=self.folder
        )
        return file_digest(Path(path))

    def sums(self) -> Mapping[str, str]:
        """Returns the checksums of an earlier push; none before the first. UserError if they were
        edited there."""
        if SUMS not in self.names:
            return {}
        self.digest(SUMS)
        try:
            return checksums.read_checksums(self.folder) or {}
        except UserError:
            raise UserError(
                f"{self.target.repository}: {SUMS} there is damaged; remove it on its page"
            ) from None


def _is_edited(
    file: Any, folder: Path, sums: Mapping[str, str], there: _Branch, earlier: Mapping[str, str]
) -> bool:
    """Returns whether a push would replace or remove a file that none has sent like that.

    earlier: the checksums of the earlier push, if there was one.
    """
    name = file.rfilename
    if not earlier or name not in {*sums, *earlier}:
        return False
    if _is_same(file, folder / name, sums.get(name)):
        return False
    digest = there.digest(name) if file.lfs is None else file.lfs.sha256
    return bool(digest != earlier.get(name))


def _link(folder: Path, place: Path, sums: Mapping[str, str]) -> None:
    """Makes a folder of links to these files, with their SHA256SUMS. A card that stays on the hub
    is not among them, so that the next push does not take it for its own."""
    for name in sums:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).symlink_to((folder / name).absolute())
    (place / SUMS).write_text(checksums.text(sums), encoding="ascii")


def _other_access(name: str, *, is_private: bool) -> str:
    if is_private:
        return f"{name}: exists and is private; leave out --public, or make it public on its page"
    return f"{name}: exists and is public; give --public too, or another name"


def _check_content(files: Any, folder: Path, sums: Mapping[str, str], where: str) -> None:
    """Raises UserError if a branch has content that no export wrote.

    One with SHA256SUMS was pushed before. Without it, a push may have been cut off: its files are
    those of the folder.
    """
    if any(file.rfilename == SUMS for file in files):
        return
    for file in files:
        name = file.rfilename
        if name not in (_ATTRIBUTES, CARD) and not _is_same(file, folder / name, sums.get(name)):
            raise UserError(
                f"{where}: exists with other content ({name}); give a new name, or remove its "
                "files on its page"
            )


def _is_same(file: Any, own: Path, digest: str | None) -> bool:
    """Returns whether a file of a repository is the folder's; digest: its sha256, if it has one."""
    if digest is None:
        return False
    if file.lfs is not None:
        return bool(file.lfs.sha256 == digest)
    data = read_bytes(own)
    git = hashlib.sha1(f"blob {len(data)}\0".encode() + data, usedforsecurity=False)
    return bool(file.blob_id == git.hexdigest())


def _reason(error: BaseException) -> str:
    """Returns why the hub was not reached or refused, on one line without the token."""
    chain = [error]
    while cause := chain[-1].__cause__:
        chain.append(cause)
    refusal = next((error for error in chain if hub.status_of(error)), None)
    if refusal is None:
        # The others name only what was being done.
        return hub.line(chain[-1])
    status = hub.status_of(refusal)
    if status == 401:
        return f"the token is not valid; {hub.LOGIN}"
    hint = "; check the owner, and that the token may write there" * (status in (403, 404))
    return f"{status}: {hub.line(refusal)}{hint}"
