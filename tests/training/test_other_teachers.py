"""A run continues with the same teacher; with another, or without one, a new run starts from it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus import small_store
from students import config_of, exported, teacher_in

from bert_jax.api.vector_evaluation import load_model
from bert_jax.convert.compare import compare
from bert_jax.convert.sources import read_model
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import StoppedError, UserError
from bert_jax.training import loop
from bert_jax.training.options import RunOptions
from bert_jax.training.store_data import open_data
from bert_jax.training.teacher import find_teacher


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("other_teachers") / "store")


@pytest.fixture(scope="module")
def source(store: TokenStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps, `run`, and its export, `folder`."""
    return teacher_in(tmp_path_factory.mktemp("teacher"), store)


def changed_sizes(folder: Path, **sizes: int) -> None:
    """Changes the config.json of a model's folder, which then has no sums."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **sizes}))
    (folder / "SHA256SUMS").unlink(missing_ok=True)


def test_a_stopped_run_resumes_with_the_same_bits_and_only_with_its_teacher(
    store: TokenStore, source: Path, tmp_path: Path
) -> None:
    """The teacher may have moved, but not changed; another width needs a dense layer."""
    changes = {"model__hidden_size": 16, "model__intermediate_size": 32}
    config = config_of(store, teacher=str(source / "folder"), **changes)
    loop.pretrain(config, tmp_path / "whole")
    with pytest.raises(StoppedError):
        loop.pretrain(config, tmp_path / "run", options=RunOptions(stop_after=2))
    for name in ("wide", "moved"):
        shutil.copytree(source / "folder", tmp_path / name)
    changed_sizes(tmp_path / "wide", hidden_size=48)
    other = config.replace("teacher", f"{source}/run@2")
    with pytest.raises(UserError, match=r"cannot resume with another data.teacher, config.teacher"):
        loop.pretrain(other, tmp_path / "run")
    for name, says in (
        ("none", r"config\.teacher=\S+/none: no such folder; give that of a run"),
        ("wide", r"run: cannot resume with another config\.teacher after 2 steps; [^\n]*\n"
                 r"- config\.teacher: \S+/folder\n\+ config\.teacher: \S+/wide$"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=says):
            loop.pretrain(config.replace("teacher", f"{tmp_path}/{name}"), tmp_path / "run")
    loop.pretrain(config.replace("teacher", str(tmp_path / "moved")), tmp_path / "run")
    whole, resumed = exported(tmp_path / "whole"), exported(tmp_path / "run")
    assert whole.keys() == resumed.keys()
    assert not any("teacher_projection" in name for name in whole)
    for name, tensor in whole.items():
        np.testing.assert_array_equal(resumed[name], tensor, err_msg=name)
    # What only training needs is no part of the model that is looked at or compared.
    load_model(str(tmp_path / "whole")).encode(["w1 w2"])
    models = [read_model(str(tmp_path / name)) for name in ("whole", "whole_None_exported")]
    assert compare(*models, [("w1 w2",)]).first_above(1e-5) is None


def test_a_teacher_that_changed_in_its_place_is_one_line(
    store: TokenStore, source: Path, tmp_path: Path
) -> None:
    import safetensors.numpy

    folder = shutil.copytree(source / "folder", tmp_path / "taught")
    narrow = {"model__hidden_size": 16, "model__intermediate_size": 32}
    config = config_of(store, teacher=str(folder), **narrow)
    with pytest.raises(StoppedError):
        loop.pretrain(config, tmp_path / "run", options=RunOptions(stop_after=2))
    file, says = folder / "model.safetensors", "taught has changed since the run started; put the"
    tensors = safetensors.numpy.load_file(file)
    tensors["bert.embeddings.LayerNorm.bias"] += 1
    safetensors.numpy.save_file(tensors, file, {"format": "pt"})
    for sizes in ({}, {"hidden_size": 48}):  # the second is said before its weights are read
        changed_sizes(folder, **sizes)
        with pytest.raises(UserError, match=rf"^\S+/run: config\.teacher=\S+/{says}") as error:
            loop.pretrain(config, tmp_path / "run")
        assert "\n" not in str(error.value)
    own = config.replace("distillation.cosine_weight", 0.0)
    with pytest.raises(
        UserError, match=r"another config\.distillation\.cosine_weight after 2 steps"
    ):
        loop.pretrain(own, tmp_path / "run")


def test_a_student_goes_on_with_a_teacher_of_another_width_or_without_one(
    store: TokenStore, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Its dense layer to the states of the first teacher is of no use to the second."""
    narrow = {"model__hidden_size": 16, "model__intermediate_size": 32}
    loop.pretrain(config_of(store, teacher=str(source / "folder"), **narrow), tmp_path / "first")
    loop.pretrain(config_of(store, model__hidden_size=48), tmp_path / "wide")
    again: dict[str, Any] = {"init": f"{tmp_path}/first@4", "phases[0].steps": 6, **narrow}
    wide = {"teacher": f"{tmp_path}/wide@4", "init_optimizer": "carry"}
    cases = {"new, with random values": wide, "left out": {}}
    for what, changes in cases.items():
        capsys.readouterr()
        loop.pretrain(config_of(store, **again, **changes), tmp_path / what)
        assert f"; {what}: teacher projection\n" in capsys.readouterr().out


def test_a_teacher_that_reads_text_otherwise_is_named(
    store: TokenStore, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """With the same entries, such as one that reads Chinese characters as one word."""
    folder = shutil.copytree(source / "folder", tmp_path / "folder")
    values = json.loads((folder / "tokenizer.json").read_text())
    values["normalizer"]["handle_chinese_chars"] = False
    (folder / "tokenizer.json").write_text(json.dumps(values))
    values = json.loads((folder / "tokenizer_config.json").read_text())
    values["tokenize_chinese_chars"] = False
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    (folder / "SHA256SUMS").unlink()
    for place, times in ((source / "folder", 0), (folder, 1)):
        config = config_of(store, teacher=str(place))
        find_teacher(config, open_data(config))
        said = f"config.teacher={place}: the model reads "
        assert capsys.readouterr().err.count(said) == times
