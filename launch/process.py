"""One process of a job: it ends with what it started, and with the launcher."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

# Runs in each process before it execs the command: the kernel kills the process when the launcher
# ends, however it ends. `preexec_fn` would run in a fork of the launcher, where a lock held by
# another thread stays locked forever. The setting survives exec, but does nothing if the launcher
# ended before the call: hence the check of the parent afterwards. 1 is PR_SET_PDEATHSIG.
_DIE_WITH_LAUNCHER = """
import ctypes, os, signal, sys
launcher, *command = sys.argv[1:]
if ctypes.CDLL(None).prctl(1, signal.SIGKILL) != 0 or os.getppid() != int(launcher):
    sys.exit("the launcher is gone")
os.execvp(command[0], command)
"""


class Process:
    """A process, leader of a session and a process group of its own."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], *, out: int, err: int):
        """env: all its variables. out, err: descriptors of its output."""
        # This small program execs the command: same process, same descriptors.
        guard = [sys.executable, "-I", "-S", "-c", _DIE_WITH_LAUNCHER, str(os.getpid())]
        self._process = subprocess.Popen(
            [*(guard if sys.platform == "linux" else ()), *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=dict(env),
            # Ctrl-C in a terminal reaches only the launcher, which forwards it.
            start_new_session=True,
        )
        self.pid = self._process.pid

    def has_ended(self) -> bool:
        """Returns whether it ended; it stays a zombie, so that its group id is not reused."""
        options = os.WEXITED | os.WNOWAIT | os.WNOHANG
        return os.waitid(os.P_PID, self.pid, options) is not None

    def send(self, number: int) -> None:
        """Sends a signal to the process alone, which handles its own child processes."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills the process and its child processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> int:
        """Kills remaining processes of the group; returns the exit code."""
        self.kill()
        return self._process.wait()
