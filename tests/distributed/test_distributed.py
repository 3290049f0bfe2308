"""Tests of the process topology from flags or a cluster, and of starting JAX."""

import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax._src.cloud_tpu_init
import jax._src.clusters.cloud_tpu_cluster as tpu
import jax._src.clusters.cluster
import pytest
from corpus import small_store
from processes import LIMIT, Job, assert_same_bits, config_file, deep_config, newest_step
from signals import with_signals

from bert_jax.config.config_files import load
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.distributed import job as jobs
from bert_jax.distributed import peers
from bert_jax.distributed.cluster import ProcessTopology, find_topology, single_process
from bert_jax.errors import LostError, UserError
from bert_jax.runtime.activity import ActivityClock

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
GKE = {
    "TPU_WORKER_ID": "1",
    "TPU_WORKER_HOSTNAMES": "127.0.0.1,127.0.0.2",
    "TPU_SKIP_MDS_QUERY": "true",  # as GKE sets it
}
SLICES = {
    "MEGASCALE_COORDINATOR_ADDRESS": "127.0.0.9",
    "MEGASCALE_NUM_SLICES": "3",
    "MEGASCALE_SLICE_ID": "2",
}
# Variables of jobs in which these tests themselves may run.
FOREIGN = ("SLURM_", "OMPI_", "TPU_", "MEGASCALE_", "KUBERNETES_", "JAX_COORDINATOR")


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch):
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        monkeypatch.delenv(name)


@pytest.fixture
def environment(monkeypatch):
    """Sets environment variables."""
    return lambda values: [monkeypatch.setenv(name, value) for name, value in values.items()]


@pytest.fixture
def tpu_machine(monkeypatch):
    """Makes JAX detect a machine with TPUs."""
    for module in (tpu, jax._src.clusters.cluster, jax._src.cloud_tpu_init):
        monkeypatch.setattr(module, "running_in_cloud_tpu_vm", True)


@pytest.fixture
def metadata(monkeypatch):
    """Answers of a metadata server on loopback by path; other paths return 404."""
    said: dict[str, str] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            known = said.get(self.path.rpartition("/")[2])
            self.send_response(404 if known is None else 200)
            self.end_headers()
            self.wfile.write((known or "").encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{server.server_address[1]}")
        yield said
        server.shutdown()


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def test_flags():
    assert find_topology("10.0.0.1:80", 4, 3) == ProcessTopology("10.0.0.1:80", 4, 3, None, "flags")


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("h:1", None, None), "--coordinator without --num_processes"),
        ((None, 2, 1), "--num_processes and --process_id without --coordinator"),
        (("h", 2, 1), "coordinator 'h': give HOST:PORT"),
        (("h:1", 2, 2), "--process_id=2 .* --num_processes=2: give one from 0 to 1"),
        (("h:1", 2, -1), "--process_id=-1"),
    ],
)
def test_flags_that_make_no_sense_are_one_line(flags, line):
    with pytest.raises(UserError, match=line) as raised:
        find_topology(*flags)
    assert "\n" not in str(raised.value)


def test_flags_win_over_a_cluster(environment):
    environment(SLURM)
    assert find_topology("h:1", 3, 2).num_processes == 3


def test_alone_where_nothing_is_found():
    place = find_topology()
    assert (place.num_processes, place.process_id, place.found_by) == (1, 0, "alone")
    assert place.coordinator.startswith("127.0.0.1:")
    assert single_process().local_device_ids is None


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("localhost", "localhost"),
        ("node1,node7", "node1"),
        ("node[003-017],other", "node003"),
        ("node[003,007-017]", "node003"),
    ],
)
def test_slurm(environment, nodes, host):
    environment(SLURM | {"SLURM_STEP_NODELIST": nodes})
    port = 4711 % 2**12 + 65535 - 2**12 + 1
    assert find_topology() == ProcessTopology(f"{host}:{port}", 2, 1, (1,), "slurm")


