"""Tests of what may change when a run resumes: configuration keys, versions, devices."""

import copy
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from corpus import small_config, small_store, two_phases

from bert_jax import cli
from bert_jax.config.on_resume import OnResume, on_resume
from bert_jax.config.schema import Config
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import StorageError, UserError
from bert_jax.runtime.versions import versions
from bert_jax.storage import remote, retry
from bert_jax.training import claim, loop, store_data
from bert_jax.training import setup as running
from bert_jax.workdir import description as workdir
from bert_jax.workdir import identity
from bert_jax.workdir.layout import Workdir

# What decides what a step sees or what the parameters mean may not change; these keys may.
MAY = """
    log_every_steps init init_weights teacher data.store
    optimizer.learning_rate optimizer.base_width optimizer.warmup_steps optimizer.decay_power
    optimizer.schedule_over
    optimizer.schedule optimizer.decay_share optimizer.weight_decay_on
    optimizer.phase_moments optimizer.phase_count optimizer.b1 optimizer.b2 optimizer.eps
    optimizer.weight_decay optimizer.clip_norm optimizer.max_nonfinite_steps optimizer.layer_decay
    optimizer.muon_scale optimizer.muon_momentum
    mesh.slice mesh.data mesh.fsdp mesh.tensor
    compute.dtype compute.unroll_layers compute.attention compute.remat compute.shard_optimizer
    checkpoint.every_steps checkpoint.keep checkpoint.keep_every_steps checkpoint.keep_start
    checkpoint.keep_at_words checkpoint.keep_best
    checkpoint.write_attempts
    evaluation.every_steps evaluation.batches evaluation.attention evaluation.fills
    deadlines.start deadlines.compile deadlines.data deadlines.step deadlines.evaluate
    deadlines.save deadlines.restore deadlines.barrier deadlines.peer deadlines.grace
    task.data task.held_out task.retrieval task.tokenizer
    task.epochs task.fewest_steps task.most_steps task.warmup_share task.evaluations task.keep
    task.teacher task.temperature task.teacher_weight
    task.strict
"""
MAY_IN_A_PHASE = ["steps", "micro_batches", "learning_rate", "warmup_steps", "decay_share"]
MAY_NOT_IN_A_PHASE = [
    "batch_size", "seq_length", "max_predictions", "examples_per_row", "row_length",
    "mask_rate", "mask_rate_end", "mask_share", "random_share", "masking", "source_weights",
    "language_smoothing", "pairing",
]  # fmt: skip
MAY_NOT = sorted(
    {key for key in flatten(to_dict(Config())) if not key.startswith("phases")} - {*MAY.split()}
)
BITS = ": the last bits may differ"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def config(store: TokenStore) -> Config:
    """Two phases of 6 steps."""
    return two_phases(store)


def described(config: Config, store: TokenStore) -> dict[str, Any]:
    """Returns a description as stored in config.json."""
    mesh = {"slice": 1, "data": 8, "fsdp": 1, "tensor": 1}
    description = workdir.describe(config, store, [40, 20], mesh=mesh, device_kind="cpu")
    return json.loads(json.dumps(description))


@pytest.fixture
def old(config: Config, store: TokenStore) -> dict[str, Any]:
    return described(config, store)


@pytest.fixture
def run(old: dict[str, Any], tmp_path: Path) -> Workdir:
    opened = Workdir.open(tmp_path)
    claim.update_config_json(opened, old, resuming_at=None)
    return opened


def changed(description: dict[str, Any], key: str, value: Any = None) -> dict[str, Any]:
    """Returns a copy with another value at a key like "config.phases[0].steps"."""
    made = copy.deepcopy(description)
    words = key.replace("[", ".").replace("]", "").split(".")
    *path, last = [int(word) if word.isdigit() else word for word in words]
    at = made
    for name in path:
        at = at[name]
    at[last] = value if value is not None else f"{at[last]}!"
    return made


def refused(run: Workdir, new: dict[str, Any], step: int) -> list[str]:
    """Returns the lines of the error; asserts that nothing was changed."""
    before = run.config_json.read_text()
    with pytest.raises(UserError) as error:
        claim.update_config_json(run, new, resuming_at=step)
    assert run.config_json.read_text() == before
    first, *diff = str(error.value).splitlines()
    assert first.startswith(f"{run}: ")
    assert "--workdir" in first
    assert all(line.startswith(("- ", "+ ")) for line in diff)
    return [first, *diff]


