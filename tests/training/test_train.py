"""The training loop: the same numbers on any number of devices and after any interruption."""

import dataclasses
import json
import random
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from corpus import small_config, small_store, two_phases
from runs import read_records

from bert_jax.checkpoint import manager as checkpoint
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.batch import Batches
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import StoppedError, UserError
from bert_jax.objectives.corpus import Corpus
from bert_jax.parallel import global_batch
from bert_jax.parallel.mesh import make_mesh
from bert_jax.reporting import status
from bert_jax.training import step as step_module
from bert_jax.training.batches import phase_batches
from bert_jax.training.loop import pretrain
from bert_jax.training.options import RunOptions
from bert_jax.training.step import StepFunctions
from bert_jax.workdir.layout import Workdir


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


def on_devices(config: Config, count: int) -> Config:
    """The config on a mesh of `count` of the eight devices."""
    return dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, data=count))


def parameters(workdir: Path, step: int | None = None) -> list[tuple[str, np.ndarray]]:
    params, _ = checkpoint.load_params(Workdir.open(workdir), step)
    return [
        (jax.tree_util.keystr(path), np.asarray(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    ]


def steps_on(config: Config, store: TokenStore, devices: int, steps: int) -> tuple[list, int]:
    """Losses of the first steps on a number of devices, and how often the step compiled."""
    mesh = make_mesh(config.mesh, jax.devices()[:devices])
    batches = phase_batches(config, store, store.train, config.phases[0])
    losses = []
    with jax.set_mesh(mesh):
        program = step_module.make_step_functions(config, mesh, Corpus.of(store))
        state = program.init()
        for step in range(steps):
            batch = global_batch.global_batch(
                lambda rows, s=step: batches.batch(s, rows), program.rows, 8
            )
            state, result = program.train(state, batch)
            losses.append(float(result["loss"]))
    return losses, program.train._cache_size()


@pytest.mark.slow
def test_one_and_eight_devices_give_the_same_loss(store):
    config = small_config(store)
    assert config.model.hidden_dropout_prob > 0
    one, _ = steps_on(config, store, 1, 4)
    eight, compiled = steps_on(config, store, 8, 4)
    np.testing.assert_allclose(eight, one, rtol=1e-6)
    assert compiled == 1


@pytest.mark.parametrize(
    "name",
    [
        "bert_adamw",
        pytest.param("muon", marks=pytest.mark.slow),
        pytest.param("stable_adamw", marks=pytest.mark.nightly),
    ],
)
def test_resuming_at_a_random_step_gives_the_same_bits(name, store, tmp_path):
    config = small_config(store)
    config = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, name=name))
    pretrain(config, tmp_path / "whole")
    stop = random.randrange(1, config.total_steps)
    with pytest.raises(StoppedError, match=f"step {stop} "):
        pretrain(config, tmp_path / "parts", options=RunOptions(stop_after=stop))
    assert not status.read_status(tmp_path / "parts").working  # though it was at work a moment ago
    pretrain(config, tmp_path / "parts")
    for (name, whole), (_, parts) in zip(
        parameters(tmp_path / "whole"), parameters(tmp_path / "parts"), strict=True
    ):
        assert whole.tobytes() == parts.tobytes(), f"{name} differs after stopping at {stop}"


@pytest.mark.nightly  # by default: that a checkpoint's bits come back on any number of devices
def test_a_run_goes_on_where_parameters_are_split_otherwise(store, tmp_path):
    config = small_config(store)

    def laid(shard: bool, **sizes: int) -> Config:
        mesh = dataclasses.replace(config.mesh, **sizes)
        compute = dataclasses.replace(config.compute, shard_optimizer=shard)
        return dataclasses.replace(config, mesh=mesh, compute=compute)

    pretrain(laid(False, data=8), tmp_path / "whole")
    with pytest.raises(StoppedError):
        pretrain(laid(True, data=8), tmp_path / "parts", options=RunOptions(stop_after=3))
    with pytest.raises(StoppedError):
        pretrain(laid(True, data=4, fsdp=2), tmp_path / "parts", options=RunOptions(stop_after=6))
    pretrain(laid(False, data=4, fsdp=2), tmp_path / "parts")
    for kind in ("train", "eval"):
        whole, parts = (read_records(tmp_path / n, kind)[-1] for n in ("whole", "parts"))
        assert whole["step"] == parts["step"] == config.total_steps
        np.testing.assert_allclose(parts["loss"], whole["loss"], rtol=1e-6)


