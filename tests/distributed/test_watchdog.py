"""Tests of the activity clock and of deadlines."""

import dataclasses
import os
import re
import subprocess
import sys
import threading

import pytest
from corpus import small_config, small_store

from bert_jax.config.schema import DeadlineConfig
from bert_jax.exit_codes import LOST, STOPPED
from bert_jax.runtime.activity import ACTIVITIES, ActivityClock

LIMIT = 60.0  # seconds


@pytest.fixture(scope="module")
def deadlines(tmp_path_factory) -> DeadlineConfig:
    return small_config(small_store(tmp_path_factory.mktemp("store"))).deadlines


def program(deadlines: DeadlineConfig, body: str, **changes: float) -> tuple[int, str, str]:
    """Returns (exit code, standard output, standard error) of a process with a watchdog."""
    values = dataclasses.asdict(dataclasses.replace(deadlines, **changes))
    start = f"""
import sys, threading, time
from bert_jax.config.schema import DeadlineConfig
from bert_jax.distributed.watchdog import ProcessExit, Watchdog
from bert_jax.runtime.activity import ActivityClock
from bert_jax.runtime.log import configure_logging
configure_logging()
clock, process_exit = ActivityClock(), ProcessExit("host-7")
watchdog = Watchdog(clock, DeadlineConfig(**{values}), "host-7", process_exit)
watchdog.start()
"""
    done = subprocess.run(
        [sys.executable, "-c", start + body],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=dict(os.environ),
    )
    return done.returncode, done.stdout, done.stderr


# --- the account ----------------------------------------------------------------------------------


def test_the_account_is_exclusive_and_complete(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    clock = ActivityClock()
    now[0] += 1
    with clock.activity("step"):
        now[0] += 2
        with clock.activity("barrier"):
            now[0] += 4
            assert clock.now() == ("barrier", 4.0)
        assert clock.now() == ("step", 0.0)  # its deadline starts again
        now[0] += 8
    now[0] += 16
    seconds = clock.seconds()
    assert {k: v for k, v in seconds.items() if v} == {"other": 17, "step": 10, "barrier": 4}
    assert sum(seconds.values()) == now[0] - 100
    assert tuple(seconds) == ACTIVITIES


def test_what_is_left_by_an_error_is_left():
    clock = ActivityClock()
    with pytest.raises(ValueError, match="no"), clock.activity("data"):
        raise ValueError("no")
    assert clock.now()[0] == "other"


def test_progress_starts_the_deadline_anew(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    clock = ActivityClock()
    with clock.activity("evaluate"):
        now[0] += 5
        clock.progress()
        now[0] += 1
        assert clock.now() == ("evaluate", 1.0)
    assert clock.seconds()["evaluate"] == 6.0


def test_every_activity_but_other_has_a_deadline(deadlines):
    named = {field.name for field in dataclasses.fields(deadlines)}
    assert set(ACTIVITIES) - named == {"other"}


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("activity", ["compile", "data", "step", "save"])
@pytest.mark.processes
def test_a_deadline_ends_the_process_and_says_where_it_was(activity, deadlines):
    body = f"""
watchdog.others = lambda: "host-3 (process 3): 'data' for 9 s after step 4"
def reads_for_ever():
    threading.Event().wait()
def sleeps_elsewhere():
    threading.Event().wait()
threading.Thread(target=sleeps_elsewhere, daemon=True).start()
clock.step = 5
with clock.activity({activity!r}):
    reads_for_ever()
"""
    code, _, err = program(deadlines, body, **{activity: 0.5})
    assert code == LOST
    assert "host-7: stacks of all threads:" in err
    assert "in reads_for_ever" in err
    assert "in sleeps_elsewhere" in err
    assert re.search(
        rf"^error: host-7 hangs: \d+ s at '{activity}' after step 5 "
        rf"\(config.deadlines.{activity}\); host-3 \(process 3\): 'data' for 9 s after step 4$",
        err.splitlines()[-1],
    )


@pytest.mark.slow
@pytest.mark.processes
def test_what_goes_well_is_left_alone(deadlines):
    """Many short activities, and a long one that makes progress."""
    body = """
for _ in range(8):
    with clock.activity("step"):
        time.sleep(0.3)
with clock.activity("evaluate"):
    for _ in range(8):
        time.sleep(0.3)
        clock.progress()
print("done")
"""
    code, out, err = program(deadlines, body, step=2.0, evaluate=2.0)
    assert (code, out, err) == (0, "done\n", "")


@pytest.mark.processes
def test_the_first_reason_wins_and_all_hear_of_it(deadlines):
    body = """
process_exit.before.append(lambda code, line: 1 / 0)
process_exit.before.append(lambda code, line: (print(code, line, flush=True), time.sleep(0.5)))
for number in (1, 2, 3):
    threading.Thread(target=process_exit.end, args=(42, f"reason {number}")).start()
    time.sleep(0.1)
time.sleep(60)
"""
    code, out, err = program(deadlines, body)
    assert code == STOPPED
    assert out == "42 reason 1\n"
    assert err == "reason 1\n"  # to have stopped is no error


@pytest.mark.processes
def test_what_was_told_by_another_is_not_told_again(deadlines):
    body = """
process_exit.before.append(lambda code, line: print("told"))
process_exit.end(44, "host-1 (process 1): no numbers", notify=False)
"""
    code, out, err = program(deadlines, body)
    assert (code, out, err) == (44, "", "error: host-1 (process 1): no numbers\n")


def test_the_account_may_be_read_while_it_is_kept():
    clock, over = ActivityClock(), threading.Event()

    def work() -> None:
        while not over.is_set():
            with clock.activity("step"), clock.activity("data"):
                pass

    worker = threading.Thread(target=work)
    worker.start()
    try:
        sums = [sum(clock.seconds().values()) for _ in range(2000)]
    finally:
        over.set()
        worker.join()
    assert sums == sorted(sums)
