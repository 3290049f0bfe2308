"""A Hugging Face hub on loopback: one model with two commits, and what was asked of it."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse


class Hub:
    """`models`: name -> revision -> file name -> content; `requests`: paths in order."""

    def __init__(self, models: Mapping[str, Mapping[str, Mapping[str, bytes]]]) -> None:
        self.models, self.requests, self.endpoint = models, list[str](), ""

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Returns status, headers and body."""
        self.requests.append(path)
        path = unquote(urlparse(path).path)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+).*)?", path):
            return self._info(match[1], match[2] or "revision", match[3] or "main")
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._file(*match.groups())
        return 404, {}, b""

    def _info(self, name: str, kind: str, revision: str) -> tuple[int, dict[str, str], bytes]:
        if name not in self.models:
            return 401, {"X-Error-Code": "RepoNotFound"}, b"{}"
        commit = commit_of(revision)
        if revision not in self.models[name] and commit not in map(commit_of, self.models[name]):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        files = self._files(name, revision)
        listed = [
            {"type": "file", "path": file, "rfilename": file, "size": len(data), "oid": _etag(data)}
            for file, data in files.items()
        ]
        info = {"id": name, "sha": commit, "siblings": listed, "private": False, "tags": []}
        return (
            200,
            {"X-Repo-Commit": commit},
            json.dumps(listed if kind == "tree" else info).encode(),
        )

    def _files(self, name: str, revision: str) -> Mapping[str, bytes]:
        revisions = self.models[name]
        return next(f for r, f in revisions.items() if revision in (r, commit_of(r)))

    def _file(self, name: str, revision: str, file: str) -> tuple[int, dict[str, str], bytes]:
        data = self._files(name, revision)[file]
        commit = revision if len(revision) == 40 else commit_of(revision)
        return 200, {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": commit}, data


def commit_of(revision: str) -> str:
    """Returns the commit that a branch or tag names; a commit names itself."""
    if re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    return hashlib.sha1(revision.encode()).hexdigest()


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Serves the hub while the context is open; sets its `endpoint`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(with_body=True)

        def do_HEAD(self) -> None:
            self._send(with_body=False)

        def _send(self, *, with_body: bool) -> None:
            status, headers, body = hub.answer(self.path)
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
