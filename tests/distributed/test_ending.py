"""Tests of shutdown: a job exits once, with the right code and message, and never blocks."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from corpus import small_store
from processes import Job, deep_config
from runs import complete_steps
from saving_process import keeping, state_of
from signals import dispositions

from bert_jax.checkpoint import orbax_io
from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.distributed import job as session
from bert_jax.distributed.cluster import ProcessTopology
from bert_jax.distributed.heartbeat import Heartbeat
from bert_jax.distributed.peers import ProcessGroup, single_process_group
from bert_jax.distributed.preemption import PreemptionHandler
from bert_jax.distributed.rendezvous import Roster
from bert_jax.distributed.watchdog import ProcessExit
from bert_jax.exit_codes import NUMBERS
from bert_jax.metrics import run_records
from bert_jax.runtime.activity import ActivityClock
from bert_jax.training import lifecycle
from bert_jax.workdir.layout import Workdir

SUPPORT = str(Path(__file__).parents[1] / "support")
LIMIT = 60.0  # seconds for whatever is waited for


class Store:
    """The key-value store of a job, with the interface of JAX's client."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._changed = threading.Condition()

    def key_value_set(self, key: str, text: str, allow_overwrite: bool = False) -> None:
        with self._changed:
            assert allow_overwrite or key not in self.texts
            self.texts[key] = text
            self._changed.notify_all()

    def key_value_try_get(self, key: str) -> str:
        with self._changed:
            if key not in self.texts:
                raise RuntimeError("NOT_FOUND")
            return self.texts[key]

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.texts, milliseconds / 1000):
                raise RuntimeError("DEADLINE_EXCEEDED")
            return self.texts[key]

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        with self._changed:
            return [pair for pair in self.texts.items() if pair[0].startswith(folder)]

    def key_value_delete(self, key: str) -> None:
        with self._changed:
            self.texts = {k: t for k, t in self.texts.items() if not f"{k}/".startswith(f"{key}/")}


def peers_of(store: Store, count: int) -> list[ProcessGroup]:
    met = Roster(tuple(f"host-{process}" for process in range(count)), {})
    return [
        ProcessGroup(
            ProcessTopology("here:1", count, process), met, ActivityClock(), store, barrier=LIMIT
        )
        for process in range(count)
    ]


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"no {what}")
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.processes
def test_a_job_that_ends_because_of_its_numbers_has_saved_what_it_says(tmp_path):
    """The other process must not end process 0 while that is still writing."""
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(
        "import os, time\n"
        "def fsync(handle, sync=os.fsync):\n"
        "    time.sleep(0.2)\n"
        "    sync(handle)\n"
        "os.fsync = fsync\n"
    )
    config = deep_config(small_store(tmp_path / "store"), steps=100)
    config = dataclasses.replace(
        config,
        optimizer=dataclasses.replace(config.optimizer, learning_rate=1e30, max_nonfinite_steps=2),
        checkpoint=dataclasses.replace(config.checkpoint, every_steps=100),
        evaluation=dataclasses.replace(config.evaluation, every_steps=100),
    )
    path = os.pathsep.join((str(slow), os.environ.get("PYTHONPATH", "")))
    env = {"PYTHONPATH": path}
    with Job(config, tmp_path / "run", tmp_path, processes=2, env=env) as job:
        assert job.codes() == [NUMBERS, NUMBERS]
        saved = re.search(r"saved as step (\d+)", job.processes[0].said())
        assert saved
        ends = [r["kind"] for r in run_records.records(Workdir.open(tmp_path / "run").metrics)]
        assert ends[-1] == "stopped"  # and no record of a process that was lost after it
        # Every line has time, level and process: output of C++ code, as gloo's, is not shown.
        for index, process in enumerate(job.processes):
            prefix = rf"\d{{4}}-\d\d-\d\dT[\d:]+Z [A-Z]+ host-{index} \(process {index}\): "
            lines = process.said().splitlines()
            assert lines
            assert [line for line in lines if not re.match(prefix, line)] == []
        assert complete_steps(tmp_path / "run") == [int(saved[1])]


@pytest.mark.slow
@pytest.mark.processes
def test_a_process_ends_although_whoever_is_to_hear_of_it_hangs():
    program = (
        "import threading\n"
        "from bert_jax.distributed import watchdog\n"
        "from bert_jax.runtime.log import configure_logging\n"
        "configure_logging()\n"
        "watchdog._TELLING = 2.0\n"
        "process_exit = watchdog.ProcessExit('here')\n"
        "process_exit.before.append(lambda code, line: threading.Event().wait())\n"
        "process_exit.end(43, 'the line')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=LIMIT, text=True
    )
    assert (ended.returncode, ended.stderr) == (43, "error: the line\n")


