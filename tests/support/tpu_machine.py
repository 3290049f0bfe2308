"""A machine of `tpu_cloud.TpuCloud`: a metadata server, a disk, and the processes of its startup
script, which runs unchanged; systemd alone is replaced."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bert_jax.launch.tpu.agent.install import environment_folder, released
from bert_jax.runtime.versions import version

_ROOT = Path(__file__).resolve().parents[2]
_MARK = "TPU_CLOUD_MACHINE"  # in the environment of every process of a machine
# In the place of systemd: a service that is started again when it fails.
_SYSTEMD_RUN = """#!/bin/bash
while [[ $1 != -- ]]; do shift; done
shift
exec >>"$BERT_JAX_HOME/journal" 2>&1 </dev/null
setsid bash -c 'until "$@"; do sleep 1; done' service "$@" &
"""
_SYSTEMCTL = "#!/bin/bash\nexit 0\n"


class Machine:
    """One host of a slice. It boots with `start`, and again with the same disk after `kill`."""

    def __init__(
        self, folder: Path, attributes: Mapping[str, str], zone: str, env: Mapping[str, str]
    ):
        """folder: its disk. attributes: its metadata. env: as of a service of its image."""
        self.folder, self._attributes, self._zone = folder, dict(attributes), zone
        self.values = {"instance/preempted": "FALSE", "instance/maintenance-event": "NONE"}
        self._env = dict(env)
        self._server: ThreadingHTTPServer | None = None
        self._startup: subprocess.Popen | None = None

    @property
    def journal(self) -> str:
        """What its startup script and its service printed."""
        texts = []
        for name in ("startup", "home/journal"):
            with contextlib.suppress(FileNotFoundError):
                texts.append((self.folder / name).read_text(errors="replace"))
        return "".join(texts)

    def start(self) -> None:
        home, bin = self.folder / "home", self.folder / "bin"
        home.mkdir(parents=True, exist_ok=True)
        bin.mkdir(exist_ok=True)
        for name, text in (("systemd-run", _SYSTEMD_RUN), ("systemctl", _SYSTEMCTL)):
            (bin / name).write_text(text)
            (bin / name).chmod(0o755)
        _put_environment(home)
        self._server = self._serve()
        script = self.folder / "startup.sh"
        script.write_text(self._attributes["startup-script"])
        env = {
            "PATH": f"{bin}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "BERT_JAX_HOME": str(home),
            "GCE_METADATA_HOST": f"127.0.0.1:{self._server.server_port}",
            _MARK: str(self.folder),
            **self._env,
        }
        with (self.folder / "startup").open("ab") as output:
            self._startup = subprocess.Popen(
                ["bash", str(script)], env=env, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def kill(self) -> None:
        """The machine is gone at once, with all that runs on it."""
        for _ in range(100):
            found = list(self.processes())
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not found:
                break
            time.sleep(0.05)
        if self._startup:
            self._startup.wait()
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def processes(self, part: str = "") -> Iterator[int]:
        """Yields those that run on this machine, with this in their command line."""
        mark = f"{_MARK}={self.folder}".encode()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                here = mark in (path / "environ").read_bytes().split(b"\0")
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                if here and state not in "ZX" and part.encode() in (path / "cmdline").read_bytes():
                    yield int(path.name)

    def _serve(self) -> ThreadingHTTPServer:
        machine = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                """Quiet."""

            def do_GET(self) -> None:
                path = self.path.partition("?")[0].removeprefix("/computeMetadata/v1/")
                value = machine._value(path)
                if self.headers.get("Metadata-Flavor") != "Google":
                    self.send_error(403)
                elif value is None:
                    self.send_error(404)
                else:
                    self.send_response(200)
                    self.send_header("Metadata-Flavor", "Google")
                    self.send_header("Content-Length", str(len(value.encode())))
                    self.end_headers()
                    self.wfile.write(value.encode())

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def _value(self, path: str) -> str | None:
        fixed = {
            "project/project-id": "the-project",
            "instance/zone": f"projects/123/zones/{self._zone}",
            "instance/service-accounts/default/token": json.dumps(
                {"access_token": "of the machine", "expires_in": 3600, "token_type": "Bearer"}
            ),
            **self.values,
        }
        attribute = path.removeprefix("instance/attributes/")
        return fixed.get(path) if attribute == path else self._attributes.get(attribute)


def _put_environment(home: Path) -> None:
    """Makes the tests' own environment the one that an agent has installed: installing another on
    each machine would take minutes (tests/launch/test_install.py installs one)."""
    lock = _ROOT / "requirements" / "tpu.txt"
    text = lock.read_text() if lock.is_file() else released(version("bert-jax"))
    folder = environment_folder(home, text)
    if not folder.exists():
        folder.symlink_to(sys.prefix)
