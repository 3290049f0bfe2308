"""Tests of the rendezvous before JAX starts; each process is a thread."""

import json
import socket
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import pytest

from bert_jax.distributed import rendezvous
from bert_jax.distributed.rendezvous import Registration, Roster, split_address
from bert_jax.distributed.rendezvous import rendezvous as meet
from bert_jax.errors import LostError, UserError

pytestmark = pytest.mark.processes  # they wait for deadlines

ABOUT = {"jax": "0.10.2", "configuration": "aaaa"}


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def start(address):
    """Starts a process; its result is a future."""
    started: list[Future[Roster]] = []
    with ThreadPoolExecutor(8) as pool:

        def start(
            process: int, count: int, timeout: float = 20.0, about: Mapping[str, str] = ABOUT
        ) -> Future[Roster]:
            guest = Registration(process, count, f"host-{process}", about)
            options = {"bind": address, "timeout": timeout}
            started.append(pool.submit(meet, address, guest, **options))
            return started[-1]

        yield start
    for one in started:
        for connection in {} if one.exception() else one.result().connections:
            one.result().connections[connection].close()


def connected(address: str) -> socket.socket:
    """Connects to process 0 as soon as it listens."""
    while True:
        try:
            return socket.create_connection(split_address(address), timeout=5)
        except ConnectionRefusedError:
            time.sleep(0.05)


def test_all_are_told_the_hosts_in_whatever_order_they_come(start):
    others = [start(process, 4) for process in (3, 1, 2)]
    for met in (start(0, 4), *others):
        assert met.result().hosts == ("host-0", "host-1", "host-2", "host-3")


def test_a_connection_closes_with_its_process_and_not_before(start):
    first, second = start(0, 2), start(1, 2)
    here, there = first.result().connections[1], second.result().connections[0]
    here.settimeout(0.2)
    with pytest.raises(TimeoutError):
        here.recv(1)
    there.close()
    assert here.recv(1) == b""


def test_the_port_is_free_again_once_all_have_met(start, address):
    """JAX listens there next, while the connections stay open."""
    first, second = start(0, 2), start(1, 2)
    open_connections = first.result(), second.result()
    socket.create_server(split_address(address)).close()
    assert all(met.connections for met in open_connections)


def test_one_process_meets_nobody():
    address, me = "127.0.0.1:1", Registration(0, 1, "here", ABOUT)
    assert meet(address, me, bind=address, timeout=0.1) == Roster(("here",), {})


def test_who_is_missing_and_who_is_there_is_said_by_name(start):
    first, _ = start(0, 3, timeout=1.5), start(2, 3, timeout=3)
    line = r"2 of 3 processes connected: host-0 \(process 0\), host-2 \(process 2\); missing: "
    with pytest.raises(LostError, match=line + r"process 1 within 2 s \(config.deadlines.start\)"):
        first.result()


@pytest.mark.slow
def test_a_process_that_went_away_is_missing_again(start, address):
    first = start(0, 3, timeout=3)
    with connected(address) as gone:
        gone.sendall(Registration(1, 3, "host-1", ABOUT).line())
    with pytest.raises(LostError, match="missing: process 1, 2"):
        first.result()


def test_without_process_0_the_address_is_said(start, address):
    with pytest.raises(LostError, match=rf"no answer from {address}.*port is closed"):
        start(1, 2, timeout=1).result()


def test_processes_that_differ_are_named_by_what_differs(start):
    odd = start(1, 3, about=ABOUT | {"configuration": "bbbb"})
    others = [start(0, 3), start(2, 3)]
    line = r"in configuration: bbbb on host-1 \(process 1\); aaaa on host-0 \(process 0\), host-2"
    for process in (odd, *others):
        with pytest.raises(UserError, match=line):
            process.result()


@pytest.mark.slow
def test_who_cannot_reach_process_0_says_so_before_the_deadline(address, monkeypatch, capsys):
    """Otherwise a mistyped address means ten minutes of silence."""
    monkeypatch.setattr(rendezvous, "_BETWEEN", 0.1)
    guest = Registration(1, 2, "host-1", ABOUT)
    with pytest.raises(LostError):
        meet(address, guest, bind=address, timeout=2)
    assert f"warning: process 1 (host-1): no answer from {address} yet" in capsys.readouterr().err


def test_two_processes_with_one_number_are_refused_and_the_rest_goes_on(start):
    first, one, two = start(0, 3), start(1, 3), start(1, 3)
    (refused,) = wait((one, two), return_when=FIRST_COMPLETED).done
    assert "two processes have --process_id=1" in str(refused.exception())
    third = start(2, 3)
    assert first.result().hosts == third.result().hosts == ("host-0", "host-1", "host-2")


@pytest.mark.slow
def test_another_number_of_processes_is_refused(start):
    first = start(0, 2, timeout=3)
    with pytest.raises(UserError, match=r"process 1 \(host-1\) expects 4 processes, process 0"):
        start(1, 4).result()
    with pytest.raises(LostError):
        first.result()


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 200_000 + b"\n", b"{}\n"])
def test_strangers_on_the_port_do_no_harm(start, address, said):
    first = start(0, 2)
    with connected(address) as stranger:
        try:
            stranger.sendall(said)
        except OSError:
            assert len(said) > 65536  # too much was said: it was cut off
        assert start(1, 2).result().hosts == first.result().hosts


def test_a_taken_port_is_one_line(address):
    guest = Registration(0, 2, "host-0", ABOUT)
    with (
        socket.create_server(split_address(address)),
        pytest.raises(UserError, match=rf"cannot listen on {address} \([^(]*\);.*a free port"),
    ):
        meet(address, guest, bind=address, timeout=1)


@pytest.mark.parametrize("address", ["host", "host:", ":80", "host:99999", "host:http", "host:²"])
def test_a_coordinator_is_a_host_and_a_port(address):
    with pytest.raises(UserError, match="give HOST:PORT"):
        split_address(address)


def test_a_coordinator_may_be_ipv6():
    assert split_address("[::1]:80") == ("::1", 80)


def test_a_guest_says_one_line():
    line = Registration(1, 2, "host\n1", ABOUT).line()
    assert line.count(b"\n") == 1
    assert json.loads(line)["host"] == "host\n1"
