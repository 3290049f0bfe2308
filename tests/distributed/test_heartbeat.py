"""Tests of heartbeats, notices and barriers between processes, with a dictionary as store."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from bert_jax.distributed.cluster import ProcessTopology
from bert_jax.distributed.heartbeat import Heartbeat
from bert_jax.distributed.peers import ProcessGroup
from bert_jax.distributed.rendezvous import Roster
from bert_jax.errors import LostError
from bert_jax.exit_codes import LOST
from bert_jax.runtime.activity import ActivityClock

pytestmark = pytest.mark.processes  # they wait for deadlines

LIMIT = 60.0  # seconds


class Store:
    """The part of JAX's client that `ProcessGroup` uses."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.is_there = True
        self._changed = threading.Condition()

    def _check(self) -> None:
        if not self.is_there:
            raise RuntimeError("UNAVAILABLE: nobody answers")

    def key_value_set(self, key: str, text: str, *, allow_overwrite: bool) -> None:
        assert allow_overwrite
        self._check()
        with self._changed:
            self.texts[key] = text
            self._changed.notify_all()

    def key_value_try_get(self, key: str) -> str:
        self._check()
        if key not in self.texts:
            raise RuntimeError(f"NOT_FOUND: {key}")
        return self.texts[key]

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        self._check()
        with self._changed:
            if self._changed.wait_for(lambda: key in self.texts, milliseconds / 1000):
                return self.texts[key]
        raise RuntimeError(f"DEADLINE_EXCEEDED: {key}")

    def key_value_delete(self, folder: str) -> None:
        for key in [key for key in self.texts if key.startswith(f"{folder}/")]:
            del self.texts[key]

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        self._check()
        return [pair for pair in list(self.texts.items()) if pair[0].startswith(folder)]


class Ending:
    """Records how the process would have exited, and blocks the calling thread."""

    def __init__(self) -> None:
        self.before: list[Callable[[int, str], None]] = []
        self.ends: list[tuple[int, str, bool]] = []
        self.with_stacks = False
        self.showed: list[bool] = []
        self.ended = threading.Event()

    def end(self, code: int, line: str, *, stacks: bool = False, notify: bool = True) -> None:
        self.showed.append(stacks)
        self.ends.append((code, line, notify))
        self.ended.set()
        threading.Event().wait()  # for ever

    def line(self) -> str:
        """Waits for the exit and returns its message."""
        assert self.ended.wait(LIMIT)
        return self.ends[0][1]


class Members:
    """The processes of a job, as threads of one test."""

    def __init__(self, count: int):
        self.store = Store()
        self.count = count
        self.pulses: dict[int, Heartbeat] = {}
        self.endings = [Ending() for _ in range(count)]
        self.watches = [ActivityClock() for _ in range(count)]
        pairs = {process: socket.socketpair() for process in range(1, count)}
        self.ends = {process: pair[1] for process, pair in pairs.items()}  # of the others
        first = {process: pair[0] for process, pair in pairs.items()}
        self.connections = [first, *({0: end} for end in self.ends.values())]

    def peers(self, process: int, barrier: float = LIMIT) -> ProcessGroup:
        hosts = tuple(f"host-{index}" for index in range(self.count))
        place = ProcessTopology("127.0.0.1:1", self.count, process)
        met = Roster(hosts, self.connections[process])
        return ProcessGroup(place, met, self.watches[process], self.store, barrier=barrier)

    def start(self, process: int, peer_timeout: float = LIMIT) -> Heartbeat:
        heartbeat = Heartbeat(
            self.peers(process),
            self.watches[process],
            self.endings[process],
            peer_timeout=peer_timeout,
        )
        self.pulses[process] = heartbeat
        heartbeat.start()
        return heartbeat

    def say(self, process: int, count: int = 1, activity: str = "data") -> None:
        """Writes a heartbeat."""
        beat = json.dumps([count, activity, 9.0, 4])
        self.store.texts[f"bert_jax/beats/{process}"] = beat

    def close(self) -> None:
        for heartbeat in self.pulses.values():
            heartbeat.stop()
        for connection in self.connections[0].values():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # all that listen see it
        for thread in threading.enumerate():
            if thread.name == "connections":
                thread.join(LIMIT)
        for connections in self.connections:
            for connection in connections.values():
                connection.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    monkeypatch.setattr("bert_jax.distributed.heartbeat._INTERVAL", 0.1)


