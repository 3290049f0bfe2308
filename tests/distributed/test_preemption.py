"""Tests of preemption: where all processes stop, second signals, maintenance notices."""

import hashlib
import http.server
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest
import shared_steps
from corpus import small_store, two_phases
from signals import ASKING, dispositions

from bert_jax.distributed import preemption
from bert_jax.distributed.cluster import ProcessTopology
from bert_jax.distributed.peers import ProcessGroup, single_process_group
from bert_jax.distributed.preemption import PreemptionHandler, StopRequestedError
from bert_jax.distributed.rendezvous import Roster
from bert_jax.errors import StoppedError
from bert_jax.exit_codes import LOST, STOPPED
from bert_jax.runtime.activity import ActivityClock
from bert_jax.training.loop import pretrain
from bert_jax.training.options import RunOptions
from bert_jax.training.profiling import Profiler

LIMIT = 30.0  # seconds for whatever is waited for


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"no {what}"
        time.sleep(0.005)


class _Store:
    """JAX's key-value store, for processes that are threads."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._changed = threading.Condition()

    def key_value_set(self, key: str, text: str, allow_overwrite: bool = False) -> None:
        with self._changed:
            self.texts[key] = text
            self._changed.notify_all()

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.texts, milliseconds / 1000):
                raise RuntimeError("DEADLINE_EXCEEDED")
            return self.texts[key]


class _EndError(Exception):
    """Raised where a process would exit."""


class _Exit:
    """Records how the process would exit, and ends the calling thread."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, str]] = []

    def end(self, code: int, line: str, *, stacks: bool = False, notify: bool = True) -> None:
        self.ends.append((code, line))
        if threading.current_thread().name == "grace":
            return
        raise _EndError


def processes(count: int, grace: float = LIMIT) -> list[PreemptionHandler]:
    """Creates processes that share a store."""
    store, hosts = _Store(), tuple(f"host-{i}" for i in range(count))
    return [
        PreemptionHandler(
            ProcessGroup(
                ProcessTopology("", count, i),
                Roster(hosts, {}),
                ActivityClock(),
                store,
                barrier=LIMIT,
            ),
            grace,
            _Exit(),  # type: ignore[arg-type]
        )
        for i in range(count)
    ]


def pieces(handler: PreemptionHandler) -> int:
    """Runs work items until told to stop; returns their number."""
    for done in range(100):
        try:
            handler.begin()
        except StopRequestedError:
            return done
    pytest.fail("nothing handler this process")


@pytest.mark.parametrize("begun", [(3, 3), (3, 4), (1, 5, 2)])
def test_all_stop_where_the_one_that_is_furthest_is(begun):
    everyone = processes(len(begun))
    for handler, count in zip(everyone, begun, strict=True):
        for _ in range(count):
            handler.begin()
    everyone[1].request("SIGTERM to host-1")
    with ThreadPoolExecutor(len(begun)) as pool:
        list(pool.map(lambda handler: handler.agree("SIGTERM to host-1"), everyone))
        left = list(pool.map(pieces, everyone))
    assert [count + more for count, more in zip(begun, left, strict=True)] == [max(begun)] * len(
        begun
    )
    for handler in everyone:
        with pytest.raises(StopRequestedError):
            handler.check()
        assert handler.why == "SIGTERM to host-1"


def test_nobody_begins_a_piece_while_they_agree():
    """Otherwise the process that published three items could have begun a fourth."""
    first, second = processes(2)
    for handler in (first, second):
        handler.begin()
    with ThreadPoolExecutor(3) as pool:
        agreeing = pool.submit(first.agree, "a notice")
        until(lambda: first.why, "agreement begun")
        until(lambda: "bert_jax/begun/0" in first.peers._client.texts, "answer of process 0")
        beginning = pool.submit(pieces, first)
        time.sleep(0.05)
        assert not beginning.done()
        pool.submit(second.agree, "a notice").result(LIMIT)
        agreeing.result(LIMIT)
        assert beginning.result(LIMIT) == 0


