"""Goodput of a run, from its records alone."""

import json
from typing import Any

import pytest
from etils import epath
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.metrics import goodput
from bert_jax.metrics import run_records as metrics
from bert_jax.metrics.attempts import split

Record = dict[str, Any]


def record(kind: str, step: int, time: float, **values: Any) -> Record:
    return {"kind": kind, "step": step, "phase": 0, "time": time, **values}


def seconds_of(records: list[Record]) -> dict[str, float]:
    """The causes that took time."""
    found = goodput.account(records)
    assert set(found.seconds) == set(goodput.CAUSES)
    assert found.wall == pytest.approx(sum(found.seconds.values()))
    return {cause: pytest.approx(s) for cause, s in found.seconds.items() if s}


# Killed between 30 and 40, with a checkpoint at 20; then stopped at 30; then finished.
BEGUN = {"start": 5.0, "compile": 10.0}
AGAIN = {"start": 1.0, "restore": 3.0}
LIFE = [
    record("start", 0, 1015.0, seconds=BEGUN),
    record("train", 10, 1026.0),
    record("goodput", 10, 1026.0, seconds={**BEGUN, "step": 10.0, "data": 1.0}),
    record("goodput", 20, 1046.0, seconds={**BEGUN, "step": 30.0, "data": 1.0}),
    record("goodput", 30, 1060.0, seconds={**BEGUN, "step": 42.0, "data": 1.0, "save": 2.0}),
    record("quarantined", 25, 1095.0, reason="a bit differs"),
    record("start", 20, 1104.0, seconds=AGAIN),
    record("skipped", 24, 1108.0),
    record("stopped", 30, 1125.0, seconds={**AGAIN, "step": 20.0, "barrier": 1.0}, code=42),
    record("start", 30, 1130.0, seconds={"compile": 2.0}),
    record("eval", 40, 1145.0),
    record("finished", 40, 1150.0, seconds={"compile": 2.0, "step": 10.0, "evaluate": 9.0}),
]


def test_every_second_of_a_life_is_somewhere():
    found = seconds_of(LIFE)
    assert found == {
        "productive": 30.0 + (20.0 - 2.0) + 10.0,  # the third ten steps of the first are lost
        "repeated": 12.0,
        "skipped": 2.0,
        "start": 6.0, "compile": 12.0, "restore": 3.0, "data": 1.0, "barrier": 1.0, "save": 2.0,
        "evaluate": 9.0,
        "down": (1100.0 - 1060.0) + (1128.0 - 1125.0),
        "other": (60.0 - 60.0) + 1.0,  # not covered by the last attempt's account
    }  # fmt: skip
    assert goodput.account(LIFE).wall == pytest.approx(1150.0 - 1000.0)
    assert goodput.account(LIFE).share == pytest.approx(58 / 150)


def test_people_read_causes_times_and_shares():
    text = goodput.render(goodput.account(LIFE))
    assert text.splitlines()[0] == "goodput 38.7%"
    assert "58.0 s   38.7%  productive steps" in text
    assert "12.0 s    8.0%  steps lost in a crash and repeated" in text
    assert "0:02:30  100.0%  total since the first start" in text
    assert goodput.render(goodput.account([])).startswith("goodput 0.0%")


def test_steps_are_lost_back_to_the_earliest_later_beginning():
    """The second attempt resumed from 20, but the third found that damaged and used 10."""
    records = [
        record("start", 0, 0.0, seconds={}),
        record("goodput", 30, 30.0, seconds={"step": 30.0}),
        record("start", 20, 30.0, seconds={}),
        record("goodput", 25, 35.0, seconds={"step": 5.0}),
        record("start", 10, 35.0, seconds={}),
        record("goodput", 30, 55.0, seconds={"step": 20.0}),
    ]
    assert seconds_of(records) == {"productive": 10.0 + 20.0, "repeated": 20.0 + 5.0}