@pytest.fixture
def members() -> Iterator[Callable[[int], Members]]:
    made: list[Members] = []

    def make(count: int) -> Members:
        made.append(Members(count))
        return made[-1]

    yield make
    for one in made:
        one.close()


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# --- lost -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_process_0_names_the_one_that_is_silent(members):
    job = members(3)
    job.say(2)
    job.start(1)
    job.start(0, peer_timeout=4.0)
    line = job.endings[0].line()
    assert line.startswith("host-2 (process 2) is lost: silent for ")
    assert "before that 'data' for 9 s after step 4" in line
    assert "run the same command again to resume" in line
    assert job.endings[0].ends[0][0] == LOST


@pytest.mark.slow
def test_another_process_names_process_0_when_its_store_is_silent(members):
    job = members(2)
    job.start(1, peer_timeout=3.0)
    wait_for(lambda: "bert_jax/beats/1" in job.store.texts)
    job.store.is_there = False
    assert job.endings[1].line().startswith("host-0 (process 0) is lost: silent for ")
    assert job.endings[1].ends[0][2] is False  # told to nobody: nobody could hear


def test_beats_keep_all_alive(members):
    job = members(3)
    for process in range(3):
        job.start(process, peer_timeout=3.0)
    wait_for(lambda: json.loads(job.store.texts.get("bert_jax/beats/2", "[0]"))[0] > 4)
    assert [ending.ends for ending in job.endings] == [[], [], []]


@pytest.mark.slow
def test_a_closed_connection_is_a_death(members):
    job = members(3)
    job.say(2)
    job.start(0)
    job.ends[2].close()
    line = job.endings[0].line()
    assert line.startswith("host-2 (process 2) is lost: its connection closed; before that 'data'")


def test_what_a_process_said_before_it_went_is_the_reason(members):
    """Its connection is closed as well, but its verdict is stored."""
    job = members(3)
    verdict = json.dumps([44, "the numbers are wrong", 2, False])
    job.store.texts["bert_jax/verdict"] = verdict
    job.ends[2].close()
    job.start(0)
    assert job.endings[0].line() == "host-2 (process 2): the numbers are wrong"
    assert job.endings[0].ends[0] == (44, "host-2 (process 2): the numbers are wrong", False)
    assert "bert_jax/gone/0" in job.store.texts


def test_a_process_whose_own_beats_stood_still_blames_nobody(members, monkeypatch):
    """All processes were suspended for an hour and continue."""
    job = members(2)
    clock, asked = [0.0], time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: asked() + clock[0])
    job.start(0, peer_timeout=30.0)
    job.start(1, peer_timeout=30.0)
    wait_for(lambda: len(job.store.texts) == 2)
    clock[0] = 3600.0
    said = [json.loads(text)[0] for text in job.store.texts.values()]
    wait_for(
        lambda: all(
            json.loads(text)[0] > before + 1
            for text, before in zip(job.store.texts.values(), said, strict=True)
        )
    )
    assert [ending.ends for ending in job.endings] == [[], []]


def test_a_process_that_was_stopped_while_others_left_ends_at_once(members, monkeypatch):
    job = members(2)
    clock, asked = [0.0], time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: asked() + clock[0])
    job.start(0, peer_timeout=30.0)
    wait_for(lambda: "bert_jax/beats/0" in job.store.texts)
    job.ends[1].close()
    clock[0] = 3600.0
    line = job.endings[0].line()
    assert line.startswith(
        "host-0 (process 0) was stopped for 3600 s, and host-1 (process 1) continued"
    )


# --- told -----------------------------------------------------------------------------------------


def test_an_end_is_told_to_all_and_process_0_waits_until_they_know(members):
    job = members(3)
    for process in range(3):
        job.start(process)
    for tell in job.endings[0].before:
        tell(45, "the disk is full")
    assert {"bert_jax/gone/1", "bert_jax/gone/2"} <= job.store.texts.keys()
    for process in (1, 2):
        assert job.endings[process].line() == "host-0 (process 0): the disk is full"
        assert job.endings[process].ends[0][0] == 45
    assert job.endings[0].ends == []
    assert job.endings[1].showed == [False]


