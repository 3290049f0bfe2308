"""`config.init`: runs that start from a model."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from corpus import small_config, small_store

import bert_jax
from bert_jax.checkpoint import manager
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import UserError
from bert_jax.publish.export import run_export
from bert_jax.training import loop
from bert_jax.training.options import RunOptions
from bert_jax.training.resolve import find_architecture
from bert_jax.workdir.layout import Workdir


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("initial") / "store")


@pytest.fixture(scope="module")
def source(store: TokenStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workdir with checkpoints of steps 1 and 2, and its export in `exported` beside it."""
    folder = tmp_path_factory.mktemp("source")
    config = small_config(store).replace({"phases[0].steps": 2, "checkpoint.every_steps": 1})
    loop.pretrain(config, folder / "run")
    run_export(folder / "run", folder / "exported")
    return folder


def unmoved(store: TokenStore, **changes: object) -> Config:
    """A run of two steps whose learning rate is zero; its random values are not the source's."""
    zero = {"phases[0].steps": 2, "optimizer.learning_rate": 0.0, "seed": 5}
    config = small_config(store).replace(zero)
    return config.replace({key.replace("__", "."): value for key, value in changes.items()})


def exported(run: Path) -> dict[str, np.ndarray]:
    run_export(run, run.parent / f"{run.name}_exported")
    return safetensors.numpy.load_file(run.parent / f"{run.name}_exported/model.safetensors")


def assert_same(state: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert state.keys() == other.keys()
    for name, tensor in state.items():
        np.testing.assert_array_equal(tensor, other[name], err_msg=name)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("exported", marks=pytest.mark.slow),
        pytest.param("run", marks=pytest.mark.slow),
        "run@2",
    ],
)
def test_a_run_starts_with_every_bit_of_its_model(
    name: str, store: TokenStore, source: Path, tmp_path: Path
) -> None:
    loop.pretrain(unmoved(store, init=str(source / name)), tmp_path / "run")
    whole = safetensors.numpy.load_file(source / "exported/model.safetensors")
    assert_same(exported(tmp_path / "run"), whole)


