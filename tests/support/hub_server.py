"""A Hugging Face hub on loopback: repositories with commits, and what was asked of it.

It answers what huggingface_hub 0.34 and 2.4 ask for when they download (`hub_requests.txt`):
repository info, the tree in pages, paths-info, refs, and files with ETag, commit and linked size,
the large ones by a redirect, in ranges. Faults can be switched on.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlparse

import pytest

Files = Mapping[str, bytes]
Repositories = Mapping[str, Mapping[str, Files]]  # name -> revision -> file name -> content
Answer = tuple[int, dict[str, str], bytes]
_LARGE = (".safetensors", ".parquet")  # in LFS
_API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree|paths-info|refs)(.*))?")
_FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


class Hub:
    """
    Attributes:
        requests: paths in order; `asked`, with their methods.
        gated: names of repositories whose files are refused.
        token: the only one that the hub takes, if it is not "".
        refused: (pattern of a path, status), for each request.
        cut: names of files whose next transfers break off in the middle.
        page: entries of a page of a tree.
    """

    def __init__(self, models: Repositories, datasets: Repositories | None = None) -> None:
        self._commits: dict[tuple[str, str], dict[str, Files]] = {}
        self._heads: dict[tuple[str, str], dict[str, str]] = {}
        for kind, repositories in (("models", models), ("datasets", datasets or {})):
            for name, revisions in repositories.items():
                for revision, files in revisions.items():
                    self.move(name, revision, files, kind=kind, commit=commit_of(revision))
        self.requests, self.asked, self.endpoint = list[str](), list[str](), ""
        self.gated, self.token, self.page = set[str](), "", 1000
        self.refused, self.cut = dict[str, int](), list[str]()

    def move(
        self, name: str, revision: str, files: Files, *, kind: str = "models", commit: str = ""
    ) -> None:
        """A revision has other files from now on, under another commit."""
        commits = self._commits.setdefault((kind, name), {})
        commit = commit or commit_of(f"{revision} {len(commits)}")
        commits[commit] = files
        self._heads.setdefault((kind, name), {})[revision] = commit

    def answer(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Returns status, headers and body; a body that is cut is half of it."""
        self.requests.append(url)
        self.asked.append(f"{method} {url} {headers.get('Range', '')}".strip())
        path = urlparse(url).path
        for pattern, status in self.refused.items():
            if re.search(pattern, path):
                return status, {"Retry-After": "0"}, b"{}"
        if self.token and headers.get("Authorization", "") not in ("", f"Bearer {self.token}"):
            return 401, {}, b'{"error": "Invalid credentials in Authorization header"}'
        if match := _API.fullmatch(path):
            kind, name, what, rest = match.groups()
            return self._info(kind, name, what or "revision", unquote(rest or ""), url, body)
        if match := _FILE.fullmatch(path):
            kind = "datasets" if match[1] else "models"
            return self._file(kind, match[2], unquote(match[3]), unquote(match[4]))
        if path.startswith("/lfs/"):
            return self._large(path.rpartition("/")[2], headers.get("Range", ""))
        return 404, {}, b""

    def _find(self, kind: str, name: str, revision: str) -> tuple[str, Files]:
        commits = self._commits[kind, name]
        commit = self._heads[kind, name].get(revision, revision)
        return commit, commits[commit]

    def _info(self, kind: str, name: str, what: str, rest: str, url: str, body: bytes) -> Answer:
        if (kind, name) not in self._commits:
            return 401, {"X-Error-Code": "RepoNotFound"}, b"{}"
        if what == "refs":
            listing = _refs(self._heads[kind, name])
            return 200, {}, json.dumps(listing).encode()
        try:
            commit, files = self._find(kind, name, rest.strip("/") or "main")
        except KeyError:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        entries = [_entry(file, data) for file, data in files.items()]
        found = {"X-Repo-Commit": commit}
        if what == "tree":
            start = int(parse_qs(urlparse(url).query).get("cursor", ["0"])[0])
            if len(entries) > start + self.page:
                more = f"{self.endpoint}{urlparse(url).path}?recursive=True"
                found["Link"] = f'<{more}&cursor={start + self.page}>; rel="next"'
            return 200, found, json.dumps(entries[start : start + self.page]).encode()
        if what == "paths-info":
            wanted = parse_qs(body.decode())["paths"]
            return 200, found, json.dumps([e for e in entries if e["path"] in wanted]).encode()
        info = {"id": name, "sha": commit, "siblings": entries, "private": False, "tags": []}
        return 200, found, json.dumps(info).encode()

    def _file(self, kind: str, name: str, revision: str, file: str) -> Answer:
        if name in self.gated:
            return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
        commit, files = self._find(kind, name, revision)
        if file not in files:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b""
        data, headers = files[file], {"X-Repo-Commit": commit, "ETag": f'"{_oid(files[file])}"'}
        if not file.endswith(_LARGE):
            return 200, headers, data
        digest = hashlib.sha256(data).hexdigest()
        linked = {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{digest}"'}
        elsewhere = self.endpoint.replace(
            "127.0.0.1", "localhost"
        )  # large files are on another host
        signed = f"{elsewhere}/lfs/{file.rpartition('/')[2]}/{digest}?X-Amz-Signature=hunter2"
        return 302, headers | linked | {"Location": signed}, b""

    def _large(self, digest: str, wanted: str) -> Answer:
        every = (
            d for commits in self._commits.values() for f in commits.values() for d in f.values()
        )
        data = next(data for data in every if hashlib.sha256(data).hexdigest() == digest)
        headers = {"ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", wanted):
            start, stop = int(match[1]), int(match[2] or len(data) - 1) + 1
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            return 206, headers, data[start:stop]
        return 200, headers, data

    def is_cut(self, url: str) -> bool:
        """Whether this transfer breaks off, once for each entry of `cut`."""
        hit = next((name for name in self.cut if f"/{name}" in url), None)
        if hit is not None:
            self.cut.remove(hit)
        return hit is not None


def commit_of(revision: str) -> str:
    """Returns the commit that a branch or tag names at first; a commit names itself."""
    if re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    return hashlib.sha1(revision.encode()).hexdigest()


def _refs(heads: Mapping[str, str]) -> dict[str, list[dict[str, str]]]:
    """Lists names of revisions: those like v1 are tags, refs/convert/… are the hub's copies."""
    listing: dict[str, list[dict[str, str]]] = {"branches": [], "tags": [], "converts": []}
    for name, commit in heads.items():
        kind, ref = "branches", f"refs/heads/{name}"
        if name.startswith("refs/convert/"):
            kind, ref = "converts", name
        elif re.fullmatch(r"v\d[\d.]*", name):
            kind, ref = "tags", f"refs/tags/{name}"
        short = name.rpartition("/")[2] if kind == "converts" else name
        listing[kind].append({"name": short, "ref": ref, "targetCommit": commit})
    return listing


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def _entry(file: str, data: bytes) -> dict[str, object]:
    entry = {"type": "file", "path": file, "rfilename": file, "size": len(data), "oid": _oid(data)}
    if not file.endswith(_LARGE):
        return entry
    digest = hashlib.sha256(data).hexdigest()
    return entry | {"lfs": {"oid": digest, "size": len(data), "pointerSize": 130, "sha256": digest}}


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Serves the hub while the context is open; sets its `endpoint`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(with_body=True)

        def do_HEAD(self) -> None:
            self._send(with_body=False)

        def do_POST(self) -> None:
            self._send(with_body=True)

        def _send(self, *, with_body: bool) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            given = self.rfile.read(length)
            status, headers, body = hub.answer(self.command, self.path, self.headers, given)
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body[: len(body) // 2] if hub.is_cut(self.path) else body)

        def log_message(self, *_: object) -> None: ...

    with listening(Handler) as hub.endpoint:
        yield hub


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serves on loopback while the context is open; yields the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def use_endpoint(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """As HF_ENDPOINT, which is read when the library is imported; names mean nothing yet."""
    from huggingface_hub import utils

    from bert_jax.storage import hub

    template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    for module in ("constants", "file_download"):  # which copies it in some releases
        name = f"huggingface_hub.{module}.HUGGINGFACE_CO_URL_TEMPLATE"
        monkeypatch.setattr(name, template, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    if reset := getattr(utils, "reset_sessions", None):  # of releases before 1
        reset()
    hub.forget()


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """As HF_HUB_OFFLINE, which is read when the library is imported; names mean nothing yet."""
    from bert_jax.storage import hub

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub.forget()