def test_every_key_states_whether_it_may_change(config: Config) -> None:
    may = {key for key in flatten(to_dict(config)) if on_resume(Config, key) is not OnResume.FIXED}
    phases = {f"phases[{index}].{name}" for index in (0, 1) for name in MAY_IN_A_PHASE}
    assert may == phases | {*MAY.split()}
    assert on_resume(Config, "optimizer.of_another_version") is OnResume.FREE
    assert on_resume(Config, "model.of_another_version") is OnResume.FIXED


@pytest.mark.parametrize("key", MAY_NOT)
def test_what_decides_the_meaning_is_refused_with_a_diff(key: str, run, old) -> None:
    new = changed(old, f"config.{key}")
    first, *diff = refused(run, new, 1)
    assert f"another config.{key} after 1 steps" in first
    before, after = (flatten(d)[f"config.{key}"] for d in (old, new))
    had = [] if before is None else [f"- config.{key}: {before}"]
    assert diff == [*had, f"+ config.{key}: {after}"]


@pytest.mark.parametrize("key", MAY.split())
def test_what_may_change_is_said(key: str, run, old) -> None:
    new = changed(old, f"config.{key}")
    before, after = (flatten(d)[f"config.{key}"] for d in (old, new))
    bits = BITS if key.startswith(("mesh.", "compute.")) else ""
    assert claim.update_config_json(run, new, resuming_at=8) == [
        f"resumes with config.{key}={after} (was {before}){bits}"
    ]
    assert json.loads(run.config_json.read_text()) == new
    assert claim.update_config_json(run, new, resuming_at=8) == []


def test_steps_over_which_a_mask_rate_falls_are_fixed_once_they_begin(run, old) -> None:
    """Else the steps already done would have had other masks."""
    for value in (0.1, None):
        falling = changed(old, "config.phases[1].mask_rate", 0.3)
        falling["config"]["phases"][1]["mask_rate_end"] = value
        longer = changed(falling, "config.phases[1].steps", 60)
        differences = identity.compare(falling, longer, 7)
        assert bool(differences.refused) == (value is not None)
        assert not identity.compare(falling, longer, 6).refused
    two = changed(falling, "config.phases[1].steps", 6)
    two["config"]["phases"].append(two["config"]["phases"][1])
    assert identity.compare(falling, two, 7) == identity.Comparison(done=1)


@pytest.mark.parametrize("name", [*MAY_IN_A_PHASE, *MAY_NOT_IN_A_PHASE])
def test_a_phase_may_change_until_it_begins_and_not_after_it_ends(name: str, run, old) -> None:
    value = 7 if name == "steps" else 99
    first, *diff = refused(run, changed(old, f"config.phases[0].{name}", value), 6)
    assert f"another config.phases[0].{name}: a finished phase cannot change" in first
    assert f"+ config.phases[0].{name}: {value}" in diff
    later = changed(old, f"config.phases[1].{name}", value)
    if name in MAY_IN_A_PHASE:
        (said,) = claim.update_config_json(run, later, resuming_at=7)
    else:
        assert f"another config.phases[1].{name} after 7" in refused(run, later, 7)[0]
        (said,) = claim.update_config_json(run, later, resuming_at=6)
    assert said.startswith(f"resumes with config.phases[1].{name}={value} (was ")
    assert said.endswith(BITS) == (name == "micro_batches")


def test_phases_come_and_go_only_after_the_present(run, old) -> None:
    fewer = copy.deepcopy(old)
    del fewer["config"]["phases"][1], fewer["data"]["rows_per_epoch"][1]
    assert "another config.phases[1] after 7 steps" in refused(run, fewer, 7)[0]
    assert refused(run, fewer, 7)[1:] == ["- config.phases[1]: 6 steps"]
    assert claim.update_config_json(run, fewer, resuming_at=6) == [
        "resumes without config.phases[1]"
    ]
    assert claim.update_config_json(run, old, resuming_at=6) == [
        "resumes with a new config.phases[1]"
    ]


def test_fewer_steps_than_are_done_are_refused(run, old) -> None:
    first, *diff = refused(run, changed(old, "config.phases[1].steps", 2), 9)
    assert "config.phases[1].steps=2 is less than the 3 steps already done" in first
    assert diff == ["- config.phases[1].steps: 6", "+ config.phases[1].steps: 2"]


