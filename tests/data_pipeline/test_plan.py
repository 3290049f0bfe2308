"""The plan's format, its cache on disk, and planning in the background."""

import dataclasses
import json
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from made_plans import make_plan
from stores import StoredDocument, make_split

from bert_jax.data_pipeline.pairing.lengths import read_only
from bert_jax.data_pipeline.plan import cache as plan_cache
from bert_jax.data_pipeline.plan import column_files
from bert_jax.data_pipeline.plan.cache import Plans
from bert_jax.data_pipeline.plan.packing import packing_bound
from bert_jax.data_pipeline.plan.plan import Plan, PlanSpec, plan_epoch
from bert_jax.errors import UserError

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
    """The epochs that were planned rather than loaded from the cache."""
    epochs, fill = [], Plans._fill

    def counting(self, epoch, put):
        epochs.append(epoch)
        fill(self, epoch, put)

    monkeypatch.setattr(Plans, "_fill", counting)
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
        "example_pieces": "uint32",
        "example_label": "int8",
        "example_source": "uint16",
        "row_examples": "uint32",
        "row_example": "uint32",
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


def test_cache_tells_names_of_sources_apart(tmp_path):
    """The source weights of a plan are by name; the split has only indices."""
    documents = [StoredDocument([[n] * 9] * 3, source=n % 2) for n in range(20)]
    split = make_split("train", documents, vocab_size=100)
    spec = PlanSpec(32, pairing="single", source_weights="books=2")
    for names in (("books", "wiki"), ("wiki", "books")):
        plan = Plans(split, spec, tmp_path, sources=names).epoch(0)
        assert equal(plan, make_plan(split, spec, 0, sources=names))


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
    assert equal(Plans(split, SPEC, tmp_path).epoch(0), expected)  # and the repair is cached
    assert made == [0, 0]
    assert list(tmp_path.iterdir()) == [folder]


def test_next_epoch_is_planned_in_the_background(tmp_path, monkeypatch):
    planners, fill = {}, Plans._fill

    def recording(self, epoch, put):
        planners[epoch] = threading.current_thread()
        fill(self, epoch, put)

    monkeypatch.setattr(Plans, "_fill", recording)
    plans = Plans(random_split(), SPEC, tmp_path)
    plans.prepare(1)
    plans.prepare(1)
    assert equal(plans.epoch(1), make_plan(random_split(), SPEC, 1))
    assert planners[1] is not threading.current_thread()
    plans.epoch(2)
    assert planners[2] is threading.current_thread()


def test_an_error_in_the_background_is_raised_for_who_asks(tmp_path, monkeypatch):
    def failing(split, spec, epoch, put, **names):
        put("piece_start", np.zeros(3, np.int64))
        raise UserError("no plan today")

    monkeypatch.setattr(plan_cache, "plan_epoch", failing)
    plans = Plans(random_split(), SPEC, tmp_path)
    plans.prepare(1)
    with pytest.raises(UserError, match="no plan today"):
        plans.epoch(1)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(plan_cache, "plan_epoch", plan_epoch)
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
    def fill(put):
        put("a", np.arange(3))

    folder, columns = tmp_path / "plan", {"a": np.dtype(np.int64)}
    first = column_files.keep(folder, columns, fill)
    inode = (folder / "plan.json").stat().st_ino
    second = column_files.keep(folder, columns, fill)
    assert (folder / "plan.json").stat().st_ino == inode
    assert np.array_equal(first["a"], second["a"])  # the loser's mapped files outlive its folder
    assert list(tmp_path.iterdir()) == [folder]


def test_a_column_is_the_file_that_numpy_writes(tmp_path):
    values = np.arange(1_000_003, dtype=np.uint32)

    def fill(put):
        for part in np.array_split(values, 7):
            put("a", part)

    column_files.keep(tmp_path / "plan", {"a": values.dtype}, fill)
    np.save(tmp_path / "a.npy", values)
    assert (tmp_path / "plan" / "a.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()


def folders(cache):
    return {path.name for path in cache.iterdir()}


def test_plans_of_epochs_far_behind_are_given_up(tmp_path, made):
    plans = Plans(random_split(), SPEC, tmp_path)
    names, mapped = [], []
    last = plan_cache.KEPT + 3
    for epoch in range(last + 1):
        before = folders(tmp_path)
        mapped.append(plans.epoch(epoch))
        names += folders(tmp_path) - before
    assert folders(tmp_path) == {names[0], *names[4:]}
    assert len(plans._plans) <= plan_cache.KEPT + 1
    assert equal(mapped[2], make_plan(random_split(), SPEC, 2))  # mapped files stay readable
    assert equal(plans.epoch(2), mapped[2])  # and a lost plan is planned again
    assert made == [*range(last + 1), 2]
    plans.epoch(0)
    assert made[-1] == 2


def test_fixed_plans_come_in_turn_and_stay(tmp_path, made):
    spec = dataclasses.replace(SPEC, dupe_factor=5)
    plans = Plans(random_split(), spec, tmp_path)
    for epoch in range(15):
        assert equal(plans.epoch(epoch), make_plan(random_split(), spec, epoch % 5))
    assert equal(plans.epoch(7), make_plan(random_split(), spec, 12))
    assert sorted(made) == [0, 1, 2, 3, 4]
    assert len(folders(tmp_path)) == 5
    plans.prepare(6)
    assert sorted(made) == [0, 1, 2, 3, 4]
    assert equal(make_plan(random_split(), SPEC, 2), plans.epoch(2))  # unchanged


def packed(spec, **changes):
    slots = tuple(min(8, max(1, round(0.15 * n))) for n in range(spec.seq_length + 1))
    return dataclasses.replace(
        spec, row_predictions=8, examples_per_row=4, predictions=slots, **changes
    )


@pytest.mark.parametrize("pairing", ["nsp", "sop", "full_sentences", "doc_sentences", "single"])
def test_packing_changes_rows_and_nothing_else(pairing):
    split, spec = random_split(100), PlanSpec(32, pairing=pairing)
    padded, rows = make_plan(split, spec, 0), make_plan(split, packed(spec, row_tokens=48), 0)
    for field in dataclasses.fields(Plan):
        if not field.name.startswith("row_"):
            assert np.array_equal(getattr(padded, field.name), getattr(rows, field.name))
    assert sorted(rows.row_example.tolist()) == list(range(padded.examples))
    tokens = np.add.reduceat(rows.lengths()[rows.row_example], rows.row_examples[:-1])
    assert tokens.max() <= 48
    assert np.diff(rows.row_examples).max() <= 4
    assert rows.fill_rate(48) == pytest.approx(tokens.sum() / (48 * rows.rows))
    limits = packed(spec, row_tokens=48).limits
    counts = np.bincount(rows.lengths(), minlength=33)
    assert rows.fill_rate(48) <= packing_bound(counts, packed(spec).slots, limits)
    assert padded.fill_rate(32) == pytest.approx(padded.lengths().mean() / 32)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seq_length": 4}, "seq_length 4 cannot hold a pair"),
        ({"dupe_factor": -1}, "config.data.dupe_factor=-1 should be from 0 to 2147483647"),
    ],
)
def test_an_invalid_spec_is_rejected(wrong, message):
    with pytest.raises(UserError, match=message):
        PlanSpec(**{"seq_length": 32, **wrong})


def test_a_cache_folder_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write a plan to .*file") as caught:
        Plans(random_split(), SPEC, tmp_path / "file").epoch(0)
    assert "\n" not in str(caught.value)
