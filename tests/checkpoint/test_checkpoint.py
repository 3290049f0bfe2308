"""Tests of checkpoint retention, selection and loading."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from corpus import small_config, small_store
from hypothesis import given
from hypothesis import strategies as st
from runs import complete_steps, list_quarantined, read_meta

from bert_jax import cli
from bert_jax.checkpoint.catalog import CheckpointInfo, list_checkpoints, with_digest
from bert_jax.checkpoint.manager import RunCheckpoints, find_steps, load_params
from bert_jax.checkpoint.retention import best_by_phase, reasons_to_keep
from bert_jax.config.schema import CheckpointConfig
from bert_jax.config.serialization import to_dict
from bert_jax.errors import StorageError, UserError
from bert_jax.objectives.known_objectives import chosen
from bert_jax.objectives.pretraining_model import init_params
from bert_jax.training.batches import phase_batches
from bert_jax.training.claim import update_config_json
from bert_jax.training.loop import pretrain
from bert_jax.training.options import RunOptions
from bert_jax.workdir.description import describe
from bert_jax.workdir.layout import Workdir


def keeping(keep: int = 1, every: int = 0, best: bool = False) -> CheckpointConfig:
    return CheckpointConfig(
        every_steps=1, keep=keep, keep_every_steps=every, keep_best=best, write_attempts=1
    )


def save(workdir, config, steps, *, losses=None, phase_ends=(), description=None) -> list[int]:
    """Saves a tiny state at each step; returns the remaining steps."""
    checkpoints = RunCheckpoints(Workdir.open(workdir), config, phase_ends)
    for step in steps:
        state = {
            "step": np.int32(step),
            "params": {"x": jax.numpy.full(3, step, jax.numpy.float32)},
            "opt": {"m": jax.numpy.zeros(3)},
        }
        loss = (losses or {}).get(step)
        evaluation = None if loss is None else {"loss": loss}
        checkpoints.save(state, description or {}, evaluation=evaluation)
    checkpoints.close()
    return complete_steps(workdir)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "left"),
    [
        (keeping(2), [9, 10]),
        (keeping(1, every=4), [4, 8, 10]),
        (keeping(1, best=True), [2, 7, 10]),  # 2 in phase 1 (to 5), 7 in phase 2
        (keeping(3, every=5, best=True), [2, 5, 7, 8, 9, 10]),
    ],
)
def test_exactly_what_is_asked_for_is_kept(config, left, tmp_path):
    losses = {1: 5.0, 2: 3.0, 3: 4.0, 4: 3.5, 6: 3.6, 7: 3.2, 8: float("nan"), 9: 3.4}
    ends = (5, 20) if config.keep_best else ()
    expected = sorted({*left, *([5] if ends else [])})
    assert save(tmp_path, config, range(1, 11), losses=losses, phase_ends=ends) == expected


def test_what_was_kept_stays_kept_after_a_restart(tmp_path):
    losses = {1: 5.0, 2: 3.0, 3: 4.0}
    config = keeping(1, every=4, best=True)
    assert save(tmp_path, config, range(1, 6), losses=losses, phase_ends=(9,)) == [2, 4, 5]
    assert save(tmp_path, config, range(6, 8), losses={6: 3.5}, phase_ends=(9,)) == [2, 4, 7]
    assert save(tmp_path, config, [8], losses={8: 2.0}, phase_ends=(9,)) == [4, 8]


@given(
    st.dictionaries(
        st.integers(1, 60), st.none() | st.floats(0, 10) | st.just(float("inf")), min_size=1
    ),
    st.integers(1, 5),
    st.integers(0, 7),
    st.booleans(),
    st.lists(st.integers(1, 25), min_size=1, max_size=3),
)
def test_reasons_against_their_definition(losses, keep, every, best, lengths):
    ends = np.cumsum(lengths).tolist()
    ends[-1] = max(ends[-1], 60)
    saved = [CheckpointInfo(step, loss) for step, loss in losses.items()]
    why = reasons_to_keep(saved, keeping(keep, every, best), ends)
    assert list(why) == sorted(losses)
    newest = sorted(losses)[-keep:]
    for step, said in why.items():
        phase = next(i for i, end in enumerate(ends) if step <= end)
        others = [
            loss
            for other, loss in losses.items()
            if loss is not None and np.isfinite(loss)
            and (ends[phase - 1] if phase else 0) < other <= ends[phase]
        ]  # fmt: skip
        lowest = best and losses[step] is not None and losses[step] == min(others, default=None)
        assert any(s.startswith("newest") for s in said) == (step in newest)
        assert (f"every {every} steps" in said) == (every > 0 and step % every == 0)
        assert (f"end of phase {phase + 1}" in said) == (step == ends[phase])
        if f"best of phase {phase + 1}" in said:
            assert lowest
    named = [s for said in why.values() for s in said if s.startswith("best")]
    assert len(named) == len(set(named))  # one for each phase
    evaluated = {
        next(i for i, end in enumerate(ends) if step <= end)
        for step, loss in losses.items()
        if loss is not None and np.isfinite(loss)
    }
    assert len(named) == (len(evaluated) if best else 0)


@pytest.mark.slow
def test_a_run_keeps_by_count_cadence_and_best(tmp_path):
    store = small_store(tmp_path / "store")
    config = small_config(store)
    config = dataclasses.replace(
        config,
        checkpoint=CheckpointConfig(
            every_steps=2, keep=1, keep_every_steps=6, keep_best=True, write_attempts=1
        ),
        evaluation=dataclasses.replace(config.evaluation, every_steps=4),
    )
    pretrain(config, tmp_path / "run")
    metas = {step: read_meta(tmp_path / "run", step) for step in complete_steps(tmp_path / "run")}
    assert set(metas) >= {6, 12}
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    evaluated = {r["step"]: r for r in map(json.loads, lines) if r["kind"] == "eval"}
    best = min(evaluated, key=lambda step: evaluated[step]["loss"])
    assert set(metas) == {6, 12, best}
    assert find_steps(Workdir.open(tmp_path / "run"), "best") == [best]
    assert metas[6]["evaluation"] is None
    for name, value in metas[best]["evaluation"].items():
        assert evaluated[best][name] == value
    assert metas[best]["phase"] == 0


def test_the_best_is_that_of_the_last_phase_that_was_evaluated(tmp_path):
    config = {"phases": [{"steps": 3}, {"steps": 5}]}
    losses = {2: 1.0, 3: 2.0, 4: 3.0, 5: 2.5}
    save(tmp_path, keeping(9), range(1, 7), losses=losses, description={"config": config})
    assert find_steps(Workdir.open(tmp_path), "best") == [5]
    assert find_steps(Workdir.open(tmp_path)) == [6]
    with pytest.raises(UserError, match=r"no checkpoint of step 7; complete steps: 1, 2, 3"):
        find_steps(Workdir.open(tmp_path), 7)


def test_the_best_of_two_networks_has_the_lowest_loss_as_it_is_trained(tmp_path):
    """At step 2 the generator is better, at step 1 the discriminator."""
    checkpoints = RunCheckpoints(Workdir.open(tmp_path), keeping(5, best=True), (9,))
    for step, (mlm, rtd) in {1: (3.0, 0.2), 2: (2.5, 0.3)}.items():
        state = {"step": np.int32(step), "params": {"x": jax.numpy.zeros(3)}}
        state["opt"] = state["params"]
        evaluation = {"loss": mlm + rtd, "mlm/loss": mlm, "rtd/loss": rtd}
        checkpoints.save(state, {"config": {"rtd_weight": 50.0}}, evaluation=evaluation)
    checkpoints.close()
    infos = list_checkpoints(tmp_path / "checkpoints")
    assert best_by_phase(infos, (9,)) == {0: 1}
    assert [info.loss for info in infos] == [3.2, 2.8]
    assert [info.criterion for info in infos] == pytest.approx([13.0, 17.5])


def test_without_an_evaluation_there_is_no_best(tmp_path):
    save(tmp_path, keeping(9), [1], description={"config": {"phases": [{"steps": 3}]}})
    with pytest.raises(UserError, match="no checkpoint was evaluated"):
        find_steps(Workdir.open(tmp_path), "best")
    with pytest.raises(UserError, match="no checkpoints found"):
        find_steps(Workdir.open(tmp_path / "elsewhere"))
    said = f"{tmp_path}@3: no checkpoints found; give the run {tmp_path}, and --step=3"
    with pytest.raises(UserError, match=re.escape(said)):
        find_steps(Workdir.open(f"{tmp_path}@3"))


def test_the_folder_of_a_demo_suggests_its_run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").touch()
    with pytest.raises(UserError, match=f"no checkpoints found; did you mean {tmp_path}/run"):
        find_steps(Workdir.open(tmp_path))


def test_another_format_is_refused(tmp_path):
    store = small_store(tmp_path / "store")
    config = small_config(store)
    rows = phase_batches(config, store, store.train, config.phases[0]).rows_per_epoch
    described = describe(config, store, [rows], mesh={"data": 8}, device_kind="cpu")
    save(tmp_path / "run", keeping(), [1], description=described)
    update_config_json(Workdir.open(tmp_path / "run"), described, resuming_at=None)
    meta = tmp_path / "run" / "checkpoints" / "1" / "meta" / "metadata"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "format_version": 1}))
    said = r"it has format 1, this program reads format 3: use the version that wrote it"
    for look in (lambda run: load_params(Workdir.open(run)), lambda run: pretrain(config, run)):
        with pytest.raises(StorageError, match=said):
            look(tmp_path / "run")
    assert [one.folder for one in list_quarantined(tmp_path / "run")] == ["1"]


def damage(workdir: Path, step: int) -> None:
    """Flips a bit in the middle of every file with parameters."""
    for file in (workdir / "checkpoints" / f"{step}" / "params").rglob("d/*"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 16
        file.write_bytes(data)


def copy_as_another_runs(workdir: Path, step: int, to: int) -> None:
    """Copies the checkpoint to another step, as if a run with another seed had saved it."""
    folder = workdir / "checkpoints"
    shutil.copytree(folder / f"{step}", folder / f"{to}")
    meta = read_meta(workdir, step)
    config = {**meta["config"], "seed": 9}
    meta = with_digest({**meta, "step": to, "run_id": "f" * 16, "config": config})
    (folder / f"{to}" / "meta" / "metadata").write_text(json.dumps(meta))


def test_a_run_goes_on_from_the_newest_good_one_and_ends_with_the_same_bits(tmp_path, capsys):
    config = small_config(small_store(tmp_path / "store"))
    kept = CheckpointConfig(
        every_steps=4, keep=3, keep_every_steps=0, keep_best=False, write_attempts=1
    )
    config = dataclasses.replace(config, checkpoint=kept)
    run = tmp_path / "run"
    pretrain(config, run)
    whole, meta = load_params(Workdir.open(run))
    damage(run, 12)
    (run / "checkpoints" / "8" / "meta" / "metadata").unlink()
    with pytest.raises(StorageError, match=r"12: damaged: .*; give another --step \(4, 8\)"):
        load_params(Workdir.open(run))
    copy_as_another_runs(run, 4, 16)
    with pytest.raises(UserError, match=r"16: of another run: .*nothing was moved"):
        pretrain(config, run, options=RunOptions(strict_restore=True))
    assert list_quarantined(run) == []  # only a run moves them
    capsys.readouterr()
    pretrain(config, run)
    said = "".join(capsys.readouterr())
    assert "checkpoints/16: of another run: run id ffffffffffffffff, not " in said
    for step in (12, 8):
        assert f"checkpoints/{step}: damaged: " in said
    assert f"resumes from step 4 in {run}" in said
    assert [one.folder for one in list_quarantined(run)] == ["12", "16", "8"]
    again, meta_again = load_params(Workdir.open(run))
    assert complete_steps(run) == [4, 8, 12]
    assert meta["fingerprints"] == meta_again["fingerprints"]
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(again), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.mark.slow
def test_damaged_parameters_are_not_exported(tmp_path, capsys):
    config = small_config(small_store(tmp_path / "store"))
    params = init_params(config.model, config.compute, chosen(config.data), jax.random.key(0))
    checkpoints = RunCheckpoints(Workdir.open(tmp_path / "run"), keeping(1))
    checkpoints.save({"step": np.int32(3), "params": params}, {"config": to_dict(config)})
    checkpoints.close()
    damage(tmp_path / "run", 3)
    words = [f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'out'}"]
    assert cli.main(["convert", "export", *words]) == 45
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path / 'run'}/checkpoints/3: damaged: ")
    assert line.endswith("; no other checkpoint exists")
    assert not (tmp_path / "out").exists()
    assert complete_steps(tmp_path / "run") == [3]