def test_before_the_first_piece_a_process_leaves_at_once():
    (handler,) = processes(1)
    with pytest.raises(_EndError):
        handler.request("SIGTERM to host-0")
    line = "SIGTERM to host-0: stopped before the first step, nothing is lost"
    assert handler._process_exit.ends == [(STOPPED, line)]


def test_the_grace_period_ends_who_did_not_save():
    first, second = processes(2, grace=0.1)
    first.begin()
    first.request("SIGTERM to host-0")
    first.agree("SIGTERM to host-0")  # and the other one never answers
    until(lambda: first._process_exit.ends, "end")
    ((code, line),) = first._process_exit.ends
    assert code == LOST
    assert line.startswith("host-0 (process 0): asked to stop (SIGTERM to host-0), but not saved")
    assert "config.deadlines.grace" in line
    assert not second._process_exit.ends


def test_a_time_asks_to_stop_once_it_has_come():
    (handler,) = processes(1)
    handler.begin()
    handler.request_at(time.monotonic() + 0.2, "--time_limit=1m")
    handler.check()
    with pytest.raises(StopRequestedError):
        until(handler.check, "request")
    assert handler.why == "--time_limit=1m"


def test_asking_again_changes_nothing():
    (handler,) = processes(1)
    handler.begin()
    for why in ("SIGTERM", "a notice"):
        handler.request(why)
    assert handler.why == "SIGTERM"
    assert pieces(handler) == 0


# Signals to the test process itself


@pytest.fixture
def listening() -> Iterator[PreemptionHandler]:
    """A run inside another program: no process exits."""
    handler = PreemptionHandler(single_process_group(ActivityClock()), LIMIT)
    handler.begin()
    with dispositions(lambda number: _untouched):
        with handler.listening():
            yield handler
        assert [signal.getsignal(number) for number in ASKING] == [_untouched] * len(ASKING)


def _untouched(*_: object) -> None:
    pytest.fail("a handler of the program was called")


@pytest.mark.parametrize("number", ASKING)
def test_the_first_signal_interrupts_nothing(number, listening):
    """The main thread handles it long after the request, as while it waits for a device."""
    timer = threading.Timer(0.05, os.kill, (os.getpid(), number))
    timer.start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000)  # half a second in which no handler runs
    timer.join()
    until(lambda: listening._stop_at is not None, "step to stop at")
    assert listening.why.startswith(number.name)
    with pytest.raises(StopRequestedError):
        listening.check()


@pytest.mark.parametrize("ignored", [[signal.SIGHUP], [signal.SIGINT, signal.SIGHUP]])
def test_a_signal_that_was_ignored_stays_ignored(ignored, capsys):
    """nohup or a shell's background job: a line reports it, and another signal stops the run."""
    handler = PreemptionHandler(single_process_group(ActivityClock()), LIMIT)
    handler.begin()
    with dispositions(lambda number: signal.SIG_IGN if number in ignored else _untouched):
        with handler.listening():
            for number in ignored:
                os.kill(os.getpid(), number)
                assert signal.getsignal(number) == signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGTERM)
            until(lambda: handler.why, "request")
        assert all(signal.getsignal(number) == signal.SIG_IGN for number in ignored)
    names, lines = ", ".join(n.name for n in ignored), capsys.readouterr().out.splitlines()
    assert lines[0] == f"{names}: already ignored at the start, stays ignored"
    assert handler.why.startswith("SIGTERM")
    assert len(lines) == 2


def _ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    until(lambda: False, "interrupt")


def test_a_second_ctrl_c_interrupts(listening):
    os.kill(os.getpid(), signal.SIGINT)
    until(lambda: listening.why, "request")
    with pytest.raises(KeyboardInterrupt):
        _ctrl_c()


