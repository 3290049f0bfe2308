"""Parts of the agent on TPU hosts: its archive, its machine, installation, logs, devices."""

import ast
import base64
import hashlib
import io
import json
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from memory_bucket import MemoryBucket
from signals import with_signals

from bert_jax.launch.bundle import make
from bert_jax.launch.tpu.agent import logs, machine
from bert_jax.launch.tpu.agent.devices import free_devices
from bert_jax.launch.tpu.agent.install import InstallError, unpack_bundle
from bert_jax.launch.tpu.agent.logs import LogFile
from bert_jax.launch.tpu.agent.machine import Machine, MachineError, Place
from bert_jax.launch.tpu.archive import agent_archive
from bert_jax.launch.tpu.bucket import Bucket, BucketError
from bert_jax.launch.tpu.submission import RESOURCE


def test_the_archive_is_the_agent_with_all_it_imports_and_nothing_else():
    with zipfile.ZipFile(io.BytesIO(agent_archive())) as archive:
        names = set(archive.namelist())
        sources = {name: archive.read(name) for name in names}
    assert {"__main__.py", "bert_jax/__init__.py", "bert_jax/launch/tpu/agent/host.py"} <= names
    for name, source in sources.items():
        tree = ast.parse(source, feature_version=(3, 10))
        for node in ast.walk(tree):
            roots = []
            if isinstance(node, ast.Import):
                roots = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                roots = [str(node.module).split(".")[0]]
            foreign = {*roots} - sys.stdlib_module_names - {"bert_jax"}
            assert not foreign, f"{name} imports {foreign}, which no host has"
    assert agent_archive() == agent_archive()
    assert len(agent_archive()) * 4 // 3 < 256 * 1024, "more than a value of metadata may have"


