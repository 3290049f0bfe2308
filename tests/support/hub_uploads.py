"""A Hugging Face hub on loopback that takes models: what a push sends, and what it is refused.

It answers what the installed client asks in `upload_folder` without Xet: create, info, tree,
branch, validate-yaml, preupload, LFS batch and object, commit; and for a file that it downloads.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlparse

from hub_server import listening

TOKEN, OWNER = "hf_secretOfTheTests", "me"
Answer = tuple[int, dict[str, str], object]


class Uploads:
    """The repositories of one owner.

    `branches`: name -> branch -> path -> content; `private`: by name; `asked`: method and path of
    each request, in order; `refuse`: a pattern of these, and the status that they get, with
    `message`; `sent`: bytes of the objects that were put.
    """

    def __init__(self) -> None:
        self.branches: dict[str, dict[str, dict[str, bytes]]] = {}
        self.private: dict[str, bool] = {}
        self.asked: list[str] = []
        self.objects: dict[str, bytes] = {}
        self.refuse: tuple[str, int] | None = None
        self.message = "as the test wants"
        self.sent, self.endpoint = 0, ""

    def files(self, name: str, branch: str = "main") -> dict[str, bytes]:
        return {k: v for k, v in self.branches[name][branch].items() if k != ".gitattributes"}

    def add(self, name: str, files: dict[str, bytes], *, private: bool = True) -> None:
        self.branches[name] = {"main": {".gitattributes": b"", **files}}
        self.private[name] = private

    def answer(self, method: str, path: str, token: str, body: bytes) -> Answer:
        """Returns status, headers, and the body, which is JSON unless it is bytes."""
        path = unquote(urlparse(path).path)
        self.asked.append(f"{method} {path}")
        if self.refuse and re.search(self.refuse[0], self.asked[-1]):
            return self.refuse[1], {"X-Error-Message": self.message}, {"error": "refused"}
        if match := re.fullmatch(r"/objects/(\w+)", path):
            assert hashlib.sha256(body).hexdigest() == match[1]
            self.objects[match[1]] = body
            self.sent += len(body)
            return 200, {}, {}
        if token != f"Bearer {TOKEN}":
            wrong = "Invalid credentials in Authorization header"
            return 401, {"X-Error-Message": wrong}, {"error": wrong}
        if path == "/api/validate-yaml":
            return 200, {}, {}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if match := re.fullmatch(r"/(\w+/[\w.-]+)\.git/info/lfs/objects/batch", path):
            return self._batch(json.loads(body)["objects"])
        if match := re.fullmatch(r"/(\w+/[\w.-]+)/resolve/([\w.-]+)/(.+)", path):
            data = self.branches[match[1]][match[2]][match[3]]
            return 200, {"ETag": f'"{_git(data)}"', "X-Repo-Commit": "0" * 40}, data
        match = re.fullmatch(r"/api/models/(\w+/[\w.-]+)(?:/(\w+)/([\w.-]+))?(?:/.*)?", path)
        assert match, path
        name, what, branch = match[1], match[2] or "revision", match[3] or "main"
        if name not in self.branches:
            return 404, {"X-Error-Code": "RepoNotFound"}, {}
        if what == "branch":
            known = self.branches[name]
            if branch in known:
                return 409, {}, {"error": "exists"}
            known[branch] = dict(known["main"])
            return 200, {}, {}
        if branch not in self.branches[name]:
            return 404, {"X-Error-Code": "RevisionNotFound"}, {}
        return getattr(self, f"_{what}")(name, branch, body)

    def _create(self, values: dict[str, Any]) -> Answer:
        name = f"{values['organization']}/{values['name']}"
        if values["organization"] != OWNER:
            return 403, {"X-Error-Message": "no rights in this namespace"}, {"error": "no rights"}
        if name in self.branches:
            return 409, {}, {"error": "exists", "url": f"{self.endpoint}/{name}"}
        private = values.get("private", values.get("visibility") == "private")
        self.add(name, {}, private=private)
        return 200, {}, {"url": f"{self.endpoint}/{name}"}

    def _revision(self, name: str, branch: str, body: bytes) -> Answer:
        listed = [self._listed(*item) for item in self.branches[name][branch].items()]
        private = self.private[name]
        info = {"id": name, "sha": self._head(name, branch), "siblings": listed}
        return 200, {}, {**info, "private": private}

    def _tree(self, name: str, branch: str, body: bytes) -> Answer:
        return 200, {}, [self._listed(*item) for item in self.branches[name][branch].items()]

    def _listed(self, path: str, data: bytes) -> dict[str, Any]:
        entry = {"type": "file", "path": path, "rfilename": path, "size": len(data)}
        sha = hashlib.sha256(data).hexdigest()
        lfs = {"lfs": {"sha256": sha, "oid": sha, "size": len(data), "pointerSize": 100}}
        return {**entry, "oid": _git(data), "blobId": _git(data), **(lfs if _large(path) else {})}

    def _preupload(self, name: str, branch: str, body: bytes) -> Answer:
        have, files = self.branches[name][branch], json.loads(body)["files"]
        modes = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if _large(file["path"]) else "regular",
                "shouldIgnore": False,
                "oid": self._oid(file["path"], have.get(file["path"])),
            }
            for file in files
        ]
        return 200, {}, {"files": modes}

    def _oid(self, path: str, data: bytes | None) -> str | None:
        if data is None:
            return None
        return hashlib.sha256(data).hexdigest() if _large(path) else _git(data)

    def _batch(self, objects: list[dict[str, Any]]) -> Answer:
        def action(oid: str) -> dict[str, Any]:
            if oid in self.objects:
                return {}
            return {"actions": {"upload": {"href": f"{self.endpoint}/objects/{oid}"}}}

        return 200, {}, {"objects": [{**entry, **action(entry["oid"])} for entry in objects]}

    def _commit(self, name: str, branch: str, body: bytes) -> Answer:
        files = self.branches[name][branch]
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        head = self._head(name, branch)
        return 200, {}, {"commitUrl": f"{self.endpoint}/{name}/commit/{head}", "commitOid": head}

    def _head(self, name: str, branch: str) -> str:
        """The commit of a branch, which the files alone make."""
        return hashlib.sha1(repr(sorted(self.branches[name][branch].items())).encode()).hexdigest()


def _large(path: str) -> bool:
    return path.endswith(".safetensors")


def _git(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


@contextmanager
def serve_uploads() -> Iterator[Uploads]:
    """Serves a hub while the context is open; sets its `endpoint`."""
    hub = Uploads()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _send(self) -> None:
            body = self._body()
            token = self.headers.get("Authorization", "")
            status, headers, answer = hub.answer(self.command, self.path, token, body)
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(data))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def do_GET(self) -> None:
            self._send()

        def do_HEAD(self) -> None:
            self._send()

        def do_POST(self) -> None:
            self._send()

        def do_PUT(self) -> None:
            self._send()

        def log_message(self, *_: object) -> None: ...

    with listening(Handler) as hub.endpoint:
        yield hub
