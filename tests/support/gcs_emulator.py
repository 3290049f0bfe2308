"""Google Cloud Storage on loopback, with faults to switch on: what tests of buckets talk to.

The JSON API as far as two clients use it: gcsfs (through `etils.epath`) and TensorStore. Objects
are in memory; every object changes whole, as in the real one, and there is no rename nor append.
It serves the test's own process and those that it starts with `env`.
"""

import base64
import dataclasses
import hashlib
import itertools
import json
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

Query = Mapping[str, str]


@dataclasses.dataclass
class Faults:
    """What goes wrong; all of it may be changed at any time. Counts are of requests."""

    latency: float = 0.0  # seconds before every answer
    fail_every: int = 0  # every n-th request is answered with `fail_status`
    fail_status: int = 503
    reset_every: int = 0  # every n-th connection is reset in the middle of a request
    truncate_every: int = 0  # every n-th download ends after half of its bytes
    flip_every: int = 0  # every n-th download has one bit wrong
    refuse_writes: int = 0  # the status that all writes are answered with, such as 403 or 507
    refuse_names: str = ""  # what the names of objects have in them that no write is taken for
    fail_names: str = ""  # `fail_every` counts only reads of objects with this in their names
    down: bool = False  # every connection is closed without an answer
    denied: frozenset[str] = frozenset()  # buckets answered with 403


@dataclasses.dataclass(frozen=True)
class _Object:
    data: bytes
    generation: int
    updated: str
    content_type: str = "application/octet-stream"


@dataclasses.dataclass
class _Upload:
    """A resumable upload that has begun."""

    bucket: str
    name: str
    query: Query
    data: bytes = b""


class _RefusedError(Exception):
    """An answer other than success."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class Emulator:
    """A server on a free port of 127.0.0.1; `with Emulator() as bucket_server: …`."""

    def __init__(self, *buckets: str):
        self.faults = Faults()
        self.tokens: dict[str, set[str]] = {}  # credentials -> the programs that showed them
        self.requests: list[tuple[str, str]] = []  # method and path of each, in order
        self._buckets: dict[str, dict[str, _Object]] = {name: {} for name in buckets}
        self._uploads: dict[str, _Upload] = {}
        self._generations = itertools.count(1_000_000)
        self._lock = threading.RLock()
        self._counts: dict[str, int] = {}
        emulator = self

        class Handler(_Handler):
            server_emulator = emulator

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        # Clients that are killed reset their connections; there is nothing to say of it.
        self._server.handle_error = lambda request, client: None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> "Emulator":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def env(self) -> dict[str, str]:
        """What makes both clients of a process talk to this server, without credentials."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "FSSPEC_GCS": json.dumps({"token": "anon"}),
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",  # else TensorStore asks a metadata server
            "NO_GCE_CHECK": "true",  # the same for google-auth
        }

    def names(self, bucket: str, prefix: str = "") -> list[str]:
        with self._lock:
            return sorted(name for name in self._buckets[bucket] if name.startswith(prefix))

    def read(self, bucket: str, name: str) -> bytes:
        with self._lock:
            return self._buckets[bucket][name].data

    def write(self, bucket: str, name: str, data: bytes) -> None:
        self._put(bucket, name, data, {})

    def delete(self, bucket: str, name: str) -> None:
        with self._lock:
            del self._buckets[bucket][name]

    def count(self, method: str, part: str = "") -> int:
        """Requests so far of a method whose path has `part` in it."""
        with self._lock:
            return sum(m == method and part in path for m, path in self.requests)

    # What follows answers requests; each takes and gives what the JSON API says.

    def _due(self, what: str, every: int) -> bool:
        """Whether it is this request's turn, counted from when the fault was switched on."""
        with self._lock:
            self._counts[what] = self._counts.get(what, 0) + 1 if every else 0
            return bool(every) and self._counts[what] % every == 0

    def _objects(self, bucket: str) -> dict[str, _Object]:
        if bucket in self.faults.denied:
            raise _RefusedError(403, f"anonymous does not have access to bucket {bucket}")
        if bucket not in self._buckets:
            raise _RefusedError(404, "The specified bucket does not exist.")
        return self._buckets[bucket]

    def _find(self, bucket: str, name: str, query: Query) -> _Object:
        with self._lock:
            found = self._objects(bucket).get(name)
            _check_generation(found, query)
            if found is None or query.get("generation") not in (None, str(found.generation)):
                raise _RefusedError(404, f"No such object: {bucket}/{name}")
            return found

    def _put(self, bucket: str, name: str, data: bytes, query: Query) -> dict[str, object]:
        with self._lock:
            objects = self._objects(bucket)
            if self.faults.refuse_names and self.faults.refuse_names in name:
                raise _RefusedError(403, "writes of this are refused")
            _check_generation(objects.get(name), query)
            now = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
            objects[name] = _Object(bytes(data), next(self._generations), now)
            return _resource(bucket, name, objects[name])

    def _remove(self, bucket: str, name: str, query: Query) -> None:
        with self._lock:
            self._find(bucket, name, query)
            del self._objects(bucket)[name]

    def _list(self, bucket: str, query: Query) -> dict[str, object]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        most = int(query.get("maxResults", 1000))
        first, end = query.get("startOffset", ""), query.get("endOffset")
        items: list[dict[str, object]] = []
        prefixes: list[str] = []
        last = query.get("pageToken", "")  # the name or prefix that the page before ended with
        with self._lock:
            for name in sorted(self._objects(bucket)):
                if not name.startswith(prefix) or name < first or (end and name >= end):
                    continue
                cut = name.find(delimiter, len(prefix)) if delimiter else -1
                shown = name if cut < 0 else name[: cut + len(delimiter)]
                if shown <= last:
                    continue
                if len(items) + len(prefixes) == most:
                    page = {"nextPageToken": last}
                    break
                if cut < 0:
                    items.append(_resource(bucket, name, self._buckets[bucket][name]))
                else:
                    prefixes.append(shown)
                last = shown
            else:
                page = {}
        return {"kind": "storage#objects", "items": items, "prefixes": prefixes, **page}

    def _begin_upload(self, bucket: str, name: str, query: Query) -> str:
        with self._lock:
            self._objects(bucket)
            key = f"upload-{next(self._generations)}"
            self._uploads[key] = _Upload(bucket, name, query)
        return f"{self.url}/upload/resumable/{key}"


