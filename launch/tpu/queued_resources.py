"""The queued resources of a job: lists, creates and deletes them with gcloud.

The API has no conditional delete, so each has a name of its own, JOB-NUMBER: a launcher that is
late cannot delete the one that follows.
"""

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bert_jax.errors import UserError
from bert_jax.launch import programs
from bert_jax.launch.job import Rendering
from bert_jax.launch.programs import ProgramError
from bert_jax.launch.tpu.reconcile import Resource, transient_code
from bert_jax.launch.tpu.submission import RESOURCE

COMMAND = ("gcloud", "compute", "tpus", "queued-resources")
OWNER = "bert-jax-job"  # metadata attribute: folder of the job's records
# gcloud's own line: what failed, the API's name of the error, its message.
_ERROR = re.compile(
    r"ERROR: (?:\([\w.-]+\)|gcloud crashed) (?:(?P<name>[A-Z]+(?:_[A-Z]+)*): )?(?P<line>.*)"
)
# How it shows an error for which it has no line: the answer of the API.
_ANSWER = re.compile(r'"message": "(?P<line>[^"]*)".*"status": "(?P<name>[A-Z_]+)"')
_NO_ANSWER = re.compile(r"Max retries exceeded|timed out|Connection|HttpError", re.IGNORECASE)


class ApiError(UserError):
    """The API refused a request. code: of google.rpc.Code if it may take it later, else 0."""

    def __init__(self, line: str, name: str, code: int):
        super().__init__(line)
        self.name, self.code = name, code


class QueuedResources:
    """The queued resources of one job in one zone."""

    def __init__(
        self,
        name: str,
        owner: str,
        place: Sequence[str],
        request: Callable[[int], Rendering] | None = None,
    ):
        """name: of the job. owner: folder of its records. place: flags for zone and project.
        request: returns the files and the command that create one; not needed to end a job."""
        self._name, self._owner, self._place = name, owner, tuple(place)
        self._request = request

    def list_words(self) -> tuple[str, ...]:
        return (*COMMAND, "list", *self._place, "--format=json")

    def delete_words(self, number: int) -> tuple[str, ...]:
        name = resource_name(self._name, number)
        return (*COMMAND, "delete", name, *self._place, "--force", "--async", "--quiet")

    def list(self) -> "list[Resource]":
        """Returns those that exist, by number.

        Raises:
            ApiError: the API does not answer, or refuses.
            UserError: one of another job has such a name.
        """
        found = json.loads(_call(self.list_words()) or "[]")
        pattern = re.compile(rf".*/{re.escape(self._name)}-(\d+)")
        named = [(match, about) for about in found if (match := pattern.fullmatch(about["name"]))]
        for _, about in named:
            self._check_owner(about)
        resources = [_resource(int(match[1]), about) for match, about in named]
        return sorted(resources, key=lambda resource: resource.number)

    def create(self, number: int) -> None:
        """Requests one. One that exists is no error."""
        if self._request is None:
            raise ValueError(f"no request for {self._name}")
        rendering = self._request(number)
        with TemporaryDirectory() as folder:
            rendering.write(Path(folder))
            for words in rendering.commands:
                _change(words, folder=Path(folder), fine="ALREADY_EXISTS")

    def delete(self, number: int) -> None:
        """Requests that one is deleted, with its machines. One that does not exist is no error."""
        _change(self.delete_words(number), fine="NOT_FOUND")

    def _check_owner(self, about: Any) -> None:
        specs = about.get("tpu", {}).get("nodeSpec", [])
        owners = {spec.get("node", {}).get("metadata", {}).get(OWNER) for spec in specs}
        if owners - {self._owner}:
            name = about["name"].rpartition("/")[2]
            raise UserError(
                f"--name={self._name}: the queued resource {name} is not of this job and workdir; "
                "choose another name"
            )


def resource_name(name: str, number: int) -> str:
    return f"{name}-{number}"


def _resource(number: int, about: Any) -> Resource:
    state = about.get("state", {})
    error = state.get("failedData", {}).get("error", {})
    message = " ".join(str(error.get("message", "")).split())
    return Resource(
        number,
        state.get("state", "UNKNOWN"),
        int(error.get("code", 0)),
        message,
        _submission(about),
    )


def _submission(about: Any) -> str:
    """Returns the id of the submission that a queued resource was requested for, "" if unknown."""
    for spec in about.get("tpu", {}).get("nodeSpec", []):
        text = spec.get("node", {}).get("metadata", {}).get(RESOURCE)
        with contextlib.suppress(ValueError, AttributeError):
            return str(json.loads(text or "{}").get("submission", ""))
    return ""


def _call(words: Sequence[str]) -> str:
    try:
        return programs.call(words)
    except ProgramError as error:
        raise api_error(error) from None


def _change(words: Sequence[str], *, folder: Path | None = None, fine: str) -> None:
    try:
        programs.change(words, folder=folder)
    except ProgramError as error:
        refused = api_error(error)
        if refused.name != fine:
            raise refused from None


def api_error(error: ProgramError) -> ApiError:
    """Returns what gcloud reports, in one line."""
    shown = _ERROR.search(error.errors)
    match = _ANSWER.search(error.errors) or shown
    if match is None:
        is_late = error.reason.startswith("timed out")
        return ApiError(error.reason, "", transient_code("UNAVAILABLE") if is_late else 0)
    name, line = match["name"] or "", match["line"]
    if not name and _NO_ANSWER.search(line):
        return ApiError(line[:200], "", transient_code("UNAVAILABLE"))
    return ApiError(f"{name}: {line}" if name else line, name, transient_code(name))