def test_an_attempt_of_which_only_a_skipped_step_is_recorded_has_done_none():
    (attempt,) = split([record("skipped", 7, 8.0)])
    assert (attempt.first, attempt.last) == (0, 0)


def test_a_skipped_step_that_was_lost_counts_once():
    records = [
        record("start", 0, 0.0, seconds={}),
        record("skipped", 14, 15.0),
        record("goodput", 20, 20.0, seconds={"step": 20.0}),
        record("start", 10, 20.0, seconds={}),
        record("skipped", 14, 25.0),
        record("goodput", 20, 30.0, seconds={"step": 10.0}),
    ]
    assert seconds_of(records) == {"productive": 10.0 + 9.0, "repeated": 10.0, "skipped": 1.0}


def test_an_attempt_that_died_before_its_first_log():
    records = [
        record("start", 0, 10.0, seconds={"start": 4.0, "compile": 6.0}),
        record("start", 0, 50.0, seconds={"start": 5.0}),
    ]
    assert seconds_of(records) == {"start": 9.0, "compile": 6.0, "down": 35.0}


def test_a_clock_that_goes_backwards_takes_no_time_away():
    records = [
        record("start", 0, 1000.0, seconds={"start": 1.0}),
        record("goodput", 10, 1011.0, seconds={"start": 1.0, "step": 11.0}),
        record("start", 10, 500.0, seconds={"start": 2.0}),  # another machine
        record("goodput", 20, 400.0, seconds={"start": 2.0, "step": 10.0}),
    ]
    assert seconds_of(records) == {"productive": 21.0, "start": 3.0}


def test_runs_of_earlier_versions_tell_what_their_speeds_tell():
    """Stopped at 20, killed after 40 with a checkpoint at 30; evaluations are not recorded."""
    records = [
        record("train", 10, 110.0, step_seconds=1.0),
        record("eval", 10, 115.0),
        record("train", 20, 125.0, step_seconds=1.0),
        record("stopped", 20, 126.0),
        record("train", 30, 200.0, step_seconds=2.0),  # began at 180
        record("train", 40, 220.0, step_seconds=2.0),
        record("train", 40, 320.0, step_seconds=2.0),  # began at 300, at 30
    ]
    first, second, third = split(records)
    assert [(one.first, one.begin, one.last) for one in (first, second, third)] == [
        (0, 100.0, 20), (20, 180.0, 40), (30, 300.0, 40),
    ]  # fmt: skip
    assert seconds_of(records) == {
        "productive": 20.0 + 20.0 + 20.0, "repeated": 20.0, "other": 5.0 + 1.0,
        "down": (180.0 - 126.0) + (300.0 - 220.0),
    }  # fmt: skip


def test_a_run_begun_by_an_earlier_version_goes_on():
    records = [
        record("train", 10, 110.0, step_seconds=1.0),
        record("train", 20, 120.0, step_seconds=1.0),
        record("start", 15, 130.0, seconds={"start": 5.0}),
        record("goodput", 20, 135.0, seconds={"start": 5.0, "step": 5.0}),
    ]
    assert seconds_of(records) == {"productive": 20.0, "repeated": 5.0, "down": 5.0, "start": 5.0}


def test_what_an_attempt_says_last_closes_it():
    """A goodput record after that still belongs to it; anything else is another attempt."""
    said = [
        record("start", 0, 1.0),
        record("lost", 5, 2.0, reason="host-1 is gone"),
        record("goodput", 5, 3.0, seconds={"step": 1.0}),
        record("train", 9, 9.0, step_seconds=0.1),
    ]
    first, second = split(said)
    assert (first.closing, first.end, second.closing) == (said[1], 3.0, None)


