"""Reads and writes small objects of a Cloud Storage bucket with the standard library alone.

Hosts of Cloud TPU do so before anything is installed on them (their Python is 3.10), and users are
logged in to gcloud, not to the client libraries that `bert_jax.storage.remote` uses.
"""

import calendar
import contextlib
import dataclasses
import email.utils
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

from bert_jax.errors import UserError

_ATTEMPTS = 5  # of one request
_PAUSE = 0.5  # seconds after the first failed attempt; doubles
_TIMEOUT = 30.0  # seconds without a response
# Seconds after which a request is not made again: this machine may have slept, and what the writer
# decided may be wrong by then.
_PATIENCE = 60.0
TRANSIENT = (408, 429, 500, 502, 503, 504)  # status of a request that may succeed later


class BucketError(UserError):
    """The bucket cannot be read or written: one line with the object and the reason."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """An object in a listing.

    name: below the bucket's folder. size: in bytes. version: another for other content.
    age: seconds since it was written, by the clock of the server.
    """

    name: str
    size: int
    version: str
    age: float


class Bucket:
    """The objects below one folder of a bucket; names are relative to it."""

    def __init__(self, url: str, token: Callable[[], str]):
        """url: gs://bucket/folder. token: returns an OAuth access token; an emulator needs none."""
        if not url.startswith("gs://"):
            raise ValueError(f"{url}: not in a bucket")
        self.url = url.rstrip("/")
        self._bucket, _, folder = self.url.removeprefix("gs://").partition("/")
        self._folder = f"{folder}/" if folder else ""
        self._token = token
        # The variable by which Google's own clients find an emulator.
        self._emulator = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
        self._server = self._emulator or "https://storage.googleapis.com"

    def read(self, name: str) -> bytes | None:
        """Returns an object's content, None if it does not exist."""
        status, data, _ = self._ask("GET", f"{self._object(name)}?alt=media", name)
        return None if status == 404 else data

    def read_json(self, name: str) -> Any:
        """Returns an object's JSON value, None if it does not exist."""
        data = self.read(name)
        return None if data is None else json.loads(data)

    def write(self, name: str, data: bytes, *, new: bool = False) -> bool:
        """Writes an object atomically.

        new: write it only if it does not exist.
        Returns whether the object now has this content: False if `new`, and another one exists.
        """
        query = {"uploadType": "media", "name": self._folder + name}
        if new:
            query["ifGenerationMatch"] = "0"
        path = f"/upload/storage/v1/b/{self._bucket}/o?{urllib.parse.urlencode(query)}"
        status, _, _ = self._ask("POST", path, name, data)
        # It may be this one, written by an attempt whose response was lost.
        return status != 412 or self.read(name) == data

    def write_json(self, name: str, value: Any, *, new: bool = False) -> bool:
        return self.write(name, json.dumps(value, indent=1).encode(), new=new)

    def list(self, prefix: str = "") -> list[Entry]:
        """Returns all objects whose name begins with a prefix, sorted by name."""
        found: list[Entry] = []
        now = 0.0  # one for all pages, so that ages order their objects
        query = {
            "prefix": self._folder + prefix,
            "fields": "nextPageToken,items(name,size,generation,updated)",
        }
        while True:
            path = f"/storage/v1/b/{self._bucket}/o?{urllib.parse.urlencode(query)}"
            status, data, date = self._ask("GET", path, prefix)
            if status == 404:
                raise BucketError(f"gs://{self._bucket}: no such bucket; check its spelling")
            page, now = json.loads(data), now or _seconds(date)
            for item in page.get("items", ()):
                name = item["name"].removeprefix(self._folder)
                written = time.strptime(item["updated"][:19], "%Y-%m-%dT%H:%M:%S")
                age = max(now - calendar.timegm(written), 0.0)
                found.append(Entry(name, int(item["size"]), item["generation"], age))
            if not page.get("nextPageToken"):
                return found
            query["pageToken"] = page["nextPageToken"]

    def delete(self, name: str) -> None:
        """Deletes an object, if it exists."""
        self._ask("DELETE", self._object(name), name)

    def _object(self, name: str) -> str:
        quoted = urllib.parse.quote(self._folder + name, safe="")
        return f"/storage/v1/b/{self._bucket}/o/{quoted}"

    def _ask(
        self, method: str, path: str, name: str, data: bytes | None = None
    ) -> tuple[int, bytes, str | None]:
        """Returns status (200, 404 or 412), body and date of a response."""
        reason, began = "", time.time()
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE * 2 ** (attempt - 1))
                if not 0.0 <= time.time() - began <= _PATIENCE:
                    break
            request = urllib.request.Request(self._server + path, data, method=method)
            if not self._emulator:
                request.add_header("Authorization", f"Bearer {self._token()}")
            if data is not None:
                request.add_header("Content-Type", "application/octet-stream")
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
                    return 200, answer.read(), answer.headers.get("Date")
            except urllib.error.HTTPError as error:
                body = error.read()
                if error.code in (404, 412):
                    return error.code, body, error.headers.get("Date")
                reason = _message(body) or f"{error.code} {error.reason}"
                if error.code not in TRANSIENT:
                    break
            except (OSError, http.client.HTTPException) as error:
                reason = str(getattr(error, "reason", "") or error or type(error).__name__)
        verb = "read" if method == "GET" else "written" if method == "POST" else "deleted"
        raise BucketError(f"{self.url}/{name}: cannot be {verb} ({reason})")


def _message(body: bytes) -> str:
    """Returns the message of Cloud Storage's error response."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return " ".join(str(json.loads(body)["error"]["message"]).split())[:200]
    return ""


def _seconds(date: str | None) -> float:
    """Returns the seconds since the epoch of an HTTP date; of this machine's clock without one."""
    parts = email.utils.parsedate_tz(date or "")
    return email.utils.mktime_tz(parts) if parts else time.time()