def test_open_mpi(environment):
    environment(OPEN_MPI)
    assert find_topology() == ProcessTopology(
        f"10.96.0.1:{1531576320 // 2**12 % 2**12 + 61440}", 4, 3, (1,), "ompi"
    )


def test_a_port_of_ones_own(environment):
    environment(SLURM | {"JAX_COORDINATOR_PORT": "1234"})
    assert find_topology().coordinator == "localhost:1234"
    environment({"JAX_COORDINATOR_ADDRESS": "127.0.0.3:80"})
    assert find_topology().coordinator == "127.0.0.3:80"


def test_gke(environment, tpu_machine, metadata):
    """With a single slice, the remaining values come from the metadata server."""
    environment(GKE)
    metadata["tpu-env"] = ""
    assert find_topology() == ProcessTopology("127.0.0.1:8482", 2, 1, None, "gketpu")


def test_gke_of_several_slices(environment, tpu_machine):
    environment(GKE | SLICES)
    assert find_topology() == ProcessTopology("127.0.0.9:8482", 6, 5, None, "gketpu")


@pytest.mark.parametrize("workers", ["127.0.0.1,127.0.0.2", "a:0:127.0.0.1,b:1:127.0.0.2"])
def test_cloud_tpu_vm(tpu_machine, metadata, workers):
    metadata |= {
        "agent-worker-number": "1",
        "worker-network-endpoints": workers,
        "tpu-env": "ACCELERATOR_TYPE: 'v5e-8'\nMEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'",
    }
    assert find_topology() == ProcessTopology("127.0.0.1:8482", 4, 3, None, "gcetpu")


@pytest.mark.parametrize(
    ("values", "without", "line"),
    [
        (SLURM, {"SLURM_PROCID": "two"}, r"SLURM \(SLURM_JOB_ID.*invalid literal.*'two'"),
        (SLURM, {"SLURM_PROCID": "2"}, r"it calls this process 2 of 2, coordinator localhost:"),
        (OPEN_MPI, {"OMPI_COMM_WORLD_SIZE": None}, "Open MPI.*OMPI_COMM_WORLD_SIZE is not set"),
        (OPEN_MPI, {"OMPI_MCA_orte_hnp_uri": "?"}, r"Open MPI .*OMPI_MCA_orte_hnp_uri.*ValueError"),
    ],
)
def test_what_a_cluster_lacks_is_one_line(environment, monkeypatch, values, without, line):
    environment(values)
    for name, value in without.items():
        environment({name: value}) if value is not None else monkeypatch.delenv(name)
    with pytest.raises(UserError, match=f"this looks like {line}|but {line}") as raised:
        find_topology()
    assert str(raised.value).endswith(
        "give --coordinator, --num_processes and --process_id instead"
    )
    assert "\n" not in str(raised.value)


def test_gke_without_a_number_is_one_line(environment, monkeypatch, tpu_machine):
    environment(GKE | SLICES)
    monkeypatch.delenv("TPU_WORKER_ID")
    with pytest.raises(UserError, match=r"GKE with TPUs \(TPU_WORKER_ID.*'None'"):
        find_topology()


def test_a_metadata_server_that_is_not_there_is_one_line(monkeypatch, tpu_machine, free_port):
    """Another attempt may find it, and the exit code reports that."""
    monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{free_port}")
    with pytest.raises(LostError, match=r"a Cloud TPU VM \(its metadata server") as raised:
        find_topology()
    assert "\n" not in str(raised.value)


def test_a_cluster_that_never_answers_is_one_line(monkeypatch, tpu_machine):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(LostError, match=r"Cloud TPU VM.*but no answer in 1 s"):
            find_topology(timeout=1)


def test_an_exchange_of_one_process_is_its_own_value():
    assert peers.single_process_group(ActivityClock()).all_gather_text("a", "text") == ["text"]


