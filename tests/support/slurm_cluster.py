"""A Slurm of one node, this machine, for as long as a test runs."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
LIMIT = 60  # seconds for a daemon or the node to be there
CPUS = 2
# Two partitions of the same node: a job in `high` preempts one in `low`, which is requeued.
# cred_expire: a requeued job waits until its credential has expired, by default 120 s.
# config_overrides: the node may have fewer cores than it says. sched_interval: seconds between two
# looks for jobs that may start, by default 60.
CONFIG = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ctld_port}
SlurmdPort={d_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
MpiDefault=none
ReturnToService=2
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus} \
ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""


def missing() -> str:
    """Why there can be no Slurm here; empty if there can."""
    absent = [name for name in PROGRAMS if not _program(name)]
    if absent:
        return f"{', '.join(absent)} not found: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "slurmd starts the processes of jobs only as root"


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[Mapping[str, str]]:
    """Starts Slurm with its files in a folder; yields the variables with which it is found."""
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(parents=True)
    (folder / "munge").chmod(0o700)
    key = folder / "munge/key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    host, (ctld_port, d_port) = socket.gethostname().partition(".")[0], _free_ports(2)
    (folder / "slurm.conf").write_text(
        CONFIG.format(folder=folder, host=host, cpus=CPUS, ctld_port=ctld_port, d_port=d_port)
    )
    env = {"SLURM_CONF": str(folder / "slurm.conf")}
    munge = [f"--{name}={folder}/munge/{name.split('-')[0]}" for name in ("key-file", "pid-file")]
    munge += [f"--socket={folder}/munge/sock", f"--log-file={folder}/munge/log"]
    commands = [
        ["munged", "--foreground", "--force", *munge, f"--seed-file={folder}/munge/seed"],
        ["slurmctld", "-D"],
        ["slurmd", "-D"],
    ]
    daemons: list[subprocess.Popen] = []
    try:
        for words in commands:
            with (folder / f"{words[0]}.out").open("wb") as out:
                program = [_program(words[0]) or words[0], *words[1:]]
                daemons.append(
                    subprocess.Popen(program, env={**os.environ, **env}, stdout=out, stderr=out)
                )
            if words[0] == "munged":
                _until(lambda: (folder / "munge/sock").exists(), "munge")
        _until(lambda: "idle" in _ask(env, "sinfo", "--noheader", "--format=%T"), "node")
        yield env
    finally:
        _ask(env, "scancel", "--user=root")
        with contextlib.suppress(AssertionError):
            _until(lambda: not _ask(env, "squeue", "--noheader"), "end of all jobs")
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(LIMIT)
        _kill_what_is_left(env["SLURM_CONF"])


def _kill_what_is_left(conf: str) -> None:
    """Kills processes of jobs that did not end in time, known by the Slurm in their variables."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"SLURM_CONF={conf}".encode() in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def _ask(env: Mapping[str, str], *words: str) -> str:
    done = subprocess.run(
        words, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    return done.stdout


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"no {what} after {LIMIT} s"
        time.sleep(0.2)
