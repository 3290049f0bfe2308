"""Checks before anything is created: all of them run, and every failure is reported at once."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.launch import bundle
from bert_jax.storage.remote import is_remote, open_path, put, storage_errors
from bert_jax.storage.upload_command import upload_command


class CheckFailedError(Exception):
    """A check failed: what is wrong, and what to do."""

    def __init__(self, line: str, remedy: str):
        super().__init__(f"{line}; {remedy}")


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that must hold.

    name: one or two words, such as "bucket".
    probe: returns a line about what it found; raises CheckFailedError, or UserError with both the
        line and the remedy in its message.
    """

    name: str
    probe: Callable[[], str]


def outcome(check: Check) -> tuple[bool, str]:
    """Returns whether a check holds, and what it found or what to do."""
    try:
        return True, check.probe()
    except (CheckFailedError, UserError) as error:
        return False, str(error)


def check_version(text: str, least: tuple[int, int], remedy: str) -> None:
    """Raises CheckFailedError if the first two numbers of a program's version are below `least`, or
    there is none; remedy: the words before that version."""
    found = re.search("([0-9]+)[.]([0-9]+)", text)
    if found is None:
        raise no_version(text)
    if (int(found[1]), int(found[2])) < least:
        needed = ".".join(map(str, least))
        raise CheckFailedError(f"{text} is too old", f"{remedy} {needed} or newer")


def no_version(printed: str) -> CheckFailedError:
    """Returns the error of a program that answers, but not with its version."""
    line = f"printed no version, but {printed.strip()[:60]!r}"
    return CheckFailedError(line, "repair it, or install it again")


def run_checks(checks: Iterable[Check], say: Callable[[str], None]) -> None:
    """Runs all checks and says what each found; raises UserError if any failed."""
    failures = {}
    for check in checks:
        holds, line = outcome(check)
        if holds:
            say(f"{check.name}: {line}")
        else:
            failures[check.name] = line
    if len(failures) == 1:
        ((name, line),) = failures.items()
        raise UserError(f"{name}: {line}")
    for name, line in failures.items():
        say(f"{name}: FAILED: {line}")
    if failures:
        raise UserError(
            f"{len(failures)} checks failed before anything was created: {', '.join(failures)}"
        )


def folder_check(name: str, folder: str) -> Check:
    """Returns the check that a folder, which may not exist yet, can be written to."""

    def probe() -> str:
        path = f"{folder}/.writable"
        remedy = "" if is_remote(folder) else "; give a folder of yours"
        with storage_errors(folder, "cannot be written", remedy):
            put(path, b"")
            open_path(path).unlink()
        return f"{folder} can be written"

    return Check(name, probe)


def store_check(store: str, read_manifest: Callable[[str], Mapping[str, Any]]) -> Check:
    """Returns the check that all files of a token store are there with their sizes; each host
    verifies their digests."""

    def probe() -> str:
        files = read_manifest(store)["files"]
        wrong = [name for name, entry in files.items() if _size(store, name) != entry["bytes"]]
        if wrong:
            copy = f": {upload_command('STORE', store)}" if is_remote(store) else ""
            remedy = f"copy the store again{copy}"
            raise CheckFailedError(f"{store}: {', '.join(wrong[:3])} missing or incomplete", remedy)
        return f"{store} has all of its {len(files)} files"

    return Check("store", probe)


def inputs_check(inputs: Mapping[str, str]) -> Check:
    """Returns the check that what the processes read is there.

    inputs: files and folders by the key that names them.
    """

    def probe() -> str:
        missing = [f"{key}={path}" for key, path in inputs.items() if not _exists(path)]
        if missing:
            raise CheckFailedError(
                f"{', '.join(missing)}: not there",
                "give a path that this machine and every host can read",
            )
        return f"{', '.join(inputs.values())} there"

    return Check("inputs", probe)


def _exists(path: str) -> bool:
    with storage_errors(path):
        return bool(path) and open_path(path).exists()


def _size(store: str, name: str) -> int | None:
    """Returns the size of a file in bytes; None if it is missing."""
    path = open_path(store) / name
    with storage_errors(path):
        try:
            return int(path.stat().length)
        except FileNotFoundError:
            return None


def code_check(checkout: Path, *, allow_dirty: bool) -> Check:
    """Returns the check that a checkout has no uncommitted changes, or may have them."""

    def probe() -> str:
        changes = bundle.uncommitted(checkout)
        shown = ", ".join(line[3:] for line in changes[:3])
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        if changes and not allow_dirty:
            raise CheckFailedError(
                f"uncommitted changes in {shown}{more}",
                "commit them, or give --allow_dirty, which records them with the job (a new file "
                "travels only after git add)",
            )
        return f"{checkout}: {f'with changes in {shown}{more}' if changes else 'committed'}"

    return Check("code", probe)


def private_file(name: str, path: str) -> Check:
    """Returns the check that a file with a secret is there and that only its owner may read it."""

    def probe() -> str:
        with storage_errors(path, remedy="; write the value to this file"):
            mode = os.stat(path).st_mode
        if mode & 0o077:
            raise CheckFailedError(f"{path}: others may read it", f"chmod 600 {path}")
        return path

    return Check(name, probe)
