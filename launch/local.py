"""Runs a job of several processes on this machine: merges their output, restarts and stops them.

A single thread with one `poll` forwards the processes' output, receives signals and ended processes
through the wake-up descriptor, and enforces deadlines. It never blocks, so a signal is forwarded at
once even if no one reads the output.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from bert_jax.exit_codes import LOST, STOPPED, describe, signal_of, verdict
from bert_jax.launch.output import NAME, Lines, Out
from bert_jax.launch.process import Process
from bert_jax.launch.restarts import NOT_AGAIN, Limits, Restarts
from bert_jax.storage.host_name import HOST_VARIABLE

_ADDRESS = "127.0.0.1"
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run(command: Sequence[str], processes: int, limits: Limits) -> int:
    """Runs a command as a job of several processes; restarts it as often as the limits allow.

    command: program and arguments; each process also gets `--coordinator`, `--num_processes` and
        `--process_id`, and its host name in BERT_JAX_HOST_NAME.
    Returns the job's exit code, `exit_codes.verdict`; OSError if a process cannot be started.
    """
    restarts = Restarts()
    with _Job(command, processes, limits) as job:
        while True:
            ends = job.attempt()
            code = verdict(code for _, code in ends)
            if job.is_stopping and code == LOST:
                code = STOPPED  # a requested stop is not a failure, however they ended
            if code == 0:
                return code
            decision = NOT_AGAIN if job.is_stopping else restarts.after(code, limits)
            job.say(f"{describe(ends)}; {decision.reason}")
            if not decision.again:
                return code
            if not job.wait(decision.pause):
                return STOPPED


class _Process(Process):
    """One process of the job, its output in pipes of its own."""

    def __init__(self, index: int, command: Sequence[str]):
        self.name, self.is_terminated = f"host-{index}", False
        # Separate pipes for output and errors: lines of one do not split lines of the other.
        (out, its_out), (err, its_err) = os.pipe(), os.pipe()
        self.pipes = [Lines(out, self.name), Lines(err, self.name)]
        # Unbuffered: lines appear when they are printed.
        env = {**os.environ, HOST_VARIABLE: self.name, "PYTHONUNBUFFERED": "1"}
        try:
            super().__init__(command, env, out=its_out, err=its_err)
        finally:
            os.close(its_out)
            os.close(its_err)


class _Job:
    """The processes of each attempt, and the signals that the launcher received."""

    def __init__(self, command: Sequence[str], processes: int, limits: Limits):
        self._command, self._processes, self._limits = list(command), processes, limits
        self._out = Out(sys.stdout.fileno())
        self._running: list[_Process] = []
        self._pipes: dict[int, Lines] = {}
        self._signals: set[int] = set()  # signals that were forwarded
        self._terminate_at: float | None = None  # when the remaining processes get SIGTERM
        self._kill_at: float | None = None  # when they are killed

    def __enter__(self) -> "_Job":
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)
        self._old_wakeup = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        # Set by nohup or a shell's background job.
        ignored = [n for n in _FORWARDED if signal.getsignal(n) == signal.SIG_IGN]
        if ignored:
            names = ", ".join(number.name for number in ignored)
            self.say(f"{names}: already ignored at the start, not forwarded")
        numbers = {signal.SIGCHLD, *_FORWARDED} - set(ignored)
        self._old_handlers = {number: signal.signal(number, _wake_up) for number in numbers}
        return self

    def __exit__(self, *error: object) -> None:
        for host in self._running:  # none, unless the launcher failed
            host.close()
        for number, handler in self._old_handlers.items():
            # After a request to stop another one would end this process before its exit code is
            # that of the job.
            is_over = self.is_stopping and number in _FORWARDED
            signal.signal(number, signal.SIG_IGN if is_over else handler)
        signal.set_wakeup_fd(self._old_wakeup)
        self._wake.close()
        self._waker.close()
        self._out.flush()

    @property
    def is_stopping(self) -> bool:
        return bool(self._signals)

    def say(self, line: str) -> None:
        self._out.put(f"{NAME} | {line}\n".encode())

    def attempt(self) -> list[tuple[str, int]]:
        """Runs the processes once; returns their hosts and exit codes in the order they ended."""
        ends = []
        self._terminate_at = self._kill_at = None
        with _reserved_port() as port:
            for index in range(self._processes):
                place = (
                    f"--coordinator={_ADDRESS}:{port}",
                    f"--num_processes={self._processes}",
                    f"--process_id={index}",
                )
                host = _Process(index, [*self._command, *place])
                self._running.append(host)
                self._pipes |= {lines.fd: lines for lines in host.pipes}
            ids = ", ".join(f"{host.name} is process {host.pid}" for host in self._running)
            self.say(f"coordinator {_ADDRESS}:{port}; {ids}")
            while self._running:
                self._poll(min(filter(None, (self._terminate_at, self._kill_at)), default=None))
                for host in [host for host in self._running if host.has_ended()]:
                    code = self._end(host)
                    if not host.is_terminated:  # after SIGTERM its exit code has no meaning
                        ends.append((host.name, code))
                self._enforce_deadlines()
        return ends

    def wait(self, seconds: float) -> bool:
        """Waits between two attempts; returns whether to start another, False on a stop signal."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._signals:
            self._poll(until)
        return not self._signals

    def _poll(self, until: float | None) -> None:
        """Waits for events, until that time at most, and handles them."""
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
                lines = self._pipes[fd].read()
                self._out.put(self._pipes.pop(fd).close() if lines is None else lines)

    def _end(self, host: _Process) -> int:
        """Removes a process that has ended; returns its exit code."""
        self._running.remove(host)
        code = host.close()
        for lines in host.pipes:
            if self._pipes.pop(lines.fd, None):
                self._out.put(lines.close())
        if signal_of(code) in self._signals:
            code = STOPPED  # before it installed its handler: there was nothing to save
        if code != 0 and not self._signals and self._terminate_at is None and self._kill_at is None:
            # The others end on their own: they detect it, or are still saving as this one did.
            needed = self._limits.grace if code == STOPPED else self._limits.noticing
            self._terminate_at = time.monotonic() + needed + self._limits.margin
        return code

    def _stop(self, number: int) -> None:
        """Forwards every signal; the first one starts the deadline after which all are killed."""
        name = signal.Signals(number).name
        number = signal.SIGTERM if number == signal.SIGHUP else number  # a terminal was closed
        if not self._signals:
            seconds = self._limits.grace + self._limits.margin
            self._terminate_at, self._kill_at = None, time.monotonic() + seconds
            if self._running:
                self.say(f"{name}: forwarded; processes still running in {seconds:g} s are killed")
            else:
                self.say(f"{name}: not started again")
        self._signals.add(number)
        for host in self._running:
            host.send(number)

    def _enforce_deadlines(self) -> None:
        now, names = time.monotonic(), ", ".join(host.name for host in self._running)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            if names:
                self.say(f"{names}: still running at the deadline, killed")
            for host in self._running:
                host.kill()
        elif self._terminate_at is not None and now >= self._terminate_at:
            self._terminate_at, self._kill_at = None, now + self._limits.margin
            if names:
                self.say(f"{names}: still running after another ended, sent SIGTERM")
            for host in self._running:
                host.is_terminated = True
                host.send(signal.SIGTERM)


def _wake_up(number: int, frame: FrameType | None) -> None:
    """Does nothing: a signal with a handler is written to the wake-up descriptor."""


@contextlib.contextmanager
def _reserved_port() -> Iterator[int]:
    """Reserves a free TCP port of this machine while the context lasts.

    It is bound but not listened on: with SO_REUSEADDR (Python's servers) or SO_REUSEPORT (gRPC's)
    process 0 can bind it too and gets all connections, while the kernel does not assign it to
    sockets that ask for any port. A port that is only checked could be taken before process 0
    binds it.
    """
    with socket.socket() as held:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            held.setsockopt(socket.SOL_SOCKET, option, 1)
        held.bind((_ADDRESS, 0))
        yield held.getsockname()[1]
