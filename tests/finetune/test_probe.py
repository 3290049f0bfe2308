"""A linear head on chosen layers of a frozen encoder: what it reads and trains, its errors."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest
from runs import read_meta, read_records
from small_task import DEV, task_config, write_task

import bert_jax
from bert_jax import cli
from bert_jax.api.model import Model
from bert_jax.checkpoint import manager
from bert_jax.config.schema import ComputeConfig, Config
from bert_jax.errors import UserError
from bert_jax.finetune.predictor import Predictor
from bert_jax.finetune.runs import finetune
from bert_jax.finetune.task_data import open_task
from bert_jax.finetune.tasks.encoding import encode
from bert_jax.objectives.known_objectives import learned_by
from bert_jax.objectives.pretraining_model import init_params
from bert_jax.workdir.layout import Workdir

TEXTS = ["bal bel dil", "fom", "gun gir bal dom fel bin"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trains the whole model, to start from."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    finetune(task_config(folder, mesh__data=-1, task__epochs=0.2), run)
    return run


def untrained(config: Config) -> tuple[dict, Model, list[np.ndarray]]:
    """Random parameters, their encoder as a model, and their logits for `TEXTS`."""
    data = open_task(config, Workdir.open("/nowhere/run"))
    config = data.configured(config)
    key, plain = jax.random.key(1), ComputeConfig.plain()
    params = init_params(config.model, plain, learned_by(config), key)
    encoded = encode(data.tokenizer, config.model, [(text,) for text in TEXTS], 32)
    found = Predictor(config.model, params, data.tokenizer).logits(encoded)
    encoder = {"encoder": params["encoder"]}
    return params, Model(config.model, encoder, data.tokenizer, frozenset(encoder)), found


@pytest.mark.parametrize(
    ("layers", "join", "pooling", "width"),
    [("-2:", "concat", "mean", 64), ("0,2", "mean", "cls", 32), ("1", "concat", "max", 32)],
)
@pytest.mark.parametrize("norm", ["post", pytest.param("pre", marks=pytest.mark.slow)])
def test_the_head_is_linear_in_the_vectors_of_embed(
    folder: Path, layers: str, join: str, pooling: str, width: int, norm: str
) -> None:
    changes = {"task__layers": layers, "task__join": join, "task__pooling": pooling}
    changes |= {"model__norm_position": norm}
    params, model, found = untrained(task_config(folder, **changes))
    vectors = model.encode(TEXTS, layers=layers, join=join, pooling=pooling)
    output = jax.tree.map(np.asarray, params["classifier"]["output"])
    assert vectors.shape == (len(TEXTS), width)
    assert output["kernel"].shape == (width, 2)
    assert set(params["encoder"]) >= {"embeddings", "layers"}
    assert "pooler" not in params["encoder"]
    np.testing.assert_allclose(found, vectors @ output["kernel"] + output["bias"], atol=1e-5)


def test_several_pools_are_joined_in_their_order(folder: Path) -> None:
    changes = {"task__layers": "-2:", "task__pooling": "lasttoken,cls"}
    params, model, found = untrained(task_config(folder, **changes))
    states = model.hidden_states(TEXTS, layers="-2:")
    vectors = np.stack([np.concatenate([one[-1], one[0]]) for one in states])
    output = jax.tree.map(np.asarray, params["classifier"]["output"])
    np.testing.assert_allclose(found, vectors @ output["kernel"] + output["bias"], atol=1e-5)


def test_the_head_of_tags_is_linear_in_the_states_of_tokens(folder: Path) -> None:
    config = task_config(folder, task__name="tagging", task__layers="1:")
    params, model, found = untrained(config)
    output = jax.tree.map(np.asarray, params["tagger"]["output"])
    for logits, states in zip(found, model.hidden_states(TEXTS, layers="1:"), strict=True):
        assert states.shape[1] == 64
        np.testing.assert_allclose(logits, states @ output["kernel"] + output["bias"], atol=1e-5)


@pytest.mark.slow
def test_only_the_head_is_trained_and_it_predicts(
    folder: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"init": str(whole), "task__layers": "-2:", "task__evaluations": 2}
    config = task_config(folder, mesh__data=-1, optimizer__learning_rate=0.05, **changes)
    finetune(config, tmp_path / "probe")
    said = "transformers has no class with a linear head on chosen layers"
    assert said in capsys.readouterr().err
    before, _ = manager.load_params(Workdir.open(whole))
    after, meta = manager.load_params(Workdir.open(tmp_path / "probe"))
    before["encoder"].pop("pooler")
    jax.tree.map(np.testing.assert_array_equal, before["encoder"], after["encoder"])
    paths = read_meta(tmp_path / "probe", meta["step"])["fingerprints"]
    moments = [path for path in paths if "/mu/" in path or "/nu/" in path]
    assert len(moments) == 4  # of the kernel and of the bias
    assert not any("encoder" in path for path in moments)
    losses = [record["loss"] for record in read_records(tmp_path / "probe", "eval")]
    assert losses[-1] < losses[0]
    out = tmp_path / "predictions.tsv"
    words = [f"--model={tmp_path / 'probe'}", f"--input={folder}", "--split=dev", f"--out={out}"]
    assert cli.main(["predict", *words]) == 0
    dev = [line.split("\t") for line in (folder / "dev.tsv").read_text().splitlines()[1:]]
    lines = out.read_text().splitlines()[1:]
    right = sum(line == f"{row[0]}\t{row[3]}" for line, row in zip(lines, dev, strict=True))
    (*_, last) = read_records(tmp_path / "probe", "eval")
    assert right / DEV == pytest.approx(last["task/accuracy"])
    with pytest.raises(UserError, match=said) as raised:
        bert_jax.export(tmp_path / "probe", tmp_path / "out")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("lamb", marks=pytest.mark.slow),
                                       pytest.param("muon", marks=pytest.mark.slow)])  # fmt: skip
def test_empty_places_of_packed_rows_change_nothing(
    folder: Path, whole: Path, tmp_path: Path, optimizer: str
) -> None:
    """With the largest state of a text, which an empty place does not have."""
    changes = {"init": str(whole), "task__layers": "1,2", "task__pooling": "max"}
    changes |= {"optimizer__name": optimizer, "optimizer__eps": 1.0, "task__epochs": 0.3}
    for name, examples in (("packed", 8), ("padded", 1)):
        config = task_config(
            folder, mesh__data=-1, **{"phases[0]__examples_per_row": examples}, **changes
        )
        finetune(config, tmp_path / name)
    (packed, _), (padded, _) = (
        manager.load_params(Workdir.open(tmp_path / name)) for name in ("packed", "padded")
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), packed, padded)
    one, other = (read_records(tmp_path / name, "eval")[-1] for name in ("packed", "padded"))
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-6)


@pytest.mark.slow
def test_a_head_on_other_layers_is_not_taken(
    folder: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither by a run with a head on other layers nor by one that trains all."""
    first = task_config(folder, mesh__data=-1, init=str(whole), task__epochs=0.1, task__layers="1")
    finetune(first, tmp_path / "first")
    for layers in ("2", ""):
        capsys.readouterr()
        changes = {"init": str(tmp_path / "first"), "task.layers": layers}
        finetune(first.replace(changes), tmp_path / f"then{layers}")
        assert "sequence-classification head" in capsys.readouterr().out
    capsys.readouterr()
    finetune(first.replace({"init": str(tmp_path / "first")}), tmp_path / "same")
    assert f"starts from {tmp_path / 'first'}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task__layers": "3"}, "config.task.layers: 3 is not from 0 (the embeddings) to 2"),
        ({"task__layers": "last"}, "config.task.layers='last'; give numbers and ranges"),
        ({"task__join": "mean"}, "config.task.join=mean has no effect without"),
        ({"task__pooling": "cls"}, "config.task.pooling=cls has no effect without"),
        (
            {"task__layers": "-1", "task__pooling": "max", "task__name": "tagging"},
            "config.task.pooling=max has no effect for tagging",
        ),
        (
            {"task__layers": "-1", "optimizer__layer_decay": 0.8},
            "config.optimizer.layer_decay=0.8 has no effect with",
        ),
    ],
)
def test_settings_without_effect_are_refused(
    folder: Path, tmp_path: Path, changes: dict, message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        finetune(task_config(folder, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
