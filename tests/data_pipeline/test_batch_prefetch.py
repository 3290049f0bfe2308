"""Prefetching: order, depth, errors at their step, end of the thread; compiling ahead."""

import threading
import time

import pytest
from made_batches import batches_of, random_documents

from bert_jax.data_pipeline.batch import prefetch
from bert_jax.errors import UserError


def test_prefetch_keeps_the_order():
    assert list(prefetch(lambda step: step * step, 3, 40)) == [(s, s * s) for s in range(3, 40)]
    assert list(prefetch(lambda step: step, 5, 5)) == []


def test_prefetch_works_ahead_but_not_far():
    made = []
    iterator = prefetch(made.append, 0, 100, depth=2)
    next(iterator)
    deadline = time.monotonic() + 10
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert made == [0, 1, 2, 3]  # one taken, two ready, one waiting for its place
    iterator.close()


def test_prefetch_raises_at_the_right_step():
    def make(step):
        if step == 3:
            raise UserError("step three")
        return step

    iterator = prefetch(make, 0, 10)
    assert [next(iterator) for _ in range(3)] == [(0, 0), (1, 1), (2, 2)]
    with pytest.raises(UserError, match="step three"):
        next(iterator)
    assert not _prefetching()


def _prefetching():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_prefetch_closes(taken):
    iterator = prefetch(lambda step: step, 0, 10**9)
    for _ in range(taken):
        next(iterator)
    iterator.close()
    assert not _prefetching()


def test_prefetch_stops_when_the_loop_is_left():
    for step, _ in prefetch(lambda step: step, 0, 10**9):
        if step == 4:
            break
    del step
    assert not _prefetching()


def test_prefetch_needs_room_for_one():
    with pytest.raises(ValueError, match="depth 0"):
        next(prefetch(lambda step: step, 0, 3, depth=0))


def test_the_first_batch_finds_its_loops_compiled(tmp_path, monkeypatch, capfd):
    filled: list[tuple[str, int]] = []
    failures = [OSError("no room")]
    batches = batches_of(random_documents(20), tmp_path)
    fill = batches._assembler._fill

    def note(*args):
        filled.append((threading.current_thread().name, len(args[2])))
        if failures:
            raise failures.pop()
        return fill(*args)

    monkeypatch.setattr(batches._assembler, "_fill", note)
    for _ in range(2):
        filled.clear()
        batches.compile_ahead()
        for thread in threading.enumerate():
            if thread.name == "compile batches":
                thread.join()
        assert filled == [("compile batches", 0)]  # the loop that a batch runs, over no rows
    compiled = len(fill.signatures)
    batches.batch(0)
    assert len(fill.signatures) == compiled
    assert capfd.readouterr().err == ""  # whoever wants a batch meets the error, nobody before