@pytest.mark.parametrize("key", ["train", "held_out", "rows_per_epoch[0]"])
def test_another_store_is_refused_and_both_are_named(key: str, run, old) -> None:
    new = changed(changed(old, f"data.{key}", "aaaa"), "config.data.store", "/elsewhere")
    first, *diff = refused(run, new, 1)
    assert f"cannot resume with another data.{key}" in first
    assert {f"+ data.{key}: aaaa", "+ config.data.store: /elsewhere"} <= set(diff)
    assert f"- config.data.store: {old['config']['data']['store']}" in diff


def test_another_tokenizer_is_refused_first(run, old) -> None:
    new = changed(changed(old, "data.tokenizer", "aaaa"), "config.seed", 9)
    first, *diff = refused(run, new, 1)
    assert "was trained with another tokenizer than the store was built with" in first
    assert "+ data.tokenizer: aaaa" in diff


def test_other_versions_and_devices_go_on_and_are_said(run, old) -> None:
    assert set(old["versions"]) - {"commit"} == {
        "bert-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "python",
    }  # fmt: skip
    new = changed(changed(old, "versions.jax", "99.1"), "versions.python", "3.99.0")
    new = changed(new, "devices.mesh.data", 4)
    assert claim.update_config_json(run, new, resuming_at=3) == [
        f"resumes with jax 99.1 (was {versions()['jax']}){BITS}",
        f"resumes with python 3.99.0 (was {versions()['python']}){BITS}",
        "resumes with cpu devices in mesh slice=1 data=4 fsdp=1 tensor=1 "
        f"(was cpu devices in mesh slice=1 data=8 fsdp=1 tensor=1){BITS}",
    ]
    assert claim.update_config_json(run, new, resuming_at=3) == []


def test_a_run_of_before_versions_were_kept_goes_on(run, old) -> None:
    kept = {key: copy.deepcopy(old[key]) for key in ("config", "data")}
    del kept["config"]["deadlines"]["peer"]  # a setting that did not exist either
    run.config_json.write_text(json.dumps(kept))
    described_again = copy.deepcopy(old)
    (said,) = claim.update_config_json(run, described_again, resuming_at=3)
    assert said.startswith("uses config.deadlines.peer=")
    assert json.loads(run.config_json.read_text()) == described_again


def test_a_run_that_lacks_newer_settings_takes_their_defaults(run, old) -> None:
    older = copy.deepcopy(old)
    for key in ("schedule", "weight_decay_on"):
        del older["config"]["optimizer"][key]
    del older["config"]["data"]["separators"]
    run.config_json.write_text(json.dumps(older))
    _, *diff = refused(run, changed(old, "config.data.separators", "sentences"), 3)
    assert diff == ["- config.data.separators: documents", "+ config.data.separators: sentences"]
    new = changed(old, "config.optimizer.schedule", "fairseq")
    assert claim.update_config_json(run, new, resuming_at=3) == [
        "resumes with config.optimizer.schedule=fairseq (was bert)",
        "uses config.data.separators=documents: a setting newer than the run",
        "uses config.optimizer.weight_decay_on=weights: a setting newer than the run",
    ]


@pytest.mark.parametrize(
    "text", ['{"config": {}, "data": {}}', '{"config": 1, "data": 2}', "[]", "", '{"config"']
)
def test_a_damaged_config_json_is_one_line(text: str, run, old) -> None:
    run.config_json.write_text(text)
    with pytest.raises(UserError, match=r"not .* a run") as error:
        claim.update_config_json(run, old, resuming_at=3)
    assert "\n" not in str(error.value)


def test_a_lost_config_json_does_not_open_the_door(run, old, monkeypatch) -> None:
    """Then the checkpoint's metadata is compared."""
    run.config_json.unlink()
    monkeypatch.setattr(claim.catalog, "all_steps", lambda path: [2, 3])
    monkeypatch.setattr(claim.catalog, "read_meta", lambda path, step: {3: old}[step])
    with pytest.raises(UserError, match=r"another config\.seed after 3 steps"):
        claim.update_config_json(run, changed(old, "config.seed", 9), resuming_at=3)
    assert claim.update_config_json(run, old, resuming_at=3) == []