@pytest.mark.slow
@pytest.mark.processes
def test_a_process_that_was_put_to_sleep_does_not_hang():
    """Ctrl-Z in a terminal for longer than a deadline, then fg."""
    program = (
        f"import sys, time; sys.path.insert(0, {SUPPORT!r})\n"
        "from small import DEADLINES\n"
        "import dataclasses\n"
        "from bert_jax.distributed.watchdog import ProcessExit, Watchdog\n"
        "from bert_jax.runtime.activity import ActivityClock\n"
        "clock = ActivityClock()\n"
        "deadlines = dataclasses.replace(DEADLINES, step=4.0)\n"
        "Watchdog(clock, deadlines, 'here', ProcessExit('here')).start()\n"
        "with clock.activity('step'):\n"
        "    print('begun', flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], text=True, **pipes) as process:
        try:
            assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGSTOP)
            asleep = time.monotonic() + 5.0
            until(lambda: time.monotonic() > asleep, "time")
            process.send_signal(signal.SIGCONT)
            awake = time.monotonic() + 1.0
            until(lambda: time.monotonic() > awake or process.poll() is not None, "time")
            _, said = process.communicate("\n", timeout=LIMIT)
        finally:
            process.kill()
    assert (process.returncode, said) == (0, "")


def test_a_ctrl_c_that_another_process_told_of_first_is_no_second_one(capsys):
    """A terminal or the launcher sends all processes the same Ctrl-C."""
    ended, heard = [], []
    ending = ProcessExit("here")
    ending.end = lambda code, line, **_: ended.append(code)
    handler = PreemptionHandler(peers_of(Store(), 2)[1], LIMIT, ending)
    handler.begin()
    handler.why = "SIGINT to host-0 (process 0)"  # as its heartbeat heard of it
    handler.request = heard.append
    with dispositions(lambda number: signal.SIG_DFL), handler.listening():
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: heard, "request")
        assert (ended, len(capsys.readouterr().out.splitlines())) == ([], 1)
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: ended, "end")
    assert ended == [128 + signal.SIGINT]


def test_a_process_that_finished_last_needs_no_answer_from_process_0(monkeypatch):
    """Process 0 may exit before it has answered a call, which then never returns."""

    class EndedError(Exception):
        pass

    class Gone:
        is_first, process_id = False, 1

        def all_gather_text(self, name: str) -> None:
            pass

        def put(self, key: str, text: str) -> None:
            pytest.fail("called the store, which may be gone")

    class Stopped:
        def stop(self) -> None:
            pass

    def leave(code: int) -> None:
        raise EndedError(code)

    monkeypatch.setattr(session, "_exit", leave)
    with pytest.raises(EndedError) as ended:
        session._end_together(Gone(), Stopped(), 0, "")
    assert ended.value.args == (0,)


def test_beats_go_on_while_processes_agree_on_where_to_stop():
    """A process that waits for a slow one must not be reported as lost."""
    store = Store()
    first, _ = peers_of(store, 2)
    agreeing, done = threading.Event(), threading.Event()
    heartbeat = Heartbeat(first, ActivityClock(), ProcessExit("here"), peer_timeout=10 * LIMIT)

    def agree(notice: str) -> None:
        agreeing.set()
        done.wait(LIMIT)

    heartbeat.on_stop = agree
    heartbeat.start()
    with contextlib.ExitStack() as stack:
        stack.callback(heartbeat.stop)
        stack.callback(done.set)
        store.key_value_set("bert_jax/stop", "asked")
        assert agreeing.wait(LIMIT)

        def beats() -> int:
            return json.loads(store.texts["bert_jax/beats/0"])[0]

        before = beats()
        until(lambda: beats() > before + 1, "beat")


def test_exchanges_leave_little_in_the_store():
    """It stays in the memory of process 0 during the entire run."""
    store = Store()
    everyone = peers_of(store, 3)
    with ThreadPoolExecutor(3) as pool:

        def work(peers: ProcessGroup) -> list[list[str]]:
            return [
                peers.all_gather_text("times", f"{peers.process_id} at {turn}")
                for turn in range(50)
            ]

        said = list(pool.map(work, everyone))
    assert said == [[[f"{p} at {turn}" for p in range(3)] for turn in range(50)]] * 3
    assert len(store.texts) == 4


def test_what_is_being_written_when_a_run_fails_has_the_time_of_a_save(tmp_path, monkeypatch):
    """The deadline for saving ends a wait for storage that hangs; there is no other limit."""
    clock, doing, write = ActivityClock(), [], orbax_io.write

    def writes_slowly(*what: object) -> None:
        end = time.monotonic() + LIMIT / 3
        while clock.now()[0] != "save" and time.monotonic() < end:
            time.sleep(0.01)
        doing.append(clock.now()[0])
        write(*what)

    monkeypatch.setattr(orbax_io, "write", writes_slowly)
    peers = single_process_group(clock)
    job = session.Job(peers, clock, PreemptionHandler(peers, LIMIT))
    checkpoints = RunCheckpoints(Workdir.open(tmp_path), keeping(1))
    with contextlib.ExitStack() as run:
        run.enter_context(pytest.raises(RuntimeError, match="the run fails"))
        run.enter_context(lifecycle.closing_checkpoints(checkpoints, job))
        checkpoints.save(jax.tree.map(jnp.asarray, state_of(3)), {})
        raise RuntimeError("the run fails")
    assert doing == ["save"]
    assert complete_steps(tmp_path) == [3]
