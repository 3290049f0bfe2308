"""The plan's format, its cache on disk, and planning in the background."""

import dataclasses
import json
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from data_pipeline import plan as plan_module
from data_pipeline.errors import UserError
from data_pipeline.plan import Plan, Plans, PlanSpec, make_plan, read_only
from data_pipeline.store import StoredDocument, make_split

SPEC = PlanSpec(32, seed=5)


def random_split(documents=30, seed=0):
    rng = np.random.default_rng(seed)
    return make_split(
        "train",
        [
            StoredDocument([rng.integers(5, 99, rng.integers(1, 20)).tolist() for _ in range(n)])
            for n in rng.integers(1, 30, documents)
        ],
        vocab_size=100,
    )


def equal(a: Plan, b: Plan) -> bool:
    return all(
        np.array_equal(getattr(a, field.name), getattr(b, field.name))
        for field in dataclasses.fields(Plan)
    )


@pytest.fixture
def made(monkeypatch):
    """The epochs that were planned rather than found."""
    epochs = []

    def counting(split, spec, epoch, **names):
        epochs.append(epoch)
        return make_plan(split, spec, epoch, **names)

    monkeypatch.setattr(plan_module, "make_plan", counting)
    return epochs


def test_format():
    split = random_split()
    plan = make_plan(split, SPEC, 0)
    count = len(plan.example_label)
    assert plan.rows == count
    assert plan.example_pieces.tolist() == list(range(0, 2 * count + 1, 2))
    assert plan.row_examples.tolist() == list(range(count + 1))
    assert plan.row_example.tolist() == list(range(count))
    assert plan.piece_segment.tolist() == [0, 1] * count
    assert (plan.piece_length >= 1).all()
    assert (plan.piece_length.reshape(-1, 2).sum(1) <= SPEC.seq_length - 3).all()
    assert (plan.piece_start >= 0).all()
    assert (plan.piece_start + plan.piece_length <= len(split.tokens)).all()
    types = {field.name: getattr(plan, field.name).dtype.name for field in dataclasses.fields(Plan)}
    assert types == {
        "piece_start": "int64",
        "piece_length": "int32",
        "piece_segment": "int8",
        "example_pieces": "int64",
        "example_label": "int8",
        "example_source": "uint16",
        "row_examples": "int64",
        "row_example": "int64",
    }


def test_a_plan_is_a_function_of_its_inputs():
    split = random_split()
    plan = make_plan(split, SPEC, 0)
    assert equal(plan, make_plan(split, SPEC, 0))
    for change in ({"seed": 6}, {"phase": 1}, {"short_seq_prob": 1.0}, {"seq_length": 33}):
        assert not equal(plan, make_plan(split, dataclasses.replace(SPEC, **change), 0))
    assert not equal(plan, make_plan(split, SPEC, 1))


def test_arrays_are_read_only():
    plan = make_plan(random_split(), SPEC, 0)
    with pytest.raises(ValueError, match="read-only"):
        plan.piece_start[0] = 1
    original = np.zeros(3)
    assert not read_only(original).flags.writeable
    assert original.flags.writeable


def test_an_empty_split_is_refused():
    with pytest.raises(UserError, match='"train" split is empty'):
        make_plan(make_split("train", [], 100), SPEC, 0)


def test_cache_is_used_again(tmp_path, made):
    split = random_split()
    first = Plans(split, SPEC, tmp_path / "cache")
    plan = first.epoch(0)
    assert first.epoch(0) is plan
    assert equal(plan, make_plan(split, SPEC, 0))
    again = Plans(split, SPEC, tmp_path / "cache")
    assert equal(again.epoch(0), plan)
    assert again.rows == plan.rows
    assert made == [0]
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [""]  # nothing left over


def test_cache_tells_inputs_apart(tmp_path, made):
    split = random_split()
    Plans(split, SPEC, tmp_path).epoch(0)
    Plans(split, SPEC, tmp_path).epoch(1)
    Plans(split, dataclasses.replace(SPEC, seed=6), tmp_path).epoch(0)
    Plans(dataclasses.replace(split, digest="other"), SPEC, tmp_path).epoch(0)
    assert made == [0, 1, 0, 0]
    assert len(list(tmp_path.iterdir())) == 4