def test_what_is_wrong_is_said_before_anything_is_read(store, tmp_path, monkeypatch):
    """Refused before any device is initialized or any array is opened."""
    config = small_config(store)
    run = Workdir.open(tmp_path / "run")
    mesh = {"slice": 1, "data": 8, "fsdp": 1, "tensor": 1}
    description = workdir.describe(config, store, [40], mesh=mesh, device_kind="cpu")
    claim.update_config_json(run, description, resuming_at=None)
    monkeypatch.setattr(claim.catalog, "complete_steps", lambda path: [4])
    monkeypatch.setattr(store_data, "open_store", pytest.fail)
    monkeypatch.setattr(running, "make_mesh", pytest.fail)
    with pytest.raises(UserError, match=r"- config\.seed: 0\n\+ config\.seed: 9$"):
        loop.pretrain(dataclasses.replace(config, seed=9), run.path)
    other = small_store(tmp_path / "other", words="v")
    with pytest.raises(UserError, match="trained with another tokenizer"):
        loop.pretrain(small_config(other), run.path)


# --- whose folder it is ---------------------------------------------------------------------------


def other_trainer(folder: Path) -> None:
    """Files of another program that saves with Orbax, one save unfinished."""
    for name in ("3/params/d/array", "5.orbax-checkpoint-tmp-99/params/d/array", "7.removed/array"):
        (folder / "checkpoints" / name).parent.mkdir(parents=True)
        (folder / "checkpoints" / name).write_bytes(b"theirs")


def holding(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text)


def everything(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (other_trainer, "holds checkpoints, but no config.json of a pretraining run"),
        (holding("photo.jpg", "x"), "holds photo.jpg, but no config.json"),
        (holding("metrics.jsonl", "x"), "holds metrics.jsonl, but no config.json"),
        (
            holding("config.json", '{"model_type": "bert"}'),
            "its config.json is not from a pretrain",
        ),
        (lambda folder: (folder / "quarantine" / "3").mkdir(parents=True), "holds quarantine"),
    ],
    ids=["another trainer", "a file", "a log", "an export", "quarantine alone"],
)
def test_a_folder_of_others_is_refused_and_nothing_in_it_changes(fill, said, tmp_path, capsys):
    folder = tmp_path / "folder"
    folder.mkdir()
    fill(folder)
    before = everything(folder)
    words = ["--config=tiny", "--config.data.store=nowhere", f"--workdir={folder}"]
    assert cli.main(["pretrain", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {folder}: ")
    assert said in line
    assert everything(folder) == before


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".lock",
        "lost+found/x",
        ".config.json.tmp",
        ".config.json.77.tmp",
        "word_start.npz",
        ".word_start.npz.77.tmp",
    ],
)
def test_an_empty_folder_is_free_and_so_is_what_a_death_before_the_mark_leaves(name, tmp_path):
    if name:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    claim.check_free(Workdir.open(tmp_path))
    claim.check_free(Workdir.open(tmp_path / "absent"))


def test_the_mark_is_the_first_thing_in_a_workdir(old, tmp_path):
    """Written before partial checkpoints are removed and anything is logged."""
    run, adopted = claim.mark_or_identify(Workdir.open(tmp_path / "run"), old)
    assert list(everything(tmp_path / "run")) == ["config.json"]
    assert workdir.read_description(Workdir.open(tmp_path / "run")) == run
    assert adopted == []
    claim.check_free(Workdir.open(tmp_path / "run"))


def test_a_workdir_whose_name_is_no_text_is_refused_at_once(tmp_path, capsys):
    words = ["--config=tiny", "--config.data.store=nowhere", f"--workdir={tmp_path}/run\udcff"]
    assert cli.main(["pretrain", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"error: --workdir={tmp_path}/run\\udcff: not valid UTF-8; give the folder another name"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_in_place_of_config_json_keeps_nobody_waiting(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(UserError, match=r"config\.json is not from a pretraining run"):
        claim.check_free(Workdir.open(tmp_path))


def test_the_tokenizer_is_kept_byte_for_byte(tmp_path):
    """A file with another system's line breaks would have another digest after conversion."""
    data = b'{"model": {},\r\n "version": "1.0"}\r\n'
    workdir.copy_tokenizer(Workdir.open(tmp_path / "run"), data)
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == data


def test_config_json_is_on_the_disk_before_it_has_its_name(old, tmp_path, monkeypatch):
    done = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append("sync"), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append(Path(b).name), replace(a, b)))
    claim.mark_or_identify(Workdir.open(tmp_path / "run"), old)
    assert done == ["sync", "config.json", "sync"]


def test_a_disk_that_is_full_at_the_first_file_is_one_line(old, tmp_path, monkeypatch):
    monkeypatch.setattr(retry, "sleep", lambda seconds: None)

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(remote.atomic, "write_bytes", full)
    with pytest.raises(StorageError, match=r"config\.json: cannot be written \(No space left"):
        claim.mark_or_identify(Workdir.open(tmp_path / "run"), old)