def test_the_last_step_is_a_checkpoint_with_its_description(store, tmp_path):
    config = small_config(store)
    pretrain(config, tmp_path)
    _, meta = checkpoint.load_params(Workdir.open(tmp_path))
    assert meta["step"] == config.total_steps
    assert meta["data"]["train"] == store.train.digest
    assert (tmp_path / "tokenizer.json").read_bytes() == store.tokenizer_path.read_bytes()
    pretrain(config, tmp_path)  # nothing left to do is not an error


@pytest.mark.parametrize("sentences", [1, 8])
def test_documents_of_one_sentence_are_a_warning(sentences, tmp_path, capsys, monkeypatch):
    config = small_config(small_store(tmp_path / "store", sentences=sentences))

    def stop(*_: object) -> None:
        raise StoppedError("before anything is compiled")

    monkeypatch.setattr(StepFunctions, "compile_train", stop)
    with pytest.raises(StoppedError):
        pretrain(config, tmp_path / "run")
    said = "100% of the documents have one sentence" in "".join(capsys.readouterr())
    assert said == (sentences == 1)


def test_metrics_hold_objectives_and_baselines(store, tmp_path):
    config = small_config(store)
    pretrain(config, tmp_path)
    train = read_records(tmp_path, "train")
    assert [record["step"] for record in train] == [4, 8, 12]
    (held_out,) = read_records(tmp_path, "eval")
    for record in (*train, held_out):
        for name in ("mlm", "nsp"):
            for value in ("loss", "accuracy", "baseline_loss", "baseline_accuracy"):
                assert np.isfinite(record[f"{name}/{value}"])
        assert {"nsp/wiki/accuracy", "nsp/books/baseline_accuracy"} <= set(record)
        assert 0 < record["padding"] < 1
    wiki, books = (held_out[f"mlm/{source}/loss"] for source in ("wiki", "books"))
    assert min(wiki, books) <= held_out["mlm/loss"] <= max(wiki, books)
    assert train[-1]["tokens_per_second"] > 0
    assert list((tmp_path / "tensorboard" / tmp_path.name).iterdir())


def test_a_stretch_repeated_after_a_restart_is_read_once(tmp_path):
    lines = [{"kind": "train", "step": s, "value": v} for s, v in ((1, 0), (2, 0), (2, 1), (3, 1))]
    text = "\n".join(map(json.dumps, lines)) + '\n{"kind": "tr'
    (tmp_path / "metrics.jsonl").write_text(text)
    records = read_records(tmp_path, "train")
    assert [(r["step"], r["value"]) for r in records] == [(1, 0), (2, 1), (3, 1)]


@pytest.mark.slow
def test_what_decides_the_examples_cannot_change(store, tmp_path):
    config = small_config(store)
    with pytest.raises(StoppedError):
        pretrain(config, tmp_path, options=RunOptions(stop_after=2))
    data = dataclasses.replace(config.data, short_seq_prob=0.5)
    with pytest.raises(UserError, match=r"data\.short_seq_prob after 2 steps.*new --workdir"):
        pretrain(dataclasses.replace(config, data=data), tmp_path)
    optimizer = dataclasses.replace(config.optimizer, learning_rate=1e-5)
    pretrain(dataclasses.replace(config, optimizer=optimizer), tmp_path)  # this may


def test_another_tokenizer_than_the_checkpoints_is_refused(store, tmp_path):
    config = small_config(store)
    with pytest.raises(StoppedError):
        pretrain(config, tmp_path / "run", options=RunOptions(stop_after=2))
    other = small_store(tmp_path / "other", words="v")
    with pytest.raises(UserError, match="trained with another tokenizer"):
        pretrain(small_config(other), tmp_path / "run")


def test_ids_beyond_the_vocabulary_are_refused(store, tmp_path):
    config = small_config(store)
    model = dataclasses.replace(config.model, vocab_size=50)
    with pytest.raises(UserError, match=r"go up to 99; pass --config\.model\.vocab_size=100"):
        pretrain(dataclasses.replace(config, model=model), tmp_path)


def test_a_batch_that_does_not_divide_is_refused(store, tmp_path):
    config = small_config(store)
    phase = dataclasses.replace(config.phases[0], batch_size=12)
    with pytest.raises(UserError, match=r"batch_size=12 is not divisible by 8 devices"):
        pretrain(dataclasses.replace(config, phases=(phase,)), tmp_path)


@pytest.mark.parametrize("mesh", [{"data": 3}, {"data": 0}, {"data": -1, "fsdp": -1}])
def test_a_mesh_that_does_not_fit_is_refused(mesh, store):
    config = small_config(store)
    with pytest.raises(UserError, match="does not fit 8 devices"):
        make_mesh(dataclasses.replace(config.mesh, **mesh))


