"""A job of several processes on this machine: started, merged, stopped and started again.

One thread, one `poll`: it reads what the processes print, writes it, takes signals and ended
processes from the wake-up descriptor, and keeps the deadlines. Nothing in it blocks, so a signal is
passed on at once even where nobody reads the output.
"""

import contextlib
import dataclasses
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType

from bert_jax.launch.exit_codes import LOST, STOPPED, describe, signal_of, verdict
from bert_jax.launch.output import Lines, Out

HOST_VARIABLE = "BERT_JAX_HOST_NAME"
_NAME = "launch"
_ADDRESS = "127.0.0.1"
_MOST_SECONDS_BETWEEN = 30.0  # a failure and the next start
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# Run by each process before the command takes its place: the kernel kills it when the launcher is
# gone, however that ended. `preexec_fn` would do the same in a fork of the launcher, where a lock
# that another thread holds is held for ever. The signal outlives exec, but not the death of a
# launcher before it was asked for: hence the look at the parent afterwards. 1 is PR_SET_PDEATHSIG.
_DIE_WITH_LAUNCHER = """
import ctypes, os, signal, sys
launcher, *command = sys.argv[1:]
if ctypes.CDLL(None).prctl(1, signal.SIGKILL) != 0 or os.getppid() != int(launcher):
    sys.exit("the launcher is gone")
os.execvp(command[0], command)
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """How often a job is started again, and how long is waited for its processes, in seconds."""

    max_preemptions: int = 100
    max_failures: int = 3
    grace: float = 25.0  # from being asked to stop to having saved
    noticing: float = 15.0  # that another process is gone
    margin: float = 15.0  # for ending besides, and after being asked to
    between: float = 1.0  # the first failure and the next start; twice as long each time


def run(command: Sequence[str], processes: int, limits: Limits | None = None) -> int:
    """Runs a command as a job of several processes; starts it again as often as limits allow.

    command: program and arguments; each process gets `--coordinator`, `--num_processes` and
        `--process_id` besides, and its host name in BERT_JAX_HOST_NAME.
    Returns the exit code of the job: see `bert_jax.launch.exit_codes.verdict`.
    Raises:
        OSError: a process cannot be started.
    """
    limits = limits or Limits()
    budgets = {
        STOPPED: ("preemptions", limits.max_preemptions),
        LOST: ("failures", limits.max_failures),
    }
    used = dict.fromkeys(budgets, 0)
    with _Job(command, processes, limits) as job:
        while True:
            ends = job.attempt()
            code = verdict(code for _, code in ends)
            if job.is_stopping and code == LOST:
                code = STOPPED  # it was asked for: no failure, however they ended
            what = describe(ends)
            if code == 0:
                return code
            if job.is_stopping or code not in budgets:
                job.say(f"{what}; not started again")
                return code
            name, most = budgets[code]
            if used[code] == most:
                job.say(f"{what}; not started again: {most} of {most} {name} used (--max_{name})")
                return code
            used[code] += 1
            wait = 0.0
            if code == LOST:
                wait = min(limits.between * 2 ** (used[LOST] - 1), _MOST_SECONDS_BETWEEN)
            after = f" in {wait:g} s" if wait else ""
            job.say(f"{what}; starting again{after} ({most - used[code]} of {most} {name} left)")
            if not job.wait(wait):
                return STOPPED


class _Host:
    """One process of the job, leader of a session and a process group of its own."""

    def __init__(self, index: int, command: Sequence[str]):
        self.name, self.is_given_up = f"host-{index}", False
        # The command takes the place of this small program: same process, same descriptors.
        guard = [sys.executable, "-I", "-S", "-c", _DIE_WITH_LAUNCHER, str(os.getpid())]
        # A pipe each for output and errors: no line of one stands inside a line of the other.
        (out, its_out), (err, its_err) = os.pipe(), os.pipe()
        self.pipes = [Lines(out, self.name), Lines(err, self.name)]
        try:
            self._process = subprocess.Popen(
                [*(guard if sys.platform == "linux" else ()), *command],
                stdin=subprocess.DEVNULL,
                stdout=its_out,
                stderr=its_err,
                # Lines appear when they are printed, not when a buffer is full.
                env={**os.environ, HOST_VARIABLE: self.name, "PYTHONUNBUFFERED": "1"},
                # Ctrl-C of a terminal goes to the launcher alone, which passes it on.
                start_new_session=True,
            )
        finally:
            os.close(its_out)
            os.close(its_err)

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether it ended; it stays a zombie, so that its group keeps its number."""
        options = os.WEXITED | os.WNOWAIT | os.WNOHANG
        return os.waitid(os.P_PID, self.pid, options) is not None

    def send(self, number: int) -> None:
        """A request to the process alone: it knows what to do with its own processes."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> int:
        """Ends what is left of it; the exit code."""
        self.kill()
        return self._process.wait()


class _Job:
    """The processes of one attempt after another, and what the launcher was asked meanwhile."""

    def __init__(self, command: Sequence[str], processes: int, limits: Limits):
        self._command, self._processes, self._limits = list(command), processes, limits
        self._out = Out(sys.stdout.fileno())
        self._running: list[_Host] = []
        self._pipes: dict[int, Lines] = {}
        self._asked: set[int] = set()  # signals that were passed on
        self._ask_at: float | None = None  # when the processes left are asked to end
        self._kill_at: float | None = None  # when they are killed

    def __enter__(self) -> "_Job":
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)
        self._old_wakeup = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        # nohup or a shell's background wanted it so.
        ignored = [n for n in _PASSED_ON if signal.getsignal(n) == signal.SIG_IGN]
        if ignored:
            names = ", ".join(number.name for number in ignored)
            self.say(f"{names}: ignored since the start, not passed on")
        numbers = {signal.SIGCHLD, *_PASSED_ON} - set(ignored)
        self._old_handlers = {number: signal.signal(number, _wake_up) for number in numbers}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for host in self._running:  # none, unless something went wrong here
            host.close()
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        self._wake.close()
        self._waker.close()
        self._out.flush()

    @property
    def is_stopping(self) -> bool:
        return bool(self._asked)

    def say(self, line: str) -> None:
        self._out.put(f"{_NAME} | {line}\n".encode())

    def attempt(self) -> list[tuple[str, int]]:
        """Runs the processes once; host and exit code of each, in the order in which they ended."""
        ends = []
        self._ask_at = self._kill_at = None
        with _reserved_port() as port:
            for index in range(self._processes):
                place = (
                    f"--coordinator={_ADDRESS}:{port}",
                    f"--num_processes={self._processes}",
                    f"--process_id={index}",
                )
                host = _Host(index, [*self._command, *place])
                self._running.append(host)
                self._pipes |= {lines.fd: lines for lines in host.pipes}
            ids = ", ".join(f"{host.name} is process {host.pid}" for host in self._running)
            self.say(f"coordinator {_ADDRESS}:{port}; {ids}")
            while self._running:
                self._turn(self._next_time())
                for host in [host for host in self._running if host.has_ended()]:
                    code = self._end(host)
                    if not host.is_given_up:  # how it then ends says nothing
                        ends.append((host.name, code))
                self._keep_time()
        return ends

    def wait(self, seconds: float) -> bool:
        """Between two attempts; whether there is to be another: not where the job was stopped."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._asked:
            self._turn(until)
        return not self._asked

    def _turn(self, until: float | None) -> None:
        """Waits until something happens, or until that time, and takes care of it."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if self._out.wants:
            poll.register(self._out.fd, select.POLLOUT)
        if not self._out.is_full:
            for fd in self._pipes:
                poll.register(fd, select.POLLIN)
        timeout = None if until is None else max(0.0, 1000 * (until - time.monotonic()))
        for fd, _ in poll.poll(timeout):
            if fd == self._wake.fileno():
                for number in self._wake.recv(4096):
                    if number != signal.SIGCHLD:
                        self._stop(number)
            elif fd == self._out.fd:
                self._out.write()
            else:
                self._read(fd)

    def _read(self, fd: int) -> None:
        lines = self._pipes[fd].read()
        if lines is None:
            lines = self._pipes.pop(fd).close()
        self._out.put(lines)

    def _end(self, host: _Host) -> int:
        """Takes leave of a process that has ended; its exit code."""
        self._running.remove(host)
        code = host.close()
        for lines in host.pipes:
            if self._pipes.pop(lines.fd, None):
                self._out.put(lines.close())
        if signal_of(code) in self._asked:
            code = STOPPED  # before it could know better: nothing was there to be saved
        if code != 0 and not self._asked and self._ask_at is None and self._kill_at is None:
            # The others end by themselves: they notice, or are still saving as this one did.
            theirs = self._limits.grace if code == STOPPED else self._limits.noticing
            self._ask_at = time.monotonic() + theirs + self._limits.margin
        return code

    def _stop(self, number: int) -> None:
        """Passes a signal on, each time it comes; after the first one there is a last moment."""
        name = signal.Signals(number).name
        number = signal.SIGTERM if number == signal.SIGHUP else number  # a terminal was closed
        if not self._asked:
            seconds = self._limits.grace + self._limits.margin
            self._ask_at, self._kill_at = None, time.monotonic() + seconds
            if self._running:
                self.say(f"{name}: passed on; what has not ended in {seconds:g} s is killed")
            else:
                self.say(f"{name}: not started again")
        self._asked.add(number)
        for host in self._running:
            host.send(number)

    def _next_time(self) -> float | None:
        """When something is to be done even if nothing happens."""
        times = [time for time in (self._ask_at, self._kill_at) if time is not None]
        return min(times) if times else None

    def _keep_time(self) -> None:
        now, names = time.monotonic(), ", ".join(host.name for host in self._running)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            if names:
                self.say(f"{names}: not ended in time, killed")
            for host in self._running:
                host.kill()
        elif self._ask_at is not None and now >= self._ask_at:
            self._ask_at, self._kill_at = None, now + self._limits.margin
            if names:
                self.say(f"{names}: still there after another ended, asked to end")
            for host in self._running:
                host.is_given_up = True
                host.send(signal.SIGTERM)


def _wake_up(number: int, frame: FrameType | None) -> None:
    """Does nothing: a signal with a handler is written to the wake-up descriptor."""


@contextlib.contextmanager
def _reserved_port() -> Iterator[int]:
    """A free TCP port of this machine that nobody else is given while the context lasts.

    It is bound, not listened on: with SO_REUSEADDR (Python's servers) or SO_REUSEPORT (gRPC's)
    process 0 may bind it too and gets all connections, while the kernel gives it to none that asks
    for any port. One that was merely found free could be taken before process 0 comes to it.
    """
    with socket.socket() as held:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            held.setsockopt(socket.SOL_SOCKET, option, 1)
        held.bind((_ADDRESS, 0))
        yield held.getsockname()[1]