class _Handler(BaseHTTPRequestHandler):
    server_emulator: Emulator
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def log_message(self, *args: object) -> None:
        """Quiet."""

    def _answer(
        self, status: int, body: bytes = b"", kind: str = "application/json", **headers: str
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: object, **headers: str) -> None:
        self._answer(200, json.dumps(value).encode(), **headers)

    def _hang_up(self) -> None:
        """Closes with a reset instead of an answer."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def _handle(self) -> None:
        emulator, faults = self.server_emulator, self.server_emulator.faults
        split = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(split.query, keep_blank_values=True))
        body = self._body()
        path = split.path  # quoted: "/" of an object's name is "%2F"
        if faults.latency:
            time.sleep(faults.latency)
        with emulator._lock:
            emulator.requests.append((self.command, urllib.parse.unquote(path)))
            agent = self.headers.get("User-Agent", "").partition("/")[0]
            emulator.tokens.setdefault(self.headers.get("Authorization", ""), set()).add(agent)
        if faults.down or emulator._due("reset", faults.reset_every):
            self._hang_up()
            return
        try:
            concerned = faults.fail_names in urllib.parse.unquote(path)
            if concerned and emulator._due("fail", faults.fail_every):
                raise _RefusedError(faults.fail_status, "try again later")
            if self.command not in ("GET", "HEAD") and faults.refuse_writes:
                raise _RefusedError(faults.refuse_writes, "writes are refused")
            self._route(path, query, body)
        except _RefusedError as refused:
            error = {"error": {"code": refused.status, "message": str(refused)}}
            self._answer(refused.status, json.dumps(error).encode())
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client is gone

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _route(self, path: str, query: Query, body: bytes) -> None:
        emulator = self.server_emulator
        words = [urllib.parse.unquote(word) for word in path.strip("/").split("/")]
        match words:
            case ["upload", "resumable", key]:
                self._continue_upload(key, body)
            case ["upload", "storage", "v1", "b", bucket, "o"]:
                self._upload(bucket, query, body)
            case ["storage", "v1", "b"] if self.command == "POST":
                name = json.loads(body)["name"]
                with emulator._lock:
                    emulator._buckets.setdefault(name, {})
                self._json(_bucket(name))
            case ["storage", "v1", "b", bucket]:
                emulator._objects(bucket)
                self._json(_bucket(bucket))
            case ["storage", "v1", "b", bucket, "o"]:
                self._json(emulator._list(bucket, query))
            case ["storage" | "download", *_, "b", bucket, "o", name]:
                self._object(bucket, name, query)
            case ["storage", "v1", "b", bucket, "o", name, "rewriteTo", "b", to, "o", as_name]:
                data = emulator._find(bucket, name, {}).data
                resource = emulator._put(to, as_name, data, query)
                size = str(len(data))
                done = {"kind": "storage#rewriteResponse", "done": True, "resource": resource}
                self._json({**done, "totalBytesRewritten": size, "objectSize": size})
            case ["storage", "v1", "b", bucket, "o", name, "moveTo", "o", as_name]:
                with emulator._lock:
                    data = emulator._find(bucket, name, {}).data
                    resource = emulator._put(bucket, as_name, data, query)
                    emulator._remove(bucket, name, {})
                self._json(resource)
            case _:
                raise _RefusedError(501, f"the emulator has no {self.command} {path}")

    def _object(self, bucket: str, name: str, query: Query) -> None:
        emulator = self.server_emulator
        if self.command == "DELETE":
            emulator._remove(bucket, name, query)
            self._answer(204)
            return
        found = emulator._find(bucket, name, query)
        if query.get("alt") == "media":
            self._download(found)
        else:
            self._json(_resource(bucket, name, found))

    def _download(self, found: _Object) -> None:
        emulator, faults, data = self.server_emulator, self.server_emulator.faults, found.data
        headers = {
            "x_goog_generation": str(found.generation),
            "x_goog_hash": f"md5={_md5(data)}",
            "ETag": str(found.generation),
        }
        status, wanted = 200, self.headers.get("Range")
        if wanted:
            low, _, high = wanted.removeprefix("bytes=").partition("-")
            first = int(low) if low else max(len(data) - int(high), 0)
            last = min(int(high), len(data) - 1) if low and high else len(data) - 1
            if first > last:
                raise _RefusedError(416, f"range {wanted} of {len(data)} bytes is not satisfiable")
            headers["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
            status, data = 206, data[first : last + 1]
        if data and emulator._due("flip", faults.flip_every):
            data = bytes([data[0] ^ 1]) + data[1:]
        if len(data) > 1 and emulator._due("truncate", faults.truncate_every):
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        self._answer(status, data, found.content_type, **headers)

    def _upload(self, bucket: str, query: Query, body: bytes) -> None:
        emulator, kind = self.server_emulator, query.get("uploadType")
        if kind == "media":
            self._json(emulator._put(bucket, query["name"], body, query))
        elif kind == "multipart":
            about, data = _two_parts(body, self.headers["Content-Type"])
            name = json.loads(about).get("name") or query["name"]
            self._json(emulator._put(bucket, name, data, query))
        elif kind == "resumable":
            name = query.get("name") or json.loads(body)["name"]
            self._answer(200, Location=emulator._begin_upload(bucket, name, query))
        else:
            raise _RefusedError(400, f"uploadType {kind} is not known")

    def _continue_upload(self, key: str, body: bytes) -> None:
        """A chunk, as `Content-Range: bytes FIRST-LAST/TOTAL` says; TOTAL is * before the last."""
        emulator = self.server_emulator
        with emulator._lock:
            upload = emulator._uploads.get(key)
            if upload is None:
                raise _RefusedError(404, "no such upload")
            if self.command == "DELETE":
                del emulator._uploads[key]
                self._answer(499)
                return
            place, _, total = self.headers["Content-Range"].removeprefix("bytes ").partition("/")
            if body:
                upload.data = upload.data[: int(place.split("-")[0])] + body
            if total != "*" and len(upload.data) == int(total):
                del emulator._uploads[key]
                self._json(emulator._put(upload.bucket, upload.name, upload.data, upload.query))
                return
        there = {"Range": f"bytes=0-{len(upload.data) - 1}"} if upload.data else {}
        self._answer(308, **there)


for _method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler._handle)


def _check_generation(found: _Object | None, query: Query) -> None:
    """Generation 0 is no object."""
    is_now = str(found.generation) if found else "0"
    if query.get("ifGenerationMatch", is_now) != is_now:
        raise _RefusedError(412, "the generation is another")
    if query.get("ifGenerationNotMatch") == is_now:
        raise _RefusedError(304 if found else 412, "the generation is that")


def _resource(bucket: str, name: str, found: _Object) -> dict[str, object]:
    return {
        "kind": "storage#object",
        "bucket": bucket,
        "name": name,
        "size": str(len(found.data)),
        "generation": str(found.generation),
        "metageneration": "1",
        "timeCreated": found.updated,
        "updated": found.updated,
        "contentType": found.content_type,
        "md5Hash": _md5(found.data),
        "etag": str(found.generation),
    }


def _bucket(name: str) -> dict[str, object]:
    return {"kind": "storage#bucket", "name": name, "id": name, "location": "LOOPBACK"}


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _two_parts(body: bytes, content_type: str) -> tuple[bytes, bytes]:
    """Both parts of a multipart/related body, without their headers."""
    boundary = content_type.partition("boundary=")[2].strip().strip("\"'").encode()
    first, second = body.split(b"--" + boundary)[1:3]
    parts = []
    for part in (first, second):
        ends = [(part.find(gap), len(gap)) for gap in (b"\r\n\r\n", b"\n\n")]
        start = min(at + length for at, length in ends if at >= 0)
        last = 2 if part.endswith(b"\r\n") else 1
        parts.append(part[start : len(part) - last])
    return parts[0], parts[1]


@contextmanager
def emulated(monkeypatch: pytest.MonkeyPatch, *buckets: str) -> Iterator[Emulator]:
    """Serves buckets to this process and to those that it starts."""
    import fsspec.config

    monkeypatch.setitem(fsspec.config.conf, "gcs", {"token": "anon"})
    with Emulator(*buckets) as emulator:
        for name, value in emulator.env.items():
            monkeypatch.setenv(name, value)
        yield emulator