def test_cut_and_damaged_lines_are_left_out(tmp_path):
    texts = [json.dumps(one) for one in LIFE]
    noise = ['{"kind": "tr', "12", "[]", '{"kind": 3, "step": 1}', '{"kind": "train"}', "\x00"]
    noise += ['{"kind": "train", "step": true}', '{"kind": "eval", "step": -1}', "[" * 100_000]
    path = epath.Path(tmp_path / "metrics.jsonl")
    path.write_bytes("\n".join([*noise, *texts, *noise]).encode() + b"\xff\xfe{")
    assert list(metrics.records(path)) == LIFE
    # Only the truncated line is lost.
    path.write_text("\n".join(texts)[:-5])
    assert goodput.account(metrics.records(path)).wall == pytest.approx(1145.0 - 1000.0)


def test_what_an_account_tells_of_no_activity_is_not_what_it_does_not_tell():
    life = [
        record("start", 0, 0.0, seconds={}),
        record("goodput", 10, 20.0, seconds={"step": 10.0, "other": 7.0}),
        record("eval", 10, 25.0),
    ]
    assert seconds_of(life) == {"productive": 10.0, "between": 7.0, "other": 8.0}
    text = goodput.render(goodput.account(life))
    assert "28.0%  other: planning, logging, Python\n" in text
    assert "32.0%  not recorded\n" in text


@pytest.mark.parametrize(
    "damaged",
    [
        record("goodput", 10, 11.0, seconds={"step": -5.0, "save": -1.0, "data": None, "x": "y"}),
        record("goodput", 10, 11.0, seconds={"step": 1.0}),
        record("goodput", 5, 11.0, seconds={"step": 50.0}),
    ],
)
def test_an_account_that_cannot_be_is_passed_over(damaged):
    life = [record("start", 0, 0.0, seconds={}), record("skipped", 7, 8.0),
            record("goodput", 10, 10.0, seconds={"step": 10.0})]  # fmt: skip
    restart = record("start", 8, 11.0, seconds={})
    found = {"productive": 7.0, "skipped": 1.0, "repeated": 2.0, "other": 1.0}
    assert seconds_of([*life, damaged, restart]) == found


_TIMES = st.floats(-1e9, 1e10)
_RECORDS = st.builds(
    record,
    st.sampled_from(["start", "train", "eval", "goodput", "skipped", "stopped", "finished", "?"]),
    st.integers(0, 50),
    st.one_of(_TIMES, _TIMES, _TIMES, st.none(), st.just(float("nan"))),
    seconds=st.one_of(
        st.none(),
        st.dictionaries(
            st.sampled_from(["step", "data", "save", "new activity"]),
            st.one_of(st.floats(-1e6, 1e6), st.none(), st.text(max_size=2)),
        ),
    ),
    step_seconds=st.one_of(st.floats(0, 1e3), st.none(), st.just(float("inf"))),
)


@given(st.lists(_RECORDS, max_size=30))
def test_whatever_the_records_time_is_neither_negative_nor_made_up_twice(records):
    found = goodput.account(records)
    assert 0 <= found.share <= 1
    assert all(s >= 0 for s in found.seconds.values())
    goodput.render(found)


@given(st.data())
def test_with_a_clock_that_works_the_causes_add_up_to_the_time_since_the_first_start(data):
    """Any number of attempts with any end, each resumed from a step that an earlier one saved."""
    now, records, reached = 1000.0, [], 0
    for _ in range(data.draw(st.integers(1, 5))):
        step = data.draw(st.integers(0, reached))
        seconds = {"start": data.draw(st.floats(0, 100)), "step": 0.0, "save": 0.0}
        now += data.draw(st.floats(0, 1000)) if records else 0.0
        now += seconds["start"]
        records.append(record("start", step, now, seconds=dict(seconds)))
        for _ in range(data.draw(st.integers(0, 4))):
            for name in ("step", "save"):
                spent = data.draw(st.floats(0, 100))
                seconds[name] += spent
                now += spent
            step += data.draw(st.integers(1, 10))
            records.append(record("goodput", step, now, seconds=dict(seconds)))
            reached = max(reached, step)
    begin = records[0]["time"] - records[0]["seconds"]["start"]
    assert goodput.account(records).wall == pytest.approx(records[-1]["time"] - begin)