@pytest.fixture
def start(tmp_path):
    """Starts a process of a run with two CPU devices; all are killed when the test ends."""
    started: list[subprocess.Popen] = []

    def start(config: Config, *words: str, **env: str) -> Path:
        output = tmp_path / f"{len(started)}.txt"
        common = ["-m", "bert_jax", "pretrain", f"--workdir={tmp_path / 'run'}", "--cpu_devices=2"]
        common.append(f"--config={config_file(config, tmp_path / 'config.py')}")
        with output.open("wb") as file:
            started.append(
                subprocess.Popen(
                    [sys.executable, *common, *words],
                    env={**os.environ, **env},
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            )
        return output

    yield start, started
    for process in started:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.processes
def test_found_through_slurm_alone(disturbed, undisturbed, start, tmp_path, free_port):
    """Two real processes without a flag, each with two CPU devices whatever SLURM numbers it."""
    begin, started = start
    said = [
        begin(
            disturbed,
            **SLURM
            | {"SLURM_PROCID": str(process), "SLURM_LOCALID": str(process)}
            | {"JAX_COORDINATOR_PORT": str(free_port)},
        )
        for process in range(2)
    ]
    assert [process.wait(LIMIT) for process in started] == [0, 0], said[0].read_text()
    assert "4 devices (cpu) in 2 processes" in said[0].read_text()
    assert_same_bits(tmp_path / "run", undisturbed)  # whose processes had flags


def refuses(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=10).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="all of 127.0.0.0/8 is this machine on Linux")
@pytest.mark.nightly
@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.processes
def test_process_0_listens_on_the_named_address_alone(store, start, tmp_path, everywhere):
    """During the rendezvous, and when JAX's service listens; on other addresses if configured."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {"JAX_COORDINATOR_BIND_ADDRESS": f"0.0.0.0:{port}"} if everywhere else {}
    config, (begin, _) = deep_config(store, steps=100_000), start
    words = f"--coordinator=127.0.0.1:{port}", "--num_processes=2"
    here, other = ("127.0.0.1", port), ("127.0.0.2", port)
    begin(config, *words, "--process_id=0", **env)
    wait_for(lambda: not refuses(here))
    assert refuses(other) == (not everywhere)
    begin(config, *words, "--process_id=1", **env)
    wait_for(lambda: newest_step(tmp_path / "run") > 0)
    assert not refuses(here)
    assert refuses(other) == (not everywhere)


@pytest.mark.nightly
@pytest.mark.processes
def test_a_process_that_compiles_for_longer_is_waited_for(store, tmp_path):
    """Longer than gloo's timeout of 30 s, which cannot be configured."""
    config = deep_config(store, steps=2)
    with Job(config, tmp_path / "run", tmp_path, processes=2, devices=2) as job:
        job.wait_for_line("devices (cpu) in 2 processes")
        job.send(signal.SIGSTOP, 1)
        time.sleep(40)  # what is waited for is that nothing happens
        job.send(signal.SIGCONT, 1)
        assert job.codes() == [0, 0]


@pytest.mark.processes
def test_jax_is_started_as_a_job_for_one_process_too(tmp_path):
    script = (
        "import jax; from bert_jax.config.config_files import load\n"
        "from bert_jax.distributed import cluster, job\n"
        "with job.distributed_job(load('tiny'), cluster.find_topology(), {}) as started:\n"
        "    assert jax.distributed.is_initialized()\n"
        "    print(jax.process_count(), started.peers.hosts)\n"
    )
    done = subprocess.run(
        with_signals([sys.executable, "-c", script]),
        env={**os.environ, "BERT_JAX_HOST_NAME": "here"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "1 ('here',)\n"), done.stderr


def test_a_run_inside_another_program_starts_nothing():
    before = jax.distributed.is_initialized()
    with jobs.in_process_job(load("tiny")) as one:
        assert (one.peers.num_processes, one.peers.is_first) == (1, True)
    assert jax.distributed.is_initialized() == before
