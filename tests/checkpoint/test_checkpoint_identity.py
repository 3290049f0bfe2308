"""Tests of checkpoint identity: a run never silently uses a checkpoint of another run."""

import dataclasses
import functools
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from corpus import small_store, two_phases
from runs import complete_steps, list_quarantined, metric_writer, read_meta
from saving_process import peers_of

from bert_jax import cli
from bert_jax.checkpoint.manager import RunCheckpoints, load_params
from bert_jax.config.schema import CheckpointConfig, Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.distributed import job as session
from bert_jax.errors import StorageError, UserError
from bert_jax.metrics import attempts
from bert_jax.training import lifecycle
from bert_jax.training.setup import RunContext
from bert_jax.training.store_data import StoreData
from bert_jax.workdir import description as workdir
from bert_jax.workdir import identity
from bert_jax.workdir.layout import Workdir

KEEP = CheckpointConfig(
    every_steps=1, keep=9, keep_every_steps=0, keep_best=False, write_attempts=1
)


def state(step: int, seed: int = 0) -> dict[str, Any]:
    """A minimal state whose values identify its step and seed."""
    x = jnp.array([step, seed, 0], jnp.float32)
    counts = {"in_row": jnp.int32(0), "total": jnp.int32(0)}
    return {"step": np.int32(step), "params": {"x": x}, "nonfinite": counts}


HERE = jax.sharding.SingleDeviceSharding(jax.devices()[0])
ABSTRACT = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=HERE), state(0))


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def other_store(tmp_path_factory) -> TokenStore:
    """A store of another text, so with another tokenizer."""
    return small_store(tmp_path_factory.mktemp("other"), words="v", documents=30)


@pytest.fixture(scope="module")
def config(store) -> Config:
    """Two phases of 6 steps, seed 0."""
    return dataclasses.replace(two_phases(store), checkpoint=KEEP)


@dataclasses.dataclass
class Started:
    """A start of a run: the restored step (None: nothing) and its description."""

    step: int | None
    seed: int | None  # of the run that saved what was restored
    description: dict[str, Any]


@dataclasses.dataclass
class Starter:
    """Starts runs as `pretrain` does, with a tiny state, and saves some steps."""

    store: TokenStore
    config: Config

    def __call__(
        self,
        folder: Path,
        *saves: int,
        legacy: bool = False,
        strict: bool = False,
        adopt: bool = False,
        exchange: Callable[[str, str], list[str]] | None = None,
    ) -> Started:
        """legacy: write no run ids, as earlier versions did."""
        mesh = {"slice": 1, "data": 1, "fsdp": 1, "tensor": 1}
        described = workdir.describe(
            self.config, StoreData(self.store), [40, 20], mesh=mesh, device_kind="cpu"
        )
        path = Workdir.open(folder)
        with (
            session.in_process_job(self.config) as job,
            closing(metric_writer(folder)) as writer,
            jax.set_mesh(jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])),
        ):
            program = SimpleNamespace(abstract=ABSTRACT, init=lambda: state(0))
            run = RunContext(
                config=self.config, workdir=path, data=StoreData(self.store), program=program,
                mesh=None, phases=(), description=described, job=job, initial=None,
            )  # fmt: skip
            run, known = lifecycle.claim_workdir(run, writer, adopt)
            if legacy:
                run = dataclasses.replace(run, description=described)
                known.pop("run_id")
            checkpoints = RunCheckpoints(
                path,
                KEEP,
                peers=peers_of(exchange) if exchange else job.peers,
                record_event=functools.partial(lifecycle.record_checkpoint, writer, run),
            )
            restored, _ = lifecycle.restore_or_init(run, checkpoints, known, strict=strict)
            for step in saves:
                checkpoints.save(state(step, self.config.seed), run.description, phase=0)
            checkpoints.close()
        step, seed = int(restored["step"]), int(restored["params"]["x"][1])
        return Started(step or None, seed if step else None, run.description)


@pytest.fixture
def start(store, config) -> Starter:
    return Starter(store, config)


@pytest.fixture
def other(store, config) -> Starter:
    """Another run of the same shapes: another seed."""
    return Starter(store, dataclasses.replace(config, seed=1))


def copy(source: Path, step: int, target: Path) -> None:
    shutil.copytree(source / "checkpoints" / f"{step}", target / "checkpoints" / f"{step}")


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def in_quarantine(folder: Path) -> dict[str, str]:
    return {one.folder: one.reason for one in list_quarantined(folder)}


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == kind]


# --- ids ------------------------------------------------------------------------------------------


