"""Rendezvous: all processes of a job register with process 0 before JAX starts.

JAX's own start reports neither which process is missing nor which differs: it waits, then aborts.
So process 0 first listens on the coordinator's port itself. Every other process connects and sends
one line of JSON: its id, the number of processes it expects, and the versions and settings that
must be the same everywhere. When all have registered and agree, process 0 replies to each and frees
the port for JAX. The connections stay open: when one closes, its process is gone.
"""

import contextlib
import dataclasses
import json
import os
import select
import socket
import time
from collections.abc import Mapping

from bert_jax.errors import LostError, UserError
from bert_jax.runtime.log import logger

_RETRY = 0.5  # seconds between two attempts to reach process 0
_BETWEEN = 10.0  # seconds between two messages about missing processes
_MAX_LINE = 65536  # bytes
_START = "config.deadlines.start"


@dataclasses.dataclass(frozen=True)
class Registration:
    """The message with which a process registers."""

    process: int
    num_processes: int
    host: str
    about: Mapping[str, str]  # must be the same for all

    def line(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"


def split_address(address: str) -> tuple[str, int]:
    """Splits "host:port" into host and port, UserError if invalid; an IPv6 host is in brackets."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isdecimal() and len(port) < 6 and 0 < int(port) < 65536
    if not host or not is_port:
        raise UserError(f"coordinator {address!r}: give HOST:PORT, of the machine of process 0")
    return host, int(port)


@dataclasses.dataclass(frozen=True)
class Roster:
    """hosts: of each process. connections: to all others in process 0, else only to process 0."""

    hosts: tuple[str, ...]
    connections: Mapping[int, socket.socket]


def rendezvous(address: str, me: Registration, *, bind: str, timeout: float) -> Roster:
    """Waits `timeout` seconds for all processes; warns regularly about the missing ones.
    address: of the coordinator, "host:port". bind: the address that process 0 listens on.

    Raises:
        LostError: not all registered in time; the message lists who is missing.
        UserError: the port is taken, or processes differ in values that must be equal.
    """
    if me.num_processes == 1:
        return Roster((me.host,), {})
    if me.process == 0:
        return _serve(bind, me, timeout)
    return _register(address, me, timeout)


def _serve(address: str, me: Registration, timeout: float) -> Roster:
    """Process 0: collects the registrations of the others."""
    deadline, reported = time.monotonic() + timeout, time.monotonic()
    joined: dict[int, Registration] = {0: me}
    received: dict[socket.socket, bytes] = {}  # connection -> bytes received
    process_of: dict[socket.socket, int] = {}  # by connection
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_listen(address))
        stack.callback(lambda: [*map(socket.socket.close, received)])
        while len(joined) < me.num_processes:
            if time.monotonic() > deadline:
                raise LostError(f"{_missing(joined, me)} within {timeout:.0f} s ({_START})")
            if time.monotonic() > reported + _BETWEEN:
                reported = time.monotonic()
                logger.warning(_missing(joined, me))
            for ready in select.select([server, *received], [], [], 0.2)[0]:
                if ready is server:
                    received[server.accept()[0]] = b""
                    continue
                with contextlib.suppress(OSError):
                    if data := ready.recv(4096):
                        received[ready] += data
                        if received[ready].endswith(b"\n"):
                            _accept(received[ready], ready, joined, process_of, me)
                        if len(received[ready]) <= _MAX_LINE:
                            continue
                joined.pop(process_of.pop(ready, -1), None)  # disconnected; it may register again
                del received[ready]
                ready.close()
        verdict = _differences(joined)
        hosts = tuple(joined[process].host for process in sorted(joined))
        answer = json.dumps({"error": verdict, "hosts": hosts}).encode() + b"\n"
        for connection in process_of:
            with contextlib.suppress(OSError):
                connection.sendall(answer)
        if verdict:
            raise UserError(verdict)
        for connection in process_of:
            del received[connection]
    return Roster(hosts, {process: connection for connection, process in process_of.items()})


def _listen(address: str) -> socket.socket:
    host, port = split_address(address)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise UserError(
            f"process 0 cannot listen on {address} ({_plainly(error)}); give the "
            "coordinator an address of this machine and a free port"
        ) from None


def _plainly(error: OSError) -> str:
    """Returns the error text without the address that Python appends."""
    code = error.errno or 0
    return os.strerror(code) if code > 0 else error.strerror or str(error)


def _accept(
    line: bytes,
    connection: socket.socket,
    joined: dict[int, Registration],
    process_of: dict[socket.socket, int],
    me: Registration,
) -> None:
    """Registers a process, or replies with an error; ignores other clients."""
    try:
        peer = Registration(**json.loads(line))
    except (ValueError, TypeError):
        return
    if not isinstance(peer.process, int) or peer.process < 0:
        return
    if peer.process in joined:
        answer = f"two processes have --process_id={peer.process}: {peer.host} and "
        answer += f"{joined[peer.process].host}; give each its own --process_id"
    elif peer.num_processes != me.num_processes or peer.process >= me.num_processes:
        answer = f"process {peer.process} ({peer.host}) expects {peer.num_processes} processes, "
        answer += f"process 0 ({me.host}) {me.num_processes}; start all with the same number"
    else:
        joined[peer.process] = peer
        process_of[connection] = peer.process
        return
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps({"error": answer, "hosts": []}).encode() + b"\n")


def _missing(joined: Mapping[int, Registration], me: Registration) -> str:
    missing = [str(p) for p in range(me.num_processes) if p not in joined]
    registered = ", ".join(f"{joined[p].host} (process {p})" for p in sorted(joined))
    return (
        f"{len(joined)} of {me.num_processes} processes connected: {registered}; "
        f"missing: process {', '.join(missing)}"
    )


def _differences(joined: Mapping[int, Registration]) -> str:
    """Returns the first difference between processes, the rarest value first; "" if none."""
    for key in joined[0].about:
        by_value: dict[str, list[int]] = {}
        for process, peer in sorted(joined.items()):
            by_value.setdefault(peer.about.get(key, "nothing"), []).append(process)
        if len(by_value) > 1:
            groups = sorted(by_value.items(), key=lambda item: len(item[1]))
            values = "; ".join(
                f"{value} on {', '.join(f'{joined[p].host} (process {p})' for p in processes[:8])}"
                for value, processes in groups
            )
            return f"processes differ in {key}: {values}; start all with the same value"
    return ""


def _register(address: str, me: Registration, timeout: float) -> Roster:
    """Another process: registers with process 0, retrying until it answers."""
    where, deadline = split_address(address), time.monotonic() + timeout
    reached, reported = False, time.monotonic()
    while time.monotonic() < deadline:
        if not reached and time.monotonic() > reported + _BETWEEN:
            reported = time.monotonic()
            logger.warning(f"process {me.process} ({me.host}): no answer from {address} yet")
        with contextlib.suppress(OSError, ValueError):
            left = max(deadline - time.monotonic(), 0.1)
            with contextlib.ExitStack() as stack:
                connection = stack.enter_context(socket.create_connection(where, timeout=left))
                connection.sendall(me.line())
                reached = True
                with connection.makefile("rb") as reply:
                    answer = json.loads(reply.readline(_MAX_LINE * 16))
                if answer["error"]:
                    raise UserError(answer["error"])
                stack.pop_all()  # the connection stays open
                return Roster(tuple(answer["hosts"]), {0: connection})
        time.sleep(_RETRY)
    why = (
        "process 0 answers, but not all processes connected"
        if reached
        else f"no answer from {address}: process 0 has not started, the address is not its "
        "machine's, or the port is closed to this machine"
    )
    raise LostError(f"process {me.process} ({me.host}): {why}, within {timeout:.0f} s ({_START})")
