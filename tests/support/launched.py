"""Launchers of small programs as their processes, and what both say and leave behind."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from signals import with_signals

LIMIT = 60  # seconds after which a test is taken to hang

# What every process of these tests begins with.
PROCESS = """
import os, pathlib, signal, socket, subprocess, sys, time
place = dict(word[2:].split("=") for word in sys.argv[1:])
me, host = int(place["process_id"]), os.environ["BERT_JAX_HOST_NAME"]
folder = pathlib.Path(__file__).parent

def there(name):
    '''Waits until another process has made a file.'''
    while not (folder / name).exists():
        time.sleep(0.01)

def mark(name, text=""):
    (folder / "new").mkdir(exist_ok=True)
    (folder / "new" / name).write_text(text)
    (folder / "new" / name).rename(folder / name)

starts = 1 + len(list(folder.glob(f"{host}.start*")))
mark(f"{host}.start{starts}", f"{os.getpid()} {place['coordinator']}")
"""
LAUNCHER = """
import json, sys
from bert_jax.launch.local import run
from bert_jax.launch.restarts import Limits
processes, limits, *command = sys.argv[1:]
sys.exit(run(command, int(processes), Limits(**json.loads(limits))))
"""


class Launched:
    """A launcher at work in a folder, and the processes that it starts."""

    def __init__(
        self,
        folder: Path,
        body: str,
        processes: int,
        limits: dict[str, float],
        ignored: Sequence[signal.Signals] = (),
    ):
        self.folder = folder
        (folder / "process.py").write_text(PROCESS + body)
        command = [sys.executable, "-S", str(folder / "process.py")]
        launcher = [sys.executable, "-c", LAUNCHER, str(processes), json.dumps(limits), *command]
        self.process = subprocess.Popen(
            with_signals(launcher, ignored),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
        )
        # Whatever waits for its output then sees the end of it.
        self.alarm = threading.Timer(LIMIT, self.process.kill)
        self.alarm.start()

    def wait(self) -> tuple[int, list[bytes]]:
        """Exit code and lines; the launcher itself says nothing on standard error."""
        out, err = self.process.communicate(timeout=LIMIT)
        assert err == b""
        assert not out or out.endswith(b"\n")
        return self.process.returncode, out.split(b"\n")[:-1]

    def until(self, *names: str) -> None:
        """Waits until the processes have made these files."""
        until(lambda: all((self.folder / name).exists() for name in names))

    def starts(self, host: str) -> list[tuple[int, str]]:
        """Process id and coordinator of each start of a host."""
        found = sorted(self.folder.glob(f"{host}.start*"), key=lambda path: int(path.suffix[6:]))
        pairs = (path.read_text().split() for path in found)
        return [(int(pid), coordinator) for pid, coordinator in pairs]

    def pids(self) -> list[int]:
        return [int(path.read_text().split()[0]) for path in self.folder.glob("host-*.start*")]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "this takes too long"
        time.sleep(0.01)


def is_there(pid: int) -> bool:
    """Whether a process runs or is stopped; a dead one may be kept until its parent asks."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def of(host: str, lines: list[bytes]) -> list[bytes]:
    """The lines of a host, without its name."""
    start = f"{host} | ".encode()
    return [line.removeprefix(start) for line in lines if line.startswith(start)]


def said(lines: list[bytes]) -> list[str]:
    """What the launcher says itself, but for the line of each start."""
    own = [line.decode() for line in of("launch", lines)]
    return [line for line in own if not line.startswith("coordinator ")]