def test_a_second_sigterm_does_not(listening):
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGTERM)
    until(lambda: listening._stop_at is not None, "step to stop at")
    assert pieces(listening) == 0


def test_sigterm_and_one_ctrl_c_are_one_request(listening):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    until(lambda: listening._stop_at is not None, "step to stop at")
    assert pieces(listening) == 0


def test_ctrl_c_here_is_no_second_one_where_another_process_was_told(listening):
    listening.request("SIGTERM to host-7")
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.05)  # nothing is to happen
    assert listening.why == "SIGTERM to host-7"


# The maintenance notice


def notices(says: dict[str, str], status: int = 200) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["Metadata-Flavor"] == "Google"
            folder, _, name = self.path.rpartition("/")
            assert folder == "/computeMetadata/v1/instance"
            if name not in says:  # says nothing that is HTTP
                self.wfile.write(b"nonsense\r\n\r\n")
                return
            self.send_response(status)
            self.end_headers()
            self.wfile.write(says[name].encode())

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def machine(monkeypatch) -> Iterator[Callable]:
    """Returns a function: answers of a metadata server -> a run on this machine."""
    monkeypatch.setattr(preemption, "_POLL", 0.02)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # the server is this machine's own
    servers, runs = [], []

    def machine(says: dict[str, str], status: int = 200) -> PreemptionHandler:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), notices(says, status))
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        servers.append((server, thread))
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
        handler = PreemptionHandler(single_process_group(ActivityClock()), LIMIT)
        handler.begin()
        handler.watch_machine()
        runs.append(handler)
        return handler

    yield machine
    for handler in runs:
        handler.request("the test is over")
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


WELL = {"maintenance-event": "NONE", "preempted": "FALSE"}


@pytest.mark.parametrize(
    ("name", "said"),
    [("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"), ("preempted", "TRUE")],
)
def test_a_notice_is_a_request(name, said, machine):
    says = dict(WELL)
    handler = machine(says)
    handler.begin()
    says[name] = said
    until(lambda: handler.why, "request")
    assert handler.why == f"{name} {said} of {handler.peers.name(0)}"


@pytest.mark.parametrize(("says", "status"), [(WELL, 200), (WELL, 503), ({}, 200)])
def test_no_notice_no_request(says, status, machine):
    """No notice, or the server fails, or is not one: the run continues, and keeps polling."""
    says = dict(says)
    handler = machine(says, status)
    time.sleep(0.2)  # nothing is to happen, ten times
    assert not handler.why
    if status == 200:
        says["preempted"] = "TRUE"
        until(lambda: handler.why, "request")


# Compilation


@pytest.mark.slow
def test_nothing_compiles_after_the_first_step(tmp_path, monkeypatch):
    """Two phases with evaluations and checkpoints, stopped in between and resumed."""
    from jax._src import monitoring

    store = small_store(tmp_path / "store")
    config = two_phases(store, steps=(6, 6))
    compiled: list[str] = []
    steps: list[int] = []

    def listen(event: str, seconds: float, **about: object) -> None:
        if event.endswith("backend_compile_duration") and steps:
            compiled.append(str(about))
        elif event.endswith("backend_compile_duration"):
            before.append(event)

    before: list[str] = []
    original = Profiler.run

    def run(self, step: int, *args):
        steps.append(step)
        return original(self, step, *args)

    monkeypatch.setattr(Profiler, "run", run)
    # Not the step that other tests of this process have compiled; both runs have the same.
    shared_steps._shared.cache_clear()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        with pytest.raises(StoppedError):
            pretrain(config, tmp_path / "run", options=RunOptions(stop_after=5))
        assert steps == [0, 1, 2, 3, 4]
        assert before
        assert compiled == []
        steps.clear()
        pretrain(config, tmp_path / "run")
        assert steps == list(range(5, 12))
        assert compiled == []
    finally:
        monitoring.unregister_event_duration_listener(listen)