def test_a_store_that_does_not_answer_delays_no_exit(members, monkeypatch):
    """Process 0 may exit before it has answered a call, which then never returns."""
    monkeypatch.setattr("bert_jax.distributed.heartbeat._WRITING", 0.1)
    job, answer = members(2), threading.Event()
    job.store.texts["bert_jax/verdict"] = json.dumps([45, "the disk is full", 0, False])
    write = job.store.key_value_set

    def write_or_hang(key: str, text: str, *, allow_overwrite: bool) -> None:
        if "gone" in key:
            answer.wait()
        write(key, text, allow_overwrite=allow_overwrite)

    monkeypatch.setattr(job.store, "key_value_set", write_or_hang)
    job.start(1)
    try:
        assert job.endings[1].line() == "host-0 (process 0): the disk is full"
        assert "bert_jax/gone/1" not in job.store.texts
    finally:
        answer.set()


def test_where_one_hangs_all_say_where_they_are(members):
    """The process that reached its deadline may only have waited for another."""
    job = members(2)
    job.start(0)
    job.start(1)
    job.endings[1].with_stacks = True
    for tell in job.endings[1].before:
        tell(LOST, "host-1 hangs")
    assert job.endings[0].line() == "host-1 (process 1): host-1 hangs"
    assert job.endings[0].showed == [True]


def test_process_0_waits_for_the_last_that_does_not_know(members):
    """One of four is dead, one was notified and has exited, the last is not notified yet."""
    job = members(4)
    job.start(0)
    job.store.texts["bert_jax/gone/2"] = ""
    job.ends[1].close()
    job.ends[2].close()

    def hears() -> None:
        time.sleep(1.0)
        job.store.texts["bert_jax/gone/3"] = ""

    threading.Thread(target=hears).start()
    for tell in job.endings[0].before:
        tell(LOST, "host-1 is lost")
    assert "bert_jax/gone/3" in job.store.texts


def test_a_request_to_stop_reaches_all_once(members):
    job, heard = members(2), [[], []]
    for process in range(2):
        job.start(process).on_stop = heard[process].append
    job.peers(1).put("stop", "SIGTERM to host-1")
    wait_for(lambda: all(heard))
    beats = job.store.texts["bert_jax/beats/0"]
    wait_for(lambda: json.loads(job.store.texts["bert_jax/beats/0"])[0] > json.loads(beats)[0] + 1)
    assert heard == [["SIGTERM to host-1"], ["SIGTERM to host-1"]]


def test_others_says_where_they_are(members):
    job = members(4)
    job.say(1, activity="data")
    job.say(2, activity="step")
    heartbeat = job.start(0)
    with job.watches[0].activity("step"):
        wait_for(heartbeat.others)
        assert heartbeat.others() == "host-1 (process 1): 'data' for 9 s after step 4"


# --- barriers -------------------------------------------------------------------------------------


def test_an_exchange_gives_all_the_same_in_order(members):
    job, said = members(3), {}

    def come(process: int) -> None:
        peers = job.peers(process)
        said[process] = [peers.all_gather_text("here", f"{process}.{turn}") for turn in range(2)]

    threads = [threading.Thread(target=come, args=(process,)) for process in (2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    expected = [[f"{process}.{turn}" for process in range(3)] for turn in range(2)]
    assert said == dict.fromkeys(range(3), expected)
    assert {key.split("/")[3] for key in job.store.texts if "/exchange/" in key} == {"1"}


@pytest.mark.parametrize("me", [0, 1])
def test_who_never_arrives_at_a_barrier_is_named(me, members):
    job = members(4)
    job.store.texts["bert_jax/exchange/save/0/2"] = ""
    there = {0: "host-0 (process 0), host-2 (process 2)"}
    there[1] = "host-1 (process 1), host-2 (process 2)"
    missing = {0: "host-1 (process 1), host-3 (process 3)"}
    missing[1] = "host-0 (process 0), host-3 (process 3)"
    with pytest.raises(LostError) as error:
        job.peers(me, barrier=0.3).all_gather_text("save")
    assert str(error.value) == (
        "waited 0 s for all processes at 'save' (config.deadlines.barrier); "
        f"arrived: {there[me]}; missing: {missing[me]}"
    )


def test_a_barrier_that_process_0_does_not_open_says_so(members):
    job = members(2)
    job.store.texts["bert_jax/exchange/save/0/0"] = ""
    with pytest.raises(LostError, match="missing: none, but process 0 did not answer"):
        job.peers(1, barrier=0.3).all_gather_text("save")
