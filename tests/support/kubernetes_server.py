"""A Kubernetes API server on loopback, as far as kubectl needs it to submit and watch a job.

Objects are in memory. What is created is checked strictly, as the API server does for
`fieldValidation=Strict`; what a controller would do (pods, conditions), the test does.
"""

import copy
import dataclasses
import json
import threading
import time
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Object = dict[str, Any]
# Group and version -> plural names and kinds.
RESOURCES = {
    "v1": {
        "pods": "Pod", "configmaps": "ConfigMap", "secrets": "Secret", "nodes": "Node",
        "namespaces": "Namespace", "serviceaccounts": "ServiceAccount",
    },
    "batch/v1": {"jobs": "Job"},
    "jobset.x-k8s.io/v1alpha2": {"jobsets": "JobSet"},
    "kueue.x-k8s.io/v1beta1": {"localqueues": "LocalQueue", "workloads": "Workload"},
}  # fmt: skip
NOT_NAMESPACED = ("nodes", "namespaces")


class RefusedError(Exception):
    """An answer other than success: HTTP status, Kubernetes' reason, message."""

    def __init__(self, code: int, reason: str, message: str):
        super().__init__(message)
        self.code, self.reason = code, reason


@dataclasses.dataclass
class Log:
    """Output of a pod; `text` grows by whole lines until the pod `has_ended`. Two lines each have
    the same time. cuts: how often its connections were lost. followed: how often it was."""

    text: str = ""
    has_ended: bool = False
    cuts: int = 0
    followed: int = 0


