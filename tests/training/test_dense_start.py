"""A run starts from one that trained dense layers on its vectors, and from its exports."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_task import pairs_config, write_pairs

from bert_jax import cli
from bert_jax.config.schema import Config
from bert_jax.errors import UserError
from bert_jax.exit_codes import DONE, FAILED
from bert_jax.finetune.runs import finetune
from bert_jax.finetune.task_data import open_task
from bert_jax.publish.export import run_export
from bert_jax.training.initial import InitialState, find_initial
from bert_jax.workdir.layout import Workdir

pytestmark = pytest.mark.slow
DENSE = "25:GELU,16:Identity:residual"
OTHERS = ("25:Tanh,16:Identity:residual", "12,16", "16", "")  # the last width is the same
NOWHERE = Workdir.open("/nowhere/run")


def config_of(folder: Path, kind: str = "sentence_pairs", **changes: Any) -> Config:
    settings = {"task__epochs": 1.0, "mesh__data": -1, "task__dense": DENSE, **changes}
    return pairs_config(folder / "task", kind, **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has a run of each of two kinds, and exports of the first."""
    folder = tmp_path_factory.mktemp("dense")
    write_pairs(folder / "task")
    finetune(config_of(folder, optimizer__ema_decay=0.9), folder / "run")
    finetune(config_of(folder, "labeled_pairs"), folder / "labeled")
    run_export(folder / "run", folder / "exported", optimizer_state=True)
    return folder


def start(folder: Path, source: str, kind: str = "sentence_pairs", **changes: Any) -> InitialState:
    """The arrays that a run takes from a model of `folder`."""
    carried = {"task__epochs": 3.0, "init": str(folder / source), "task__tokenizer": ""}
    config = config_of(folder, kind, **{**carried, **changes})
    data = open_task(config, NOWHERE)
    found = find_initial(data.configured(config), NOWHERE, data)
    assert found
    return found.read()


def dense_parts(found: InitialState, part: str) -> dict[str, np.ndarray]:
    """The arrays of dense layers of a part of the state, by their paths without the head."""
    return {
        re.sub(r"\w+/dense_", "dense_", path): leaf
        for path, leaf in found.leaves.items()
        if path.startswith(part) and "/dense_" in path
    }


@pytest.mark.parametrize("kind", ["sentence_pairs", "scored_pairs", "labeled_pairs"])
@pytest.mark.parametrize("source", ["run", "exported"])
def test_moments_go_where_the_weights_go(folder: Path, kind: str, source: str) -> None:
    """Also into the head of another kind."""
    first = start(folder, "run", init_optimizer="carry")
    found = start(folder, source, kind, init_optimizer="carry")
    for part, count in (("params/", 5), ("opt/", 10)):
        given, taken = dense_parts(first, part), dense_parts(found, part)
        assert given.keys() == taken.keys()
        assert len(given) == count
        for name, leaf in given.items():
            np.testing.assert_array_equal(taken[name], leaf)
    heads = {path.split("/")[1] for path in found.leaves if "/dense_" in path and "params" in path}
    (name,) = heads
    assert all(f"/{name}/" in path for path in found.leaves if "/dense_" in path)


def test_an_average_of_other_layers_is_not_taken(folder: Path) -> None:
    carry = {"init_optimizer": "carry", "optimizer__ema_decay": 0.9}
    assert len(dense_parts(start(folder, "run", **carry), "ema/")) == 5
    for dense in OTHERS[:3]:
        with pytest.raises(UserError, match="has no average of all weights with"):
            start(folder, "run", task__dense=dense, **carry)
    assert not dense_parts(start(folder, "run", task__dense="", **carry), "ema/")


def test_an_output_layer_on_other_dense_layers_is_not_taken(folder: Path) -> None:
    def output(found: InitialState) -> list[str]:
        return [path for path in found.leaves if "/output/" in path and "classifier" in path]

    assert len(output(start(folder, "labeled", "labeled_pairs"))) == 2
    for dense in OTHERS:
        assert not output(start(folder, "labeled", "labeled_pairs", task__dense=dense))


def test_verify_compares_the_vectors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = str(folder / "run"), folder / "exported"
    assert cli.main(["convert", "verify", first, str(second)]) == DONE
    said = " ".join(capsys.readouterr().out.split())
    assert "sentence vector" in said
    assert "weights: all equal" in said
    assert "only" not in said
    assert "not compared" not in said
    changed = folder / "changed"
    shutil.copytree(second, changed)
    (changed / "SHA256SUMS").unlink()
    file = changed / "3_Dense/model.safetensors"
    tensors = load_file(file)
    tensors["linear.weight"] = tensors["linear.weight"] + 1
    save_file(tensors, file, {"format": "pt"})
    assert cli.main(["convert", "verify", first, str(changed)]) == FAILED
    said = " ".join(capsys.readouterr().out.split())
    wanted = "tensors not equal, most sentence_encoder.2.linear.weight: 1"
    assert wanted in said
    assert cli.main(["convert", "verify", str(folder / "labeled"), first]) == FAILED
    said = " ".join(capsys.readouterr().out.split())
    assert "not compared: mean pooling, a dense layer of 25" not in said  # the same parts


def test_dense_layers_are_exported_in_the_dtype_of_the_weights(folder: Path) -> None:
    words = [f"--workdir={folder / 'run'}", f"--out={folder / 'half'}", "--dtype=bfloat16"]
    assert cli.main(["convert", "export", *words]) == DONE
    tensors = load_file(folder / "half/2_Dense/model.safetensors")
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"bfloat16"}