def test_other_dropout_than_the_model_has_is_said(
    store: TokenStore, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    said = "the model has other dropout than this run"
    loop.pretrain(unmoved(store, init=f"{source}/run@1"), tmp_path / "same")
    assert said not in capsys.readouterr().out
    other = {"init": f"{source}/run@1", "model__hidden_dropout_prob": 0.25}
    loop.pretrain(unmoved(store, **other), tmp_path / "run")
    rate = small_config(store).model.hidden_dropout_prob
    assert f"{said}: --config.model.hidden_dropout_prob={rate} " in capsys.readouterr().out


def test_an_earlier_step_of_a_run_can_be_named(
    store: TokenStore, source: Path, tmp_path: Path
) -> None:
    loop.pretrain(unmoved(store, init=f"{source}/run@1"), tmp_path / "run")
    run_export(source / "run", tmp_path / "first", 1)
    first = safetensors.numpy.load_file(tmp_path / "first/model.safetensors")
    assert_same(exported(tmp_path / "run"), first)


@pytest.mark.slow
def test_a_part_that_the_model_lacks_keeps_its_random_values(
    store: TokenStore, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    alone = tmp_path / "alone"
    shutil.copytree(source / "exported", alone)
    state = safetensors.numpy.load_file(alone / "model.safetensors")
    kept = {k: v for k, v in state.items() if "pooler" not in k and "seq_relationship" not in k}
    safetensors.numpy.save_file(kept, alone / "model.safetensors")
    (alone / "SHA256SUMS").unlink()
    loop.pretrain(unmoved(store, init=str(alone)), tmp_path / "run")
    new = "next-sentence or sentence-order head, pooler\n"
    assert f"starts from {alone}; new, with random values: {new}" in capsys.readouterr().out
    loop.pretrain(unmoved(store), tmp_path / "random")
    random = exported(tmp_path / "random")
    assert_same(exported(tmp_path / "run"), random | kept)


def test_the_head_of_a_task_is_left_out(
    store: TokenStore, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    task = tmp_path / "task"
    shutil.copytree(source / "exported", task)
    state = safetensors.numpy.load_file(task / "model.safetensors")
    encoder = {k: v for k, v in state.items() if not k.startswith("cls.")}
    width = state["bert.pooler.dense.bias"].shape
    head = {"classifier.weight": np.ones((2, *width), "f"), "classifier.bias": np.ones(2, "f")}
    safetensors.numpy.save_file(encoder | head, task / "model.safetensors")
    values = json.loads((task / "config.json").read_text())
    values["architectures"] = ["BertForSequenceClassification"]
    (task / "config.json").write_text(json.dumps(values))
    (task / "SHA256SUMS").unlink()
    loop.pretrain(unmoved(store, init=str(task)), tmp_path / "run")
    heads = "masked-language-model head, next-sentence or sentence-order head"
    said = f"new, with random values: {heads}; left out: sequence-classification head\n"
    assert f"starts from {task}; {said}" in capsys.readouterr().out
    result = exported(tmp_path / "run")
    assert_same({name: result[name] for name in encoder}, encoder)


@pytest.mark.slow
def test_a_model_with_more_positions_gives_the_first(
    store: TokenStore, source: Path, tmp_path: Path
) -> None:
    shorter = {"model.max_position_embeddings": 16, "phases[0].seq_length": 16}
    config = unmoved(store, init=str(source / "exported")).replace(shorter)
    loop.pretrain(config, tmp_path / "run")
    params, _ = manager.load_params(Workdir.open(tmp_path / "run"))
    longer, _ = manager.load_params(Workdir.open(source / "run"))
    rows = params["encoder"]["embeddings"]["position"]
    np.testing.assert_array_equal(rows, longer["encoder"]["embeddings"]["position"][:16])


def imported_copy(source: Path, folder: Path) -> str:
    """Copies the export as if it had been imported; returns the origin that it names."""
    shutil.copytree(source / "exported", folder)
    (folder / "SHA256SUMS").unlink()
    file, origin = folder / "config.json", "hf:org/bert@0123456789abcdef"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"imported_from": origin}))
    return origin


@pytest.mark.slow
def test_a_run_that_resumes_needs_its_model_no_more(
    store: TokenStore, source: Path, tmp_path: Path
) -> None:
    origin = imported_copy(source, tmp_path / "model")
    config = small_config(store).replace({"init": str(tmp_path / "model"), "phases[0].steps": 4})
    with pytest.raises(bert_jax.errors.StoppedError):
        loop.pretrain(config, tmp_path / "run", options=RunOptions(stop_after=2))
    shutil.rmtree(tmp_path / "model")
    loop.pretrain(config, tmp_path / "run")
    undisturbed = config.replace("init", str(source / "exported"))
    loop.pretrain(undisturbed, tmp_path / "undisturbed")
    assert_same(exported(tmp_path / "run"), exported(tmp_path / "undisturbed"))
    recorded = json.loads((tmp_path / "run/config.json").read_text())
    other = json.loads((tmp_path / "undisturbed/config.json").read_text())
    assert recorded["data"]["init"] == other["data"]["init"]
    assert manager.load_params(Workdir.open(tmp_path / "run"))[1]["init_origin"] == origin
    assert f"| started from | {origin} |" in (tmp_path / "run_exported/README.md").read_text()


def test_resuming_with_another_model_is_refused(
    store: TokenStore, source: Path, tmp_path: Path
) -> None:
    config = small_config(store).replace({"init": f"{source}/run@1", "phases[0].steps": 4})
    with pytest.raises(bert_jax.errors.StoppedError):
        loop.pretrain(config, tmp_path / "run", options=RunOptions(stop_after=2))
    with pytest.raises(UserError, match=r"cannot resume with another data\.init, config\.init"):
        loop.pretrain(config.replace("init", f"{source}/run@2"), tmp_path / "run")
    shutil.copytree(source / "run", tmp_path / "moved")
    loop.pretrain(config.replace("init", f"{tmp_path}/moved@1"), tmp_path / "run")  # the same


