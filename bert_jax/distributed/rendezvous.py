"""All processes of a job find one another before JAX starts.

JAX's own start says neither who is missing nor who differs: it waits, then aborts. So process 0
first listens on the coordinator's port itself. Every other process connects and says one line of
JSON: who it is, how many it expects, and the versions and settings that must be equal everywhere.
When all are there and agree, each is told so; then the port is free for JAX. The connections stay
open: when one closes, its process is gone.
"""

import contextlib
import dataclasses
import json
import os
import select
import socket
import time
from collections.abc import Callable, Mapping

from bert_jax.errors import LostError, UserError

_RETRY = 0.5  # seconds between two attempts to reach process 0
_BETWEEN = 10.0  # seconds between two lines about who is missing
_LONGEST = 65536  # bytes of a line


@dataclasses.dataclass(frozen=True)
class Registration:
    """What a process says of itself."""

    process: int
    num_processes: int
    host: str
    about: Mapping[str, str]  # must be the same for all

    def line(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"


def split_address(address: str) -> tuple[str, int]:
    """ "host:port" -> host, port; an IPv6 host stands in brackets.

    Raises:
        UserError: it is none.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"coordinator {address!r}: give HOST:PORT, of the machine of process 0")
    return host, int(port)


@dataclasses.dataclass(frozen=True)
class Roster:
    """hosts: of each process. connections: of process 0 to all others, of those to process 0."""

    hosts: tuple[str, ...]
    connections: Mapping[int, socket.socket]


def rendezvous(
    address: str,
    me: Registration,
    *,
    bind: str | None = None,
    timeout: float,
    say: Callable[[str], None] = print,
) -> Roster:
    """Waits for all processes.

    Args:
        address: of the coordinator, "host:port".
        bind: the address that process 0 listens on, by default the coordinator's.
        timeout: seconds.
        say: is told now and then who is missing.

    Raises:
        LostError: not all came in time; names who is there and who is not.
        UserError: the port is taken, or processes differ in what must be equal.
    """
    if me.num_processes == 1:
        return Roster((me.host,), {})
    if me.process == 0:
        return _receive(bind or address, me, timeout, say)
    return _visit(address, me, timeout, say)


def _receive(address: str, me: Registration, timeout: float, say: Callable[[str], None]) -> Roster:
    """Process 0: collects the others."""
    deadline, told = time.monotonic() + timeout, time.monotonic()
    guests: dict[int, Registration] = {0: me}
    open_to: dict[socket.socket, bytes] = {}  # connection -> what it has said so far
    of: dict[socket.socket, int] = {}  # connection -> its process
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_listen(address))
        stack.callback(lambda: [*map(socket.socket.close, open_to)])
        while len(guests) < me.num_processes:
            if time.monotonic() > deadline:
                raise LostError(f"{_missing(guests, me)} within {timeout:.0f} s ({_START})")
            if time.monotonic() > told + _BETWEEN:
                told = time.monotonic()
                say(_missing(guests, me))
            for ready in select.select([server, *open_to], [], [], 0.2)[0]:
                if ready is server:
                    open_to[server.accept()[0]] = b""
                    continue
                with contextlib.suppress(OSError):
                    if said := ready.recv(4096):
                        open_to[ready] += said
                        if open_to[ready].endswith(b"\n"):
                            _admit(open_to[ready], ready, guests, of, me)
                        if len(open_to[ready]) <= _LONGEST:
                            continue
                guests.pop(of.pop(ready, -1), None)  # gone again, and may come back
                del open_to[ready]
                ready.close()
        verdict = _differences(guests)
        hosts = tuple(guests[process].host for process in sorted(guests))
        answer = json.dumps({"error": verdict, "hosts": hosts}).encode() + b"\n"
        for connection in of:
            with contextlib.suppress(OSError):
                connection.sendall(answer)
        if verdict:
            raise UserError(verdict)
        for connection in of:
            del open_to[connection]
    return Roster(hosts, {process: connection for connection, process in of.items()})


def _listen(address: str) -> socket.socket:
    host, port = split_address(address)
    try:
        return socket.create_server((host, port), family=_family(host, port), backlog=1024)
    except OSError as error:
        raise UserError(
            f"process 0 cannot listen on {address} ({_plainly(error)}); give the "
            "coordinator an address of this machine and a free port"
        ) from None


def _plainly(error: OSError) -> str:
    """Without what Python adds, the address once more."""
    code = error.errno or 0
    return os.strerror(code) if code > 0 else error.strerror or str(error)


def _family(host: str, port: int) -> socket.AddressFamily:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]


def _admit(
    said: bytes,
    connection: socket.socket,
    guests: dict[int, Registration],
    of: dict[socket.socket, int],
    me: Registration,
) -> None:
    """Takes note of a process; what is not one of ours is left waiting and not counted."""
    try:
        guest = Registration(**json.loads(said))
    except (ValueError, TypeError):
        return
    if not isinstance(guest.process, int) or guest.process < 0:
        return
    if guest.process in guests:
        answer = f"two processes call themselves process {guest.process}: {guest.host} and "
        answer += f"{guests[guest.process].host}; give each its own --process_id"
    elif guest.num_processes != me.num_processes or guest.process >= me.num_processes:
        answer = f"process {guest.process} ({guest.host}) expects {guest.num_processes} processes, "
        answer += f"process 0 ({me.host}) {me.num_processes}; start all with the same number"
    else:
        guests[guest.process] = guest
        of[connection] = guest.process
        return
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps({"error": answer, "hosts": []}).encode() + b"\n")


def _missing(guests: Mapping[int, Registration], me: Registration) -> str:
    missing = [str(p) for p in range(me.num_processes) if p not in guests]
    there = ", ".join(f"{guests[p].host} (process {p})" for p in sorted(guests))
    return (
        f"{len(guests)} of {me.num_processes} processes came: {there}; "
        f"missing: process {', '.join(missing)}"
    )


def _differences(guests: Mapping[int, Registration]) -> str:
    """What differs between processes, "" where nothing does; names the fewest."""
    for key in guests[0].about:
        by_value: dict[str, list[int]] = {}
        for process, guest in sorted(guests.items()):
            by_value.setdefault(guest.about.get(key, "nothing"), []).append(process)
        if len(by_value) > 1:
            groups = sorted(by_value.items(), key=lambda item: len(item[1]))
            said = "; ".join(
                f"{value} on {', '.join(f'{guests[p].host} (process {p})' for p in processes[:8])}"
                for value, processes in groups
            )
            return f"processes differ in {key}: {said}; start all with the same"
    return ""


_START = "config.deadlines.start"


def _visit(address: str, me: Registration, timeout: float, say: Callable[[str], None]) -> Roster:
    """Another process: reports to process 0, again and again until it is there."""
    where, deadline = split_address(address), time.monotonic() + timeout
    reached, told = False, time.monotonic()
    while time.monotonic() < deadline:
        if not reached and time.monotonic() > told + _BETWEEN:
            told = time.monotonic()
            say(f"process {me.process} ({me.host}): nobody answers at {address} yet")
        with contextlib.suppress(OSError, ValueError):
            left = max(deadline - time.monotonic(), 0.1)
            with contextlib.ExitStack() as stack:
                connection = stack.enter_context(socket.create_connection(where, timeout=left))
                connection.sendall(me.line())
                reached = True
                with connection.makefile("rb") as said:
                    answer = json.loads(said.readline(_LONGEST * 16))
                if answer["error"]:
                    raise UserError(answer["error"])
                stack.pop_all()  # it stays open
                return Roster(tuple(answer["hosts"]), {0: connection})
        time.sleep(_RETRY)
    why = (
        "process 0 answers, but not all processes came"
        if reached
        else f"nobody answers at {address}: process 0 has not started, the address is not its "
        "machine's, or the port is closed to this machine"
    )
    raise LostError(f"process {me.process} ({me.host}): {why}, in {timeout:.0f} s ({_START})")