def _cut(folder):
    file = folder / "piece_start.npy"
    file.write_bytes(file.read_bytes()[:-8])


def _flip(folder):
    file = folder / "piece_length.npy"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)


def _zeros(folder):
    file = folder / "row_example.npy"
    file.write_bytes(bytes(file.stat().st_size))


def _shape(folder):
    file = folder / "example_label.npy"
    np.save(file, np.load(file)[:-1])


def _missing(folder):
    (folder / "example_label.npy").unlink()


def _no_manifest(folder):
    (folder / "plan.json").unlink()


def _bad_manifest(folder):
    (folder / "plan.json").write_text(json.dumps(["not", "it"]))


@pytest.mark.parametrize(
    "damage", [_cut, _flip, _zeros, _shape, _missing, _no_manifest, _bad_manifest]
)
def test_a_damaged_plan_is_made_again(tmp_path, made, damage):
    split = random_split()
    plan = Plans(split, SPEC, tmp_path).epoch(0)
    expected = make_plan(split, SPEC, 0)
    (folder,) = tmp_path.iterdir()
    del plan
    damage(folder)
    assert equal(Plans(split, SPEC, tmp_path).epoch(0), expected)
    assert equal(Plans(split, SPEC, tmp_path).epoch(0), expected)  # and the repair is kept
    assert made == [0, 0]
    assert list(tmp_path.iterdir()) == [folder]


def test_next_epoch_is_planned_in_the_background(tmp_path, monkeypatch):
    planners = {}

    def recording(split, spec, epoch, **names):
        planners[epoch] = threading.current_thread()
        return make_plan(split, spec, epoch, **names)

    monkeypatch.setattr(plan_module, "make_plan", recording)
    plans = Plans(random_split(), SPEC, tmp_path)
    plans.prepare(1)
    plans.prepare(1)
    assert equal(plans.epoch(1), make_plan(random_split(), SPEC, 1))
    assert planners[1] is not threading.current_thread()
    plans.epoch(2)
    assert planners[2] is threading.current_thread()


def test_an_error_in_the_background_is_raised_for_who_asks(tmp_path, monkeypatch):
    def failing(split, spec, epoch, **names):
        raise UserError("no plan today")

    monkeypatch.setattr(plan_module, "make_plan", failing)
    plans = Plans(random_split(), SPEC, tmp_path)
    plans.prepare(1)
    with pytest.raises(UserError, match="no plan today"):
        plans.epoch(1)
    monkeypatch.setattr(plan_module, "make_plan", make_plan)
    assert plans.epoch(1).rows > 0


def test_threads_plan_an_epoch_once(tmp_path, made):
    plans = Plans(random_split(), SPEC, tmp_path)
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: plans.epoch(0), range(32)))
    assert made == [0]
    assert all(plan is got[0] for plan in got)


def _plan_in_process(arguments):
    folder, seed = arguments
    plan = Plans(random_split(seed=seed), SPEC, folder).epoch(0)
    return plan.piece_start.tolist()


def test_processes_may_race(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        got = pool.map(_plan_in_process, [(tmp_path, 0)] * 6, chunksize=1)
    assert all(starts == got[0] for starts in got)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_first_of_two_publishers_wins(tmp_path):
    split = random_split()
    plan, folder = make_plan(split, SPEC, 0), tmp_path / "plan"
    first = plan_module._keep(plan, folder)
    inode = (folder / "plan.json").stat().st_ino
    second = plan_module._keep(plan, folder)
    assert (folder / "plan.json").stat().st_ino == inode
    assert equal(first, second)  # the loser's mapped files outlive its folder
    assert list(tmp_path.iterdir()) == [folder]


def test_a_cache_folder_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write a plan to .*file") as caught:
        Plans(random_split(), SPEC, tmp_path / "file").epoch(0)
    assert "\n" not in str(caught.value)
