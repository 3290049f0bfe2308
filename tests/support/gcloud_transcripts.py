"""gcloud for tests: the real one, or one that replays what the real one did.

A transcript is a command line, the requests that gcloud made for it, and what it printed. Another
command line has other values; they take the place of the recorded ones in the requests, and what is
printed is made from the answers. To record with an installed gcloud:

    PYTHONPATH=tests/support python tests/support/gcloud_transcripts.py
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "goldens" / "gcloud_transcripts.json"
# The values are words that stand nowhere else in a request.
_PLACE = ("--zone=the-zone",)
_QUEUED = ("gcloud", "compute", "tpus", "queued-resources")
_TYPES = ("gcloud", "compute", "tpus", "accelerator-types", "list")
_FILES = ("startup-script", "bert-jax-agent", "bert-jax-resource", "bert-jax-job")


def _create(*options: str) -> tuple[str, ...]:
    files = ",".join(f"{name}=file-{index}" for index, name in enumerate(_FILES))
    return (
        *_QUEUED, "create", "the-name", *_PLACE, "--accelerator-type=the-type",
        "--runtime-version=the-version", "--node-id=the-node", *options,
        "--scopes=the-scope", "--labels=bert-jax=the-label", f"--metadata-from-file={files}",
        "--async",
    )  # fmt: skip


COMMANDS = (
    _create(),
    _create("--spot"),
    (*_QUEUED, "list", *_PLACE, "--format=json"),
    (*_QUEUED, "delete", "the-name", *_PLACE, "--force", "--async", "--quiet"),
    (*_TYPES, *_PLACE, "--format=value(name)"),
    (*_TYPES, *_PLACE, "--filter=type=the-type", "--format=value(name)"),
    ("gcloud", "version", "--format=json"),
    ("gcloud", "auth", "print-access-token", "--quiet"),
    ("gcloud", "config", "get-value", "account"),
    ("gcloud", "config", "get-value", "project"),
)
_OPERATION = "projects/the-project/locations/the-zone/operations/one"
_ANSWERS = {
    "queuedResources": [{"name": "one"}, {"name": "two"}],
    "acceleratorTypes": [{"name": "three", "type": "the-type"}, {"name": "four", "type": "other"}],
}


def which() -> str:
    """Returns which gcloud the tests of launches call, for their output."""
    real = shutil.which("gcloud")
    return f"the real one, {real}" if real else "replayed from transcripts of the real one"


def gcloud(folder: Path, *, recorded: bool = False) -> Path:
    """Returns a folder with a program named gcloud.

    recorded: the one that replays, which is faster, also where the real one is installed.
    """
    folder.mkdir(exist_ok=True)
    program, real = folder / "gcloud", shutil.which("gcloud")
    if real and not recorded:
        program.symlink_to(real)
    else:
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__)}" "$@"\n')
        program.chmod(0o755)
    return folder


def replay(words: Sequence[str]) -> int:
    """Makes the requests of the transcript of a command line, and prints what gcloud would."""
    same = [
        one for one in json.loads(RECORDED.read_text()) if _shape(one["words"]) == _shape(words)
    ]
    if len(same) != 1:
        print(f"ERROR: (gcloud) {len(same)} transcripts of {' '.join(words)}", file=sys.stderr)
        return 2
    (transcript,) = same
    values, answer = _values(transcript["words"], words), {}
    for request in transcript["requests"]:
        status, answer = _ask(_replaced(request, values))
        if status >= 400:
            verb = ".".join(word for word in words[:5] if re.fullmatch(r"[a-z-]+", word))
            line = f"{answer['error']['status']}: {answer['error']['message']}"
            if status >= 500:
                line = f"HttpError accessing <{request['path']}>: content <{json.dumps(answer)}>"
            print(f"ERROR: ({verb}) {line}", file=sys.stderr)
            return 1
    sys.stdout.write(_printed(words, answer) if answer else transcript["stdout"])
    return 0


def _shape(words: Sequence[str]) -> list[str]:
    """Returns a command line without values: flags, and the words before the first flag but for the
    name of a resource."""
    flags = [w.partition("=")[0] if "format" not in w else w for w in words if w.startswith("--")]
    verbs = [word for word in words if not word.startswith("--")]
    return [*(verbs[:5] if "queued-resources" in verbs else verbs), *flags]


def _values(recorded: Sequence[str], given: Sequence[str]) -> dict[str, str]:
    """Returns recorded value -> given one; contents of files likewise."""
    values = {}
    for one, other in zip(recorded, given, strict=True):
        for old, new in zip(re.split("[=,]", one), re.split("[=,]", other), strict=False):
            path = Path(new)
            if old.startswith("file-"):
                values[f"content of {old}"] = path.read_text()
            elif old != new:
                values[old] = new
    return values


def _replaced(value: Any, values: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(inner, values) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replaced(inner, values) for inner in value]
    if isinstance(value, str):
        for old in sorted(values, key=len, reverse=True):
            value = value.replace(old, values[old])
    return value


def _printed(words: Sequence[str], answer: Any) -> str:
    """Returns what gcloud prints of an answer."""
    found: list[Any] = next((v for v in answer.values() if isinstance(v, list)), [])
    for word in words:
        if word.startswith("--filter=type="):
            found = [one for one in found if one["type"] == word.rpartition("=")[2]]
    if "--format=json" in words:
        return json.dumps(found, indent=2) + "\n"
    if "--format=value(name)" in words:
        return "".join(f"{one['name']}\n" for one in found)
    return ""


def _ask(request: dict[str, Any]) -> tuple[int, Any]:
    server = os.environ["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"].rstrip("/")
    data = None if request["body"] is None else json.dumps(request["body"]).encode()
    asked = urllib.request.Request(server + request["path"], data, method=request["method"])
    asked.add_header("Authorization", "Bearer of the user")
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return 200, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


class _Recorder(BaseHTTPRequestHandler):
    """Answers every request, and keeps it."""

    requests: list[dict[str, Any]] = []  # noqa: RUF012

    def log_message(self, *args: object) -> None:
        """Quiet."""

    def _handle(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(data) if data else None
        self.requests.append({"method": self.command, "path": self.path, "body": body})
        name = self.path.partition("?")[0].rpartition("/")[2]
        listed = {name: _ANSWERS[name]} if self.command == "GET" and name in _ANSWERS else None
        answer = json.dumps(listed or {"name": _OPERATION, "done": True}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


for _method in ("GET", "POST", "DELETE"):
    setattr(_Recorder, f"do_{_method}", _Recorder._handle)


def record(folder: Path) -> list[dict[str, Any]]:
    """Runs the real gcloud with every command of COMMANDS; returns the transcripts.
    folder: for files."""
    for index in range(len(_FILES)):
        (folder / f"file-{index}").write_text(f"content of file-{index}")
    transcripts = []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Recorder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        env = {**os.environ, **settings(url, folder / "settings")}
        for words in COMMANDS:
            _Recorder.requests.clear()
            done = subprocess.run(
                words, env=env, cwd=folder, capture_output=True, text=True, check=True
            )
            requests = [*_Recorder.requests]
            stdout = "" if requests else done.stdout
            transcripts.append({"words": list(words), "requests": requests, "stdout": stdout})
            if "list" in words:
                (listed,) = (v for k, v in _ANSWERS.items() if k in requests[-1]["path"])
                printed = _printed(words, {"": listed})
                assert printed.split() == done.stdout.split(), (printed, done.stdout, done.stderr)
        server.shutdown()
    return transcripts


def settings(server: str, folder: Path) -> dict[str, str]:
    """Variables with which gcloud talks to a server on loopback alone. folder: for its files."""
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text("of the user")
    apis = ("TPU", "COMPUTE", "CLOUDRESOURCEMANAGER", "STORAGE")
    return {
        "CLOUDSDK_CONFIG": str(folder),
        "CLOUDSDK_CORE_PROJECT": "the-project",
        "CLOUDSDK_CORE_ACCOUNT": "user@example.com",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(folder / "token"),
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": server for api in apis},
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(replay(["gcloud", *sys.argv[1:]]))
    with tempfile.TemporaryDirectory() as scratch:
        RECORDED.write_text(json.dumps(record(Path(scratch)), indent=1) + "\n")