def test_a_run_has_one_id_in_config_json_and_every_checkpoint(start, tmp_path):
    first = start(tmp_path / "run", 2, 4)
    again = start(tmp_path / "run", 6)
    assert (again.step, again.seed) == (4, 0)
    (run_id,) = {read_meta(tmp_path / "run", step)["run_id"] for step in (2, 4, 6)}
    config_json = json.loads((tmp_path / "run" / "config.json").read_text())
    assert run_id == config_json["run_id"] == first.description["run_id"]
    assert len(run_id) == 16
    assert start(tmp_path / "elsewhere").description["run_id"] != run_id


def test_a_lost_config_json_is_made_again_under_the_same_id(start, other, tmp_path):
    run = tmp_path / "run"
    first = start(run, 2, 4)
    (run / "config.json").unlink()
    before = everything(run)
    with pytest.raises(UserError, match=r"another config\.seed after 4 steps"):
        other(run)
    assert everything(run) == before
    again = start(run)
    assert (again.step, again.description["run_id"]) == (4, first.description["run_id"])
    assert json.loads((run / "config.json").read_text())["run_id"] == first.description["run_id"]


def test_a_workdir_may_move_and_a_backup_of_the_run_is_its_own(start, tmp_path):
    start(tmp_path / "run", 2, 4)
    shutil.copytree(tmp_path / "run", tmp_path / "backup")
    start(tmp_path / "run", 6)
    assert start(shutil.copytree(tmp_path / "backup", tmp_path / "moved")).step == 4
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    shutil.copytree(tmp_path / "backup" / "checkpoints", tmp_path / "run" / "checkpoints")
    assert start(tmp_path / "run").step == 4
    assert in_quarantine(tmp_path / "run") == {}


def test_a_backup_is_the_runs_own_also_after_it_began_again_from_nothing(start, tmp_path):
    run = tmp_path / "run"
    start(run, 4)
    (run / "checkpoints").rename(tmp_path / "backup")
    assert start(run).step is None
    (tmp_path / "backup").rename(run / "checkpoints")
    assert start(run).step == 4


def test_a_run_begun_from_nothing_with_another_seed_is_another_run(start, other, tmp_path):
    run = tmp_path / "run"
    start(run, 4)
    (run / "checkpoints").rename(tmp_path / "backup")
    assert other(run, 2).step is None
    shutil.copytree(tmp_path / "backup" / "4", run / "checkpoints" / "4")
    again = other(run)
    assert (again.step, again.seed) == (2, 1)
    assert "config.seed is 0, not 1" in in_quarantine(run)["4"]


def test_checkpoints_from_before_permitted_changes_are_still_the_runs_own(start, tmp_path):
    """An added phase, other steps of the current phase, another learning rate and mesh."""
    run, config = tmp_path / "run", start.config
    first, second = config.phases
    shorter = dataclasses.replace(config, phases=(dataclasses.replace(first, steps=9),))
    Starter(start.store, shorter)(run, 2, 4, legacy=True)
    start(run, 6, 8)
    rate = dataclasses.replace(config.optimizer, learning_rate=0.5)
    longer = dataclasses.replace(second, steps=30)
    last = Starter(start.store, dataclasses.replace(config, optimizer=rate, phases=(first, longer)))
    for step in (8, 6, 4, 2):
        assert last(run).step == step
        shutil.rmtree(run / "checkpoints" / f"{step}")
    assert in_quarantine(run) == {}


# --- another run's checkpoint ---------------------------------------------------------------------


@pytest.mark.parametrize("step", [50, 3], ids=["newer", "older"])
def test_another_runs_checkpoint_is_set_aside_and_named(step, start, other, tmp_path, capsys):
    run = tmp_path / "run"
    other(tmp_path / "other", step)
    start(run, 2, 4)
    copy(tmp_path / "other", step, run)
    found = start(run)
    assert (found.step, found.seed) == (4, 0)
    assert complete_steps(run) == [2, 4]
    reason = in_quarantine(run)[f"{step}"]
    assert reason.startswith("of another run: run id ")
    assert "config.seed is 1, not 0" in reason
    (line,) = [s for s in capsys.readouterr().err.splitlines() if s.startswith("warning: ")]
    assert line == f"warning: {run}/checkpoints/{step}: {reason}; moved to {run}/quarantine/{step}"
    (event,) = events(run, "quarantined")
    assert (event["step"], event["reason"]) == (step, reason)
    assert start(run).step == 4


