"""Models on the hub in a run: what it starts from and learns from, and the commits it records."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy
from corpus import small_config, small_store
from exported import random_params
from hub_server import Hub, commit_of, serve, use_endpoint

import bert_jax
from bert_jax import cli
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.exit_codes import FAILED
from bert_jax.publish.export import export, run_export
from bert_jax.publish.model_card import Card
from bert_jax.storage import hub
from bert_jax.training import hub_names, loop
from bert_jax.workdir.layout import Workdir

COMMIT = commit_of("main")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("hub") / "store")


@pytest.fixture(scope="module")
def model(store: TokenStore, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a model with the store's vocabulary."""
    folder = tmp_path_factory.mktemp("model") / "model"
    config = small_config(store).model
    tokenizer = Tokenizer.load(store.tokenizer_path)
    export(random_params(config), config, tokenizer, folder, card=Card())
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def server(
    model: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hub]:
    with serve(Hub({"org/bert": {"main": model, "v1": model}})) as server:
        use_endpoint(monkeypatch, server.endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", f"{tmp_path}/cache")
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        yield server


def other(model: dict[str, bytes]) -> dict[str, bytes]:
    """The same model with other weights."""
    changed = {
        name: array + np.float32(1)
        for name, array in safetensors.numpy.load(model["model.safetensors"]).items()
    }
    files = model | {"model.safetensors": safetensors.numpy.save(changed)}
    return {name: data for name, data in files.items() if name != "SHA256SUMS"}


@pytest.mark.slow
def test_a_run_stays_with_the_commits_that_it_started_with(
    server: Hub, store: TokenStore, model: dict[str, bytes], tmp_path: Path
) -> None:
    changes = {"phases[0].steps": 1, "optimizer.learning_rate": 0.0}
    names = {"init": "hf:org/bert", "teacher": "hf:org/bert@v1"}
    config = small_config(store).replace(changes | names)
    loop.pretrain(config, tmp_path / "run")
    said = json.loads((tmp_path / "run/config.json").read_text())
    assert said["config"]["init"] == "hf:org/bert"
    assert said["hub"] == {"models/org/bert": COMMIT, "models/org/bert@v1": commit_of("v1")}
    assert said["init_origin"] == f"hf:org/bert@{COMMIT}"
    run_export(tmp_path / "run", tmp_path / "exported")
    state = safetensors.numpy.load_file(tmp_path / "exported/model.safetensors")
    for name, array in safetensors.numpy.load(model["model.safetensors"]).items():
        np.testing.assert_array_equal(state[name], array, err_msg=name)
    server.move("org/bert", "main", other(model))
    server.move("org/bert", "v1", other(model))
    hub.forget()  # as a process that starts later
    asked = len(server.requests)
    loop.pretrain(config, tmp_path / "run")
    assert len(server.requests) == asked
    hub.forget()
    with pytest.raises(UserError, match=r"another data\.init"):
        loop.pretrain(config.replace("init", "hf:org/bert@main"), tmp_path / "run")


@pytest.mark.slow
def test_what_a_run_or_a_store_has_recorded_holds_for_it_alone(
    server: Hub, store: TokenStore, model: dict[str, bytes], tmp_path: Path
) -> None:
    changes = {"phases[0].steps": 1, "init": "hf:org/bert"}
    config = small_config(store).replace(changes)
    texts = [f"The cat sees {n} dogs. A dog sees {n} cats." for n in range(60)]
    bert_jax.pretrain(config, tmp_path / "run")
    bert_jax.build_store(texts, tmp_path / "store", tokenizer="hf:org/bert", progress=False)
    name = hub.parse_model("hf:org/bert")
    server.move("org/bert", "main", other(model))
    moved = hub.commit_of(name)
    assert moved != COMMIT
    bert_jax.pretrain(config, tmp_path / "run")
    assert hub.commit_of(name) == moved
    built = bert_jax.build_store(texts, tmp_path / "store", tokenizer="hf:org/bert", progress=False)
    assert json.loads((built.path / "manifest.json").read_text())["build"]["hub"] == {
        "models/org/bert": COMMIT
    }
    assert hub.commit_of(name) == moved


def test_the_architecture_and_the_vocabulary_are_found_there(server: Hub) -> None:
    values = {"phases[0].seq_length": 32, "phases[0].max_predictions": 5}
    config = bert_jax.config("continue_domain", {"init": "hf:org/bert"} | values)
    assert config.model.hidden_size == 32
    task = {"task.name": "classification", "task.tokenizer": "hf:org/bert", **values}
    tokenizer = json.loads(
        (hub.fetch(hub.parse_model("hf:org/bert"), ["*.json"]) / "tokenizer.json").read_text()
    )
    assert bert_jax.config("tiny", task).model.vocab_size == len(tokenizer["model"]["vocab"])


def test_all_processes_take_the_commit_that_the_first_finds(
    server: Hub, store: TokenStore, tmp_path: Path
) -> None:
    config = dataclasses.replace(small_config(store), init="hf:org/bert")
    peers = SimpleNamespace(is_first=False)
    peers.all_gather_text = lambda name, text: [json.dumps({"models/org/bert": "0" * 40}), text]
    hub_names.agree(config, Workdir.open(tmp_path / "run"), peers)
    assert hub.commit_of(hub.parse_model("hf:org/bert")) == "0" * 40
    assert not server.requests


def test_a_model_that_changes_while_a_job_starts_is_refused(
    server: Hub, store: TokenStore, tmp_path: Path
) -> None:
    values = {"phases[0].seq_length": 32, "phases[0].max_predictions": 5}
    config = bert_jax.config("continue_domain", {"init": "hf:org/bert", **values})
    other = {"models/org/bert": "0" * 40}  # found by process 0 a moment earlier
    peers = SimpleNamespace(is_first=False)
    peers.all_gather_text = lambda name, text: [json.dumps(other), text]
    expected = f"hf:org/bert: was changed on the hub while .* commit: hf:org/bert@{COMMIT}"
    with pytest.raises(UserError, match=expected):
        hub_names.agree(config, Workdir.open(tmp_path / "run"), peers)


@pytest.mark.parametrize("key", ["init", "teacher"])
def test_a_model_that_is_not_there_is_one_line(
    key: str, server: Hub, store: TokenStore, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["--config=tiny", f"--config.data.store={store.path}", f"--workdir={tmp_path}/run"]
    assert cli.main(["pretrain", *words, f"--config.{key}=hf:org/none"]) == FAILED
    line = capsys.readouterr().err
    assert line.count("\n") == line.count("error: hf:org/none: no such model; check the name") == 1
    assert not (tmp_path / "run").exists()


def test_a_damaged_file_is_named_as_on_the_hub(server: Hub, model: dict[str, bytes]) -> None:
    values = json.dumps(json.loads(model["config.json"]) | {"model_type": "xlnet"}).encode()
    files = {name: data for name, data in model.items() if name != "SHA256SUMS"}
    server.move("org/bert", "main", files | {"config.json": values})
    with pytest.raises(UserError, match=r"^hf:org/bert/config\.json: model_type='xlnet'"):
        bert_jax.load("hf:org/bert")