def test_a_link_to_a_file_outside_is_not_followed(
    store: TokenStore, source: Path, tmp_path: Path
) -> None:
    shutil.copytree(source / "exported", tmp_path / "model")
    shutil.move(tmp_path / "model/model.safetensors", tmp_path / "outside")
    (tmp_path / "model/model.safetensors").symlink_to(tmp_path / "outside")
    config = unmoved(store, init=str(tmp_path / "model"))
    with pytest.raises(UserError, match=r"^[^\n]*model/model\.safetensors: a symbolic link to a f"):
        loop.pretrain(config, tmp_path / "run")
    with pytest.raises(UserError, match=r"^[^\n]*model/model\.safetensors: a symbolic link to a f"):
        find_architecture(config.init)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["workdir", "export"])
def test_a_run_passes_on_the_model_that_it_started_from(
    form: str, store: TokenStore, source: Path, tmp_path: Path
) -> None:
    origin = imported_copy(source, tmp_path / "model")
    loop.pretrain(unmoved(store, init=str(tmp_path / "model")), tmp_path / "first")
    exported(tmp_path / "first")
    first = tmp_path / ("first" if form == "workdir" else "first_exported")
    loop.pretrain(unmoved(store, init=str(first)), tmp_path / "second")
    assert manager.load_params(Workdir.open(tmp_path / "second"))[1]["init_origin"] == origin
    exported(tmp_path / "second")
    assert f"| started from | {origin} |" in (tmp_path / "second_exported/README.md").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model.hidden_size": 64, "model.num_hidden_layers": 1},
            "--config.model.hidden_size=32 --config.model.num_hidden_layers=2",
        ),
        ({"model.max_position_embeddings": 64}, "--config.model.max_position_embeddings=32"),
        ({"init": "absent"}, "absent: no such folder"),
        ({"init": "run@7"}, "no checkpoint of step 7"),
        ({"init": "google"}, "import it first: bert-jax convert import --from="),
        ({"init": "model.zip"}, "import it first: bert-jax convert import --from="),
        ({"init": "hf:a/b/c"}, "hf:a/b/c: not a model's name; write hf:OWNER/NAME[@REVISION]"),
    ],
)
def test_a_model_that_does_not_fit_is_one_line(
    changes: dict, message: str, store: TokenStore, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "google").mkdir()
    (tmp_path / "google/bert_config.json").write_text("{}")
    (tmp_path / "model.zip").write_bytes(b"")
    if "init" in changes:
        name = changes["init"]
        folder = tmp_path if (tmp_path / name).exists() else source
        changes = {"init": name if name.startswith("hf:") else str(folder / name)}
    config = small_config(store).replace({"init": str(source / "exported")} | changes)
    with pytest.raises(UserError) as refused:
        loop.pretrain(config, tmp_path / "run")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_store_of_another_vocabulary_is_refused(source: Path, tmp_path: Path) -> None:
    other = small_store(tmp_path / "store", words="x")
    config = small_config(other).replace("init", str(source / "exported"))
    with pytest.raises(UserError, match=r"its vocabulary is not that of the store .* --tokenizer="):
        loop.pretrain(config, tmp_path / "run")
    without = tmp_path / "without"  # its tokenizer is in files that a store does not take
    shutil.copytree(source / "exported", without)
    for name in ("tokenizer.json", "SHA256SUMS"):
        (without / name).unlink()
    with pytest.raises(UserError, match=rf"with the tokenizer.json that .*--from={without} --out="):
        loop.pretrain(config.replace("init", str(without)), tmp_path / "run")