def test_a_run_without_a_checkpoint_of_its_own_is_refused_every_time(start, other, tmp_path):
    """It does not start from scratch and moves nothing: --adopt must find the checkpoint."""
    run = tmp_path / "run"
    other(tmp_path / "other", 2, 4)
    start(run, 3)
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", run / "checkpoints")
    before = everything(run)
    for _ in range(2):
        with pytest.raises(UserError, match=r"/4: of another run: .*no checkpoint of this run"):
            start(run)
        assert everything(run) == before


def test_strict_restore_stops_at_another_runs_checkpoint(start, other, tmp_path):
    run = tmp_path / "run"
    other(tmp_path / "other", 3)
    start(run, 2, 4)
    copy(tmp_path / "other", 3, run)
    before = everything(run)
    with pytest.raises(UserError, match=r"/3: of another run: .*nothing was moved"):
        start(run, strict=True)
    assert everything(run) == before


def test_another_store_and_tokenizer_of_the_same_shapes(start, other_store, tmp_path):
    run = tmp_path / "run"
    theirs = dataclasses.replace(start.config.data, store=str(other_store.path))
    Starter(other_store, dataclasses.replace(start.config, data=theirs))(
        tmp_path / "other", 10, legacy=True
    )
    start(run, 4)
    copy(tmp_path / "other", 10, run)
    assert start(run).step == 4
    for key in ("tokenizer", "train"):
        assert f"data.{key} is " in in_quarantine(run)["10"]


@pytest.mark.parametrize("both", [True, False], ids=["run too", "checkpoint alone"])
def test_checkpoints_without_an_id_are_told_by_the_rest_of_their_record(
    both, start, other, tmp_path
):
    run = tmp_path / "run"
    other(tmp_path / "other", 8, legacy=True)
    start(run, 2, 4, legacy=True)
    if both:
        config_json = json.loads((run / "config.json").read_text())
        config_json.pop("run_id", None)
        (run / "config.json").write_text(json.dumps(config_json))
    assert "run_id" not in read_meta(run, 4)
    copy(tmp_path / "other", 8, run)
    found = start(run, 6)
    assert (found.step, found.seed) == (4, 0)
    assert in_quarantine(run)["8"] == "of another run: config.seed is 1, not 0"
    assert read_meta(run, 6)["run_id"] == found.description["run_id"]
    assert start(run).step == 6


def test_a_config_json_without_an_id_takes_that_of_the_newest_checkpoint(start, tmp_path):
    run = tmp_path / "run"
    first = start(run, 2, 4)
    config_json = json.loads((run / "config.json").read_text())
    del config_json["run_id"]
    (run / "config.json").write_text(json.dumps(config_json))
    again = start(run)
    assert (again.step, again.description["run_id"]) == (4, first.description["run_id"])


def test_damaged_ones_of_the_run_and_one_of_another_leave_nothing_to_begin_from(
    start, other, tmp_path
):
    run = tmp_path / "run"
    other(tmp_path / "other", 8)
    start(run, 4)
    copy(tmp_path / "other", 8, run)
    (run / "checkpoints" / "4" / "commit_success.txt").unlink()
    for _ in range(2):
        with pytest.raises(StorageError, match="no valid checkpoint is left"):
            start(run)
    assert set(in_quarantine(run)) == {"4", "8"}


def test_an_edited_config_json_does_not_open_the_door(start, other, tmp_path):
    """The checkpoint's metadata decides."""
    run = tmp_path / "run"
    start(run, 4)
    config_json = json.loads((run / "config.json").read_text())
    config_json["config"]["seed"] = 1
    (run / "config.json").write_text(json.dumps(config_json))
    with pytest.raises(UserError, match=r"another config\.seed after 4 steps"):
        other(run)


def test_what_one_process_takes_for_another_runs_all_set_aside(start, tmp_path):
    """One of two processes; the other sees another checkpoint under the same name."""
    run = tmp_path / "run"
    start(run, 2, 4)
    theirs = {"restore/runs": json.dumps({"4": "of another run: by its word"})}
    found = start(run, exchange=lambda name, text: [text, theirs.get(name, "")])
    assert found.step == 2
    assert in_quarantine(run) == {"4": "of another run: by its word"}


# --- adopted --------------------------------------------------------------------------------------