def test_added_vocabulary_rows_stay_zero(store, tmp_path):
    config = small_config(store)
    assert config.model.padded_vocab_size == 128
    pretrain(config, tmp_path)
    params = dict(parameters(tmp_path))
    table = params["['encoder']['embeddings']['word']"]
    assert table.shape[0] == 128
    assert not table[100:].any()
    assert not params["['mlm']['bias']"][100:].any()
    assert table[5:100].any(axis=1).all()


def test_learns_what_can_be_learned(tmp_path):
    """Next sentences that repeat the first: both losses fall far below their baselines."""
    store = small_store(tmp_path / "store", documents=60, repeat=True)
    config = small_config(store)
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, hidden_dropout_prob=0.0, initializer_range=0.18),
        phases=(dataclasses.replace(config.phases[0], steps=150, batch_size=16),),
        optimizer=dataclasses.replace(config.optimizer, learning_rate=3e-3, warmup_steps=30),
    )
    pretrain(config, tmp_path / "run")
    last = read_records(tmp_path / "run", "train")[-1]
    assert last["mlm/loss"] < last["mlm/baseline_loss"] - 0.5


@pytest.fixture(scope="module")
def phases_config(store) -> Config:
    return two_phases(store)


@pytest.fixture(scope="module")
def whole(phases_config, tmp_path_factory) -> Path:
    """A run of two phases that nothing interrupted."""
    workdir = tmp_path_factory.mktemp("whole")
    pretrain(phases_config, workdir)
    return workdir


@dataclasses.dataclass
class Parts:
    """A run of two phases stopped at 4, at their boundary and at 8, and what it asked for."""

    folder: Path
    stops: tuple[int, ...] = (4, 6, 8)
    compiled: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    batches: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    def stopped_at(self, step: int, copy: Path) -> Path:
        """A copy of the workdir as it was then."""
        return shutil.copytree(self.folder / f"{step}", copy)


@pytest.fixture(scope="module")
def parts(phases_config, tmp_path_factory) -> Parts:
    run = Parts(tmp_path_factory.mktemp("parts"))
    compile_of, batch_of = StepFunctions.compile_train, Batches.batch

    def compile_train(self, rows, phase):
        run.compiled.append(rows["input_ids"].shape[1:])
        return compile_of(self, rows, phase)

    def batch(self, step, rows=None):
        if rows is None or len(rows):
            run.batches.append((self._spec.seq_length, step))
        return batch_of(self, step, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepFunctions, "compile_train", compile_train)
        patch.setattr(Batches, "batch", batch)
        for stop in run.stops:
            with pytest.raises(StoppedError, match=f"step {stop} "):
                pretrain(phases_config, run.folder / "run", options=RunOptions(stop_after=stop))
            shutil.copytree(run.folder / "run", run.folder / f"{stop}")
        pretrain(phases_config, run.folder / "run")
    return run


@pytest.mark.slow
def test_phases_stopped_anywhere_give_the_same_bits(whole, parts):
    """Also at their boundary, where moments and count are reset exactly once."""
    for step in (6, 12):
        for (name, one), (_, other) in zip(
            parameters(whole, step), parameters(parts.folder / "run", step), strict=True
        ):
            assert one.tobytes() == other.tobytes(), f"{name} at {step}"


def test_every_phase_has_its_shape_and_its_own_first_batch(parts):
    # At each start all that is left, before its first step: none at the boundary.
    assert parts.compiled == [(16,), (32,), (16,), (32,), (32,), (32,)]
    for length in (16, 32):
        assert sorted({s for n, s in parts.batches if n == length}) == [0, 1, 2, 3, 4, 5]


def test_equal_phases_see_different_batches(store, phases_config):
    phases = (phases_config.phases[1], dataclasses.replace(phases_config.phases[1]))
    config = dataclasses.replace(phases_config, phases=phases)
    first, second = (
        phase_batches(config, store, store.train, phase).batch(0)["input_ids"] for phase in phases
    )
    assert not np.array_equal(first, second)


def test_records_say_their_phase(whole, store, phases_config):
    train, held_out = (read_records(whole, kind) for kind in ("train", "eval"))
    assert [(r["step"], r["phase"]) for r in train] == [(4, 0), (6, 0), (8, 1), (12, 1)]
    assert [(r["step"], r["phase"]) for r in held_out] == [(6, 0), (12, 1)]
    rows = json.loads((whole / "config.json").read_text())["data"]["rows_per_epoch"]
    assert rows == [
        phase_batches(phases_config, store, store.train, phase).rows_per_epoch
        for phase in phases_config.phases
    ]
    assert rows[0] > rows[1]