class Cluster:
    """The server; `with Cluster(check) as cluster: …`. `check` returns what is wrong with a new
    object."""

    def __init__(self, check: Callable[[Object], list[str]]):
        self.check = check
        self.objects: dict[tuple[str, str], Object] = {}  # (plural, name)
        self.logs: dict[str, Log] = {}  # by pod
        self.requests: list[tuple[str, str]] = []
        self.deletions: list[tuple[str, str, str]] = []  # plural, name, how its pods are deleted
        self.on_delete: Callable[[str, str], object] = lambda plural, name: None
        self.without: set[str] = set()  # groups that are not installed
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                cluster._answer(self)

            do_GET = do_POST = do_DELETE = do_PATCH = handle_one  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.put("namespaces", {"metadata": {"name": "team"}})

    def __enter__(self) -> "Cluster":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def write_kubeconfig(self, path: Path) -> None:
        """Writes a configuration whose current context is this cluster, namespace `team`."""
        server = {"server": f"http://127.0.0.1:{self._server.server_address[1]}"}
        context = {"cluster": "c", "user": "u", "namespace": "team"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": server}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "here", "context": context}],
            "current-context": "here",
        }
        path.write_text(json.dumps(config))

    def put(self, plural: str, found: Object) -> Object:
        """Stores an object as a controller would, without a check."""
        found.setdefault("apiVersion", _version_of(plural))
        found.setdefault("kind", RESOURCES[found["apiVersion"]][plural])
        found["metadata"].setdefault("uid", f"uid-{len(self.objects)}")
        if plural not in NOT_NAMESPACED:
            found["metadata"].setdefault("namespace", "team")
        self.objects[plural, found["metadata"]["name"]] = found
        return found

    def names(self, plural: str) -> list[str]:
        return sorted(name for kind, name in self.objects if kind == plural)

    def _answer(self, http: BaseHTTPRequestHandler) -> None:
        url = urllib.parse.urlsplit(http.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        size = int(http.headers.get("Content-Length", 0))
        body = json.loads(http.rfile.read(size)) if size else {}
        self.requests.append((http.command, url.path))
        if url.path.endswith("/log"):
            self._send_log(http, url.path.split("/")[-2], query)
            return
        try:
            code, answer = self._route(http.command, url.path.strip("/"), query, body)
        except RefusedError as error:
            code = error.code
            answer = {
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                "reason": error.reason, "message": str(error),
            }  # fmt: skip
        data = json.dumps(answer).encode()
        http.send_response(code)
        http.send_header("Content-Type", "application/json")
        http.send_header("Content-Length", str(len(data)))
        http.end_headers()
        http.wfile.write(data)

    def _route(self, method: str, path: str, query: dict[str, str], body: Object) -> Any:
        top, *words = path.split("/")
        if top in ("version", "openapi") or not words:
            return 200, self._discovery(path)
        version = words.pop(0) if top == "api" else "/".join((words.pop(0), *words[:1]))
        words = words if top == "api" else words[1:]
        if version not in RESOURCES or version.split("/")[0] in self.without:
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
        if not words:
            return 200, self._resources(version)
        words = words[2:] if words[0] == "namespaces" and len(words) > 2 else words
        plural, name = words[0], words[1] if len(words) > 1 else ""
        if method == "POST":
            return 201, self._create(plural, body, query)
        if not name:
            return 200, self._list(plural, query)
        found = self.objects.get((plural, name))
        if found is None:
            group = _version_of(plural).rpartition("/")[0]
            where = f"{plural}.{group}" if group else plural
            raise RefusedError(404, "NotFound", f'{where} "{name}" not found')
        if method == "DELETE":
            self.deletions.append((plural, name, body.get("propagationPolicy", "")))
            del self.objects[plural, name]
            self.on_delete(plural, name)
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        return 200, found

    def _create(self, plural: str, body: Object, query: dict[str, str]) -> Object:
        name = body["metadata"]["name"]
        if wrong := self.check(body):
            message = f"{body['kind']} in version is invalid: strict decoding error: "
            raise RefusedError(400, "BadRequest", message + ", ".join(wrong))
        if (plural, name) in self.objects:
            raise RefusedError(409, "AlreadyExists", f'{plural} "{name}" already exists')
        made = copy.deepcopy(body)
        return made if query.get("dryRun") else self.put(plural, made)

    def _list(self, plural: str, query: dict[str, str]) -> Object:
        labels = [word.split("=") for word in query.get("labelSelector", "").split(",") if word]
        items = [
            found
            for (kind, name), found in self.objects.items()
            if kind == plural
            and all(found["metadata"].get("labels", {}).get(key) == value for key, value in labels)
            and query.get("fieldSelector", f"metadata.name={name}") == f"metadata.name={name}"
        ]
        version = _version_of(plural)
        kind = f"{RESOURCES[version][plural]}List"
        about = {"kind": kind, "apiVersion": version, "metadata": {"resourceVersion": "1"}}
        return about | {"items": items}

    def _discovery(self, path: str) -> Object:
        if path == "version":
            return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
        if path == "api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "apis":
            groups = [
                {
                    "name": version.split("/")[0],
                    "versions": [{"groupVersion": version, "version": version.split("/")[1]}],
                    "preferredVersion": {
                        "groupVersion": version, "version": version.split("/")[1],
                    },
                }
                for version in RESOURCES
                if "/" in version and version.split("/")[0] not in self.without
            ]  # fmt: skip
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        if path == "openapi/v3":
            paths = {v if v == "v1" else f"apis/{v}": f"/openapi/v3/{v}" for v in RESOURCES}
            paths["api/v1"] = paths.pop("v1")
            return {"paths": {path: {"serverRelativeURL": url} for path, url in paths.items()}}
        # All that kubectl looks for: whether the server checks fields, and takes a dry run.
        group, _, version = path.removeprefix("openapi/v3/").rpartition("/")
        kinds = RESOURCES[f"{group}/{version}" if group else version].values()
        parameters = [{"name": name, "in": "query"} for name in ("fieldValidation", "dryRun")]
        operations = {
            f"/{kind}": {
                "patch": {
                    "parameters": parameters,
                    "x-kubernetes-group-version-kind": {
                        "group": group, "version": version, "kind": kind,
                    },
                }
            }
            for kind in kinds
        }  # fmt: skip
        return {"openapi": "3.0.0", "info": {"title": "", "version": ""}, "paths": operations}

    def _resources(self, version: str) -> Object:
        verbs = ["create", "delete", "get", "list", "patch", "watch"]
        resources = [
            {
                "name": plural, "singularName": kind.lower(), "kind": kind, "verbs": verbs,
                "namespaced": plural not in NOT_NAMESPACED,
            }
            for plural, kind in RESOURCES[version].items()
        ]  # fmt: skip
        return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}

    def _send_log(self, http: BaseHTTPRequestHandler, pod: str, query: dict[str, str]) -> None:
        """Sends the log of a pod; with follow=true, also what comes until the pod has ended."""
        http.send_response(200)
        http.send_header("Content-Type", "text/plain")
        http.send_header("Connection", "close")
        http.end_headers()
        http.close_connection = True
        log, sent = self.logs.setdefault(pod, Log()), 0
        timed, cuts = query.get("timestamps") == "true", log.cuts
        log.followed += query.get("follow") == "true"  # from now on, a cut ends this connection
        while True:
            has_ended, lines = log.has_ended, log.text.splitlines(keepends=True)
            for index in range(sent, len(lines)):
                when = f"2026-11-24T00:{index // 120:02d}:{index // 2 % 60:02d}.000000000Z "
                http.wfile.write((when * timed + lines[index]).encode())
            sent = len(lines)
            if has_ended or query.get("follow") != "true" or log.cuts > cuts:
                return
            time.sleep(0.05)


def _version_of(plural: str) -> str:
    return next(version for version, kinds in RESOURCES.items() if plural in kinds)