def test_adopt_takes_it_on_purpose_and_writes_it_down(start, other, tmp_path, capsys):
    run = tmp_path / "run"
    theirs = other(tmp_path / "other", 8).description["run_id"]
    own = start(run, 4).description["run_id"]
    copy(tmp_path / "other", 8, run)
    found = start(run, 10, adopt=True)
    assert (found.step, found.seed, found.description["run_id"]) == (8, 1, own)
    assert "adopts the checkpoint of step 8, of another run: run id" in capsys.readouterr().out
    (entry,) = json.loads((run / "config.json").read_text())["adopted"]
    assert (entry["step"], entry["run_id"]) == (8, theirs)
    (event,) = events(run, "adopted")
    assert (event["step"], event["run_id"]) == (8, theirs)
    assert attempts.split([event]) == []  # it belongs to no start of the run
    assert read_meta(run, 10)["run_id"] == own
    assert start(run).step == 10
    for damaged in (True, False):  # also where it is the newest that is left, without the flag
        if damaged:
            (run / "checkpoints" / "10" / "commit_success.txt").unlink()
        assert start(run).step == 8
    assert set(in_quarantine(run)) == {"10"}
    assert len(events(run, "adopted")) == 1


def test_what_was_adopted_outlives_config_json(start, other, tmp_path):
    run = tmp_path / "run"
    other(tmp_path / "other", 8)
    start(run, 4)
    copy(tmp_path / "other", 8, run)
    start(run, 10, adopt=True)
    (run / "config.json").unlink()
    assert start(run).step == 10
    shutil.rmtree(run / "checkpoints" / "10")
    assert start(run).step == 8


def test_adopt_begins_a_run_of_its_own_from_another_runs_checkpoints(start, other, tmp_path):
    theirs = other(tmp_path / "other", 4).description["run_id"]
    run = tmp_path / "run"
    shutil.copytree(tmp_path / "other" / "checkpoints", run / "checkpoints")
    found = start(run, 6, adopt=True)
    assert (found.step, found.seed) == (4, 1)
    assert found.description["run_id"] != theirs
    assert start(run).step == 6


def test_another_checkpoint_of_the_adopted_run_is_not_adopted_with_it(start, other, tmp_path):
    run = tmp_path / "run"
    other(tmp_path / "other", 6, 8)
    start(run, 4)
    copy(tmp_path / "other", 6, run)
    assert start(run, adopt=True).step == 6
    copy(tmp_path / "other", 8, run)
    assert start(run).step == 6
    assert list(in_quarantine(run)) == ["8"]


# --- other commands -------------------------------------------------------------------------------


@pytest.fixture
def mixed(start, other, tmp_path) -> Path:
    """A workdir whose newest checkpoint is another run's."""
    other(tmp_path / "other", 8)
    start(tmp_path / "run", 4)
    copy(tmp_path / "other", 8, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(
    "words",
    [
        ["convert", "export", "--out=OUT"],
        ["convert", "export", "--out=OUT", "--step=8"],
        ["evaluate"],
        ["evaluate", "--all"],
    ],
    ids=" ".join,
)
def test_what_reads_checkpoints_refuses_another_runs(words, mixed, tmp_path, capsys):
    before = everything(mixed)
    words = [word.replace("OUT", str(tmp_path / "out")) for word in words]
    assert cli.main([*words, f"--workdir={mixed}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {mixed}/checkpoints/8: of another run: ")
    assert everything(mixed) == before
    assert not (tmp_path / "out").exists()


def test_status_names_another_runs_checkpoint(mixed, capsys):
    assert cli.main(["status", f"--workdir={mixed}", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [bool(one["problem"]) for one in said["checkpoints"]] == [False, True]
    assert said["checkpoints"][1]["problem"].startswith("of another run: ")
    assert (said["step"], said["restart_from"]) == (4, 4)


def test_parameters_without_a_config_json_beside_them_are_read(mixed):
    (mixed / "config.json").unlink()
    with pytest.raises(Exception, match="params/"):  # this state holds no encoder: it came so far
        load_params(Workdir.open(mixed), 8)


def test_reasons_are_one_short_line(start, store):
    mesh = {"slice": 1, "data": 1, "fsdp": 1, "tensor": 1}
    run = workdir.describe(start.config, store, [40, 20], mesh=mesh, device_kind="cpu")
    model = dataclasses.replace(start.config.model, hidden_size=64, num_attention_heads=4)
    changed = dataclasses.replace(start.config, model=model, seed=1)
    meta = workdir.describe(changed, store, [40, 20], mesh=mesh, device_kind="cpu")
    meta |= {"step": 3, "run_id": "a" * 16}
    said = identity.foreign_reason(meta, run | {"run_id": "b" * 16})
    assert said == (
        f"of another run: run id {'a' * 16}, not {'b' * 16}, config.seed is 1, not 0, "
        "config.model.hidden_size is 64, not 32, 1 more"
    )
    assert identity.foreign_reason({"step": 3}, run).endswith("it does not record a configuration")