def test_what_a_phase_starts_with_is_chosen(whole, phases_config, tmp_path):
    """Resetting changes the second phase and nothing of the first."""
    optimizer = dataclasses.replace(phases_config.optimizer, phase_moments="carry")
    pretrain(dataclasses.replace(phases_config, optimizer=optimizer), tmp_path)
    for step, same in ((6, True), (12, False)):
        reset, carried = (
            np.concatenate([x.ravel() for _, x in parameters(run, step)])
            for run in (whole, tmp_path)
        )
        assert np.array_equal(reset, carried) == same, step


def with_phase(config: Config, index: int, **changes: object) -> Config:
    phases = list(config.phases)
    phases[index] = dataclasses.replace(phases[index], **changes)
    return dataclasses.replace(config, phases=tuple(phases))


def test_a_finished_phase_cannot_change(parts, phases_config, tmp_path):
    run = parts.stopped_at(8, tmp_path / "run")
    for change, said in (
        ({"steps": 7}, r"phases\[0\]\.steps"),
        ({"batch_size": 16}, r"phases\[0\]\.batch_size"),
        ({"seq_length": 24}, r"phases\[0\]\.seq_length"),
    ):
        with pytest.raises(UserError, match=f"{said}: a finished phase cannot change, and 8"):
            pretrain(with_phase(phases_config, 0, **change), run)
    at_the_end = parts.stopped_at(6, tmp_path / "6")
    with pytest.raises(UserError, match=r"phases\[0\]\.steps: a finished phase"):
        pretrain(with_phase(phases_config, 0, steps=5), at_the_end)


def test_every_value_that_stops_a_run_is_named_and_none_that_follows(
    parts, phases_config, tmp_path
):
    run = parts.stopped_at(8, tmp_path / "run")
    changed = with_phase(dataclasses.replace(phases_config, seed=5), 0, seq_length=24)
    with pytest.raises(UserError) as error:
        pretrain(dataclasses.replace(changed, phases=changed.phases[:1]), run)
    assert str(error.value) == (
        f"{run}: cannot resume with another config.seed, config.phases[1], "
        "config.phases[0].seq_length: a finished phase cannot change, and 8 steps are done; put "
        f"the old values back, or start a new run from this one: --config.init={run} --workdir=…\n"
        f"- config.seed: {phases_config.seed}\n+ config.seed: 5\n- config.phases[1]: 6 steps\n"
        "- config.phases[0].seq_length: 16\n+ config.phases[0].seq_length: 24"
    )


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"config.json": '{"model_type": "bert"}', "tokenizer.json": "1"},
            "config.json is not from a",
        ),
        (
            {"tokenizer.json": "1", "manifest.json": "2"},
            "holds manifest.json, tokenizer.json, but no config.json of a",
        ),
    ],
)
def test_files_of_others_are_not_written_over(files, said, phases_config, tmp_path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=f"{said} pretraining run; .* --workdir"):
        pretrain(phases_config, tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == files
    with pytest.raises(UserError, match="a file; give a folder"):
        pretrain(phases_config, tmp_path / "tokenizer.json")


@pytest.mark.slow
def test_the_phase_at_work_keeps_what_its_steps_saw(parts, phases_config, tmp_path):
    run = parts.stopped_at(8, tmp_path / "run")
    for change, said in (
        ({"batch_size": 16}, r"another .*phases\[1\]\.batch_size after 8"),
        ({"max_predictions": 4}, r"another .*phases\[1\]\.max_predictions after 8"),
        ({"steps": 1}, r"phases\[1\]\.steps=1 is less than the 2 steps"),
    ):
        with pytest.raises(UserError, match=said):
            pretrain(with_phase(phases_config, 1, **change), run)
    longer = with_phase(phases_config, 1, steps=7)
    third = dataclasses.replace(longer.phases[1], steps=2)
    pretrain(dataclasses.replace(longer, phases=(*longer.phases, third)), run)
    records = read_records(run, "eval")
    assert [(r["step"], r["phase"]) for r in records] == [(6, 0), (13, 1), (15, 2)]


@pytest.mark.slow
def test_a_phase_to_come_may_change(parts, phases_config, tmp_path):
    run = parts.stopped_at(6, tmp_path / "run")  # of the second phase no step is done
    pretrain(with_phase(phases_config, 1, max_predictions=4, steps=2), run)
    assert read_records(run, "eval")[-1]["step"] == 8


def test_a_refused_start_changes_nothing(store, tmp_path):
    config = small_config(store)
    with pytest.raises(StoppedError):
        pretrain(config, tmp_path / "run", options=RunOptions(stop_after=2))
    before = {p: p.read_bytes() for p in (tmp_path / "run").glob("*.json")}
    other = small_store(tmp_path / "other", words="v")
    with pytest.raises(UserError, match="trained with another tokenizer"):
        pretrain(small_config(other), tmp_path / "run")
    assert {p: p.read_bytes() for p in (tmp_path / "run").glob("*.json")} == before