@pytest.mark.processes
def test_the_archive_starts_in_an_empty_environment(tmp_path):
    """With the standard library alone, on the Python 3.10 of the image if this machine has it."""
    (tmp_path / "agent.zip").write_bytes(agent_archive())
    words = [python_of_the_image(), "-I", "-S", "agent.zip"]
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # no metadata server answers there
        env = {"GCE_METADATA_HOST": f"127.0.0.1:{deaf.getsockname()[1]}"}
        agent = subprocess.Popen(words, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
        first = agent.stderr.readline()
        agent.kill()
        rest = agent.communicate()[1]
    assert first.startswith(f"agent | metadata instance/attributes/{RESOURCE}: "), first + rest


def python_of_the_image() -> str:
    """A shim of a version that is not chosen is there, but starts none."""
    python = shutil.which("python3.10") or sys.executable
    words = [python, "-c", "import sys; print(sys.executable)"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or sys.executable


# Where a host is


class Metadata(Machine):
    """A machine with these values."""

    def __init__(self, **attributes: str):
        super().__init__()
        self.values = {
            f"instance/attributes/{k.replace('_', '-')}": v for k, v in attributes.items()
        }

    def get(self, path: str) -> str | None:
        return self.values.get(path)


@pytest.mark.parametrize(
    ("attributes", "place"),
    [
        (
            {"agent_worker_number": "1", "worker_network_endpoints": "10.0.0.1,10.0.0.2"},
            Place(1, 2, "10.0.0.1:8476"),
        ),
        (
            {"agent_worker_number": "0", "worker_network_endpoints": "a:1:10.0.0.1,b:2:10.0.0.2"},
            Place(0, 2, "10.0.0.1:8476"),
        ),
        (
            {
                "agent_worker_number": "1",
                "worker_network_endpoints": "10.1.0.1,10.1.0.2",
                "tpu_env": "ACCELERATOR_TYPE: 'v6e-8'\nMEGASCALE_COORDINATOR_ADDRESS: "
                "'10.0.0.1:8080'\nMEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\n",
            },
            Place(3, 4, "10.0.0.1:8476"),
        ),
    ],
)
def test_a_host_knows_its_place(attributes, place):
    assert Metadata(**attributes).place() == place


@pytest.mark.parametrize("missing", ["agent_worker_number", "worker_network_endpoints"])
def test_metadata_that_is_not_complete_yet_is_said(missing):
    attributes = {"agent_worker_number": "1", "worker_network_endpoints": "10.0.0.1"}
    del attributes[missing]
    with pytest.raises(MachineError, match="is empty"):
        Metadata(**attributes).place()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"])
def test_an_answer_of_the_metadata_server_that_breaks_off_is_one_line(monkeypatch, answer):
    """The agent asks again."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.getsockname()[1]}")

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(MachineError, match=r"^metadata instance/preempted: .+"):
            Machine().get("instance/preempted")


@pytest.mark.parametrize(
    ("path", "value", "leaves"),
    [
        ("instance/preempted", "FALSE", False),
        ("instance/preempted", "TRUE", True),
        ("instance/maintenance-event", "NONE", False),
        ("instance/maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE", True),
    ],
)
def test_a_machine_knows_that_it_is_about_to_go(path, value, leaves):
    asked = Metadata()
    asked.values[path] = value
    assert asked.is_leaving() == leaves


@pytest.fixture
def api(monkeypatch):
    """Secret Manager, which answers with these statuses in turn."""
    statuses: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            body = json.dumps({"payload": {"data": base64.b64encode(b"hunter2").decode()}}).encode()
            self.send_response(statuses.pop(0))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        override = "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER"
        monkeypatch.setenv(override, f"http://127.0.0.1:{server.server_port}/")
        monkeypatch.setattr(machine, "_PAUSE", 0.0)
        yield statuses
        server.shutdown()


def test_an_api_that_fails_for_a_moment_is_asked_again(api):
    """A secret that cannot be read ends the job."""
    asked = Metadata()
    asked.values["instance/service-accounts/default/token"] = json.dumps(
        {"access_token": "x", "expires_in": 3600}
    )
    api[:] = [503, 429, 200]
    assert asked.secret("projects/p/secrets/hf/versions/1") == "hunter2"
    api[:] = [403, 200]
    with pytest.raises(MachineError, match=r"^secretmanager API: 403 "):
        asked.secret("projects/p/secrets/hf/versions/1")
    assert api == [200]


# Code


def test_a_bundle_is_unpacked_once_and_only_with_its_digest(tmp_path):
    (tmp_path / "my.py").write_text("x = 1\n")
    bundle = make("1.0", tmp_path / "my.py", checkout=None)
    bucket, home = MemoryBucket(), tmp_path / "home"
    home.mkdir()
    with pytest.raises(InstallError, match="no such object"):
        unpack_bundle(bucket, bundle.digest, home)
    bucket.write(f"{bundle.name}.tar", b"something else")
    with pytest.raises(
        InstallError,
        match=f"its sha256 is {hashlib.sha256(b'something else').hexdigest()}, not {bundle.digest}",
    ):
        unpack_bundle(bucket, bundle.digest, home)
    bucket.write(f"{bundle.name}.tar", bundle.archive)
    folder = unpack_bundle(bucket, bundle.digest, home)
    assert (folder / "config" / "my.py").read_text() == "x = 1\n"
    bucket.delete(f"{bundle.name}.tar")
    assert unpack_bundle(bucket, bundle.digest, home) == folder


@pytest.mark.parametrize(
    ("name", "link"), [("../b", ""), ("/tmp/b", ""), ("a/b", "../../c"), ("b", "/etc/hosts")]
)
def test_what_leaves_the_folder_of_a_bundle_is_refused(name, link, tmp_path):
    buffer, bucket = io.BytesIO(), MemoryBucket()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = (tarfile.SYMTYPE, link) if link else (tarfile.REGTYPE, "")
        tar.addfile(member)
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    bucket.write(f"bundle-{digest[:16]}.tar", buffer.getvalue())
    with pytest.raises(InstallError, match=f"{name} leaves the folder"):
        unpack_bundle(bucket, digest, tmp_path)
    assert not (tmp_path / f"bundle-{digest[:16]}").exists()


LINK, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.mark.parametrize(
    "members",
    [
        [("d/up", LINK, ".."), ("out", LINK, "d/up/.."), ("out/evil", "", "")],
        [("out", LINK, "x/.."), ("x", LINK, "."), ("out/evil", "", "")],
        [("out", LINK, "x/.."), ("x", LINK, ".")],  # nothing is written through it
        [("a", LINK, "b"), ("b", LINK, "a/../.."), ("a/evil", "", "")],
        [("d/l", LINK, "../d"), ("d/l/../../evil", "", "")],
        [("file", LINK, "gone"), ("file", "", "")],
        [("file", LINK, "../evil"), ("file", "", "")],
        [("evil", HARD, "/etc/hosts")],
        [("evil", HARD, "../outside")],
        [("file", "", ""), ("same", HARD, "file")],
        [("fifo", tarfile.FIFOTYPE, "")],
        [("null", tarfile.CHRTYPE, "")],
        [(".", "", "")],
        [("file", "", ""), ("file/below", "", "")],
    ],
    ids=str,
)
def test_no_chain_of_links_leads_out_of_the_folder_of_a_bundle(members, tmp_path):
    buffer, bucket, home = io.BytesIO(), MemoryBucket(), tmp_path / "in" / "home"
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind or tarfile.REGTYPE, link
            tar.addfile(member)
    home.mkdir(parents=True)
    (tmp_path / "in" / "outside").write_text("secret")
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    bucket.write(f"bundle-{digest[:16]}.tar", buffer.getvalue())
    with pytest.raises(InstallError):
        unpack_bundle(bucket, digest, home)
    new = home / f"bundle-{digest[:16]}.tmp"
    outside = [path for path in tmp_path.rglob("*") if not path.is_relative_to(new)]
    assert {p.name for p in outside} == {"in", "home", "outside"}
    assert not [path for path in new.rglob("*") if path.is_file() and path.read_text() == "secret"]


def test_the_links_of_a_bundle_stay_links(tmp_path):
    buffer, bucket = io.BytesIO(), MemoryBucket()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        file, link = tarfile.TarInfo("a/file"), tarfile.TarInfo("link")
        file.size, link.type, link.linkname = 1, tarfile.SYMTYPE, "a/file"
        tar.addfile(file, io.BytesIO(b"x"))
        tar.addfile(link)
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    bucket.write(f"bundle-{digest[:16]}.tar", buffer.getvalue())
    folder = unpack_bundle(bucket, digest, tmp_path)
    assert (folder / "link").readlink() == Path("a/file")
    assert (folder / "link").read_text() == "x"


# Output


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(logs, "_EVERY", 0.0)


def pieces(bucket: Bucket) -> bytes:
    return b"".join(bucket.read(entry.name) or b"" for entry in bucket.list())


def test_output_is_copied_in_whole_lines_and_at_the_end_completely(tmp_path, at_once):
    bucket = MemoryBucket()
    log = LogFile(tmp_path / "log", bucket, "logs/0001/1/0/0001")
    written = b""
    for index in range(20):
        text = f"line {index}\nhalf ".encode()
        with log.path.open("ab") as file:
            file.write(text)
        written += text
        log.copy()
        assert pieces(bucket) == written[: written.rfind(b"\n") + 1]
    log.copy(all=True)
    log.copy(all=True)
    assert pieces(bucket) == written


def test_an_agent_that_is_started_again_loses_and_repeats_no_byte(tmp_path, at_once):
    bucket, path = MemoryBucket(), tmp_path / "log"
    for index in range(10):
        with path.open("ab") as file:
            file.write(f"line {index}\n".encode())
        LogFile(path, bucket, "logs/0001/1/0/0001").copy()
    assert pieces(bucket) == path.read_bytes()
    assert len(bucket.list()) == 10
    calls: list[str] = []
    bucket.before = calls.append
    LogFile(path, bucket, "logs/0001/1/0/0001").copy()
    assert calls == ["list"]  # what is there is not written or read again


def test_a_piece_that_could_not_be_written_is_written_later(tmp_path, at_once):
    bucket = MemoryBucket()
    log = LogFile(tmp_path / "log", bucket, "logs/0001/1/0/0001")
    log.path.write_bytes(b"one\n")

    def fail(what: str) -> None:
        raise BucketError("503")

    for moment in ("before", "after"):
        setattr(bucket, moment, lambda what: fail(what) if what == "write" else None)
        with pytest.raises(BucketError):
            log.copy()
        with log.path.open("ab") as file:
            file.write(b"two\n")
        setattr(bucket, moment, lambda what: None)
    log.copy()
    assert pieces(bucket) == log.path.read_bytes()


def test_a_long_line_is_copied_in_pieces(tmp_path, at_once):
    bucket = MemoryBucket()
    log = LogFile(tmp_path / "log", bucket, "logs/0001/1/0/0001")
    log.path.write_bytes(b"x" * (2**20 + 5) + b"\nend\n")
    log.copy()
    assert pieces(bucket) == log.path.read_bytes()


def test_progress_is_the_last_line_about_a_step(tmp_path):
    log = LogFile(tmp_path / "log", MemoryBucket(), "log")
    assert log.progress() == ""
    log.path.write_text("restores step 10\nstep 20/40  loss 6.5\nstep 30/40  loss 6.1\nsaved\n")
    assert log.progress() == "step 30/40  loss 6.1"


# Devices


@pytest.fixture
def proc(tmp_path):
    """A /proc with processes that hold a TPU, and libtpu's lock."""

    def add(pid: int, device: str, environ: bytes = b"") -> None:
        folder = tmp_path / "proc" / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "fd" / "3").symlink_to(device)
        (folder / "environ").write_bytes(environ)
        (folder / "comm").write_text("python3\n")

    (tmp_path / "proc").mkdir()
    (tmp_path / "lock").touch()
    return add


def test_a_lock_without_owner_is_removed(tmp_path, proc):
    proc(2**22 + 1, "/dev/null")
    assert free_devices(proc=tmp_path / "proc", lock=tmp_path / "lock") == []
    assert not (tmp_path / "lock").exists()


def test_the_process_of_another_that_holds_a_device_is_named(tmp_path, proc):
    proc(2**22 + 1, "/dev/accel0")
    (line,) = free_devices(proc=tmp_path / "proc", lock=tmp_path / "lock")
    assert line == f"/dev/accel0 is held by python3 (process {2**22 + 1})"
    assert (tmp_path / "lock").exists()


@pytest.mark.processes
def test_what_the_job_itself_has_left_is_killed(tmp_path, proc):
    left = subprocess.Popen(with_signals([sys.executable, "-c", "import time; time.sleep(600)"]))
    proc(left.pid, "/dev/vfio/0", b"A=1\0BERT_JAX_HOST_NAME=host-0\0")
    assert free_devices(proc=tmp_path / "proc", lock=tmp_path / "lock") == []
    assert left.wait(10) == -signal.SIGKILL
