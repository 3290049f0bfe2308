"""What made vectors in the model that a run starts from is taken, or named if the run makes its own
without."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported import random_params
from small_task import pairs_config, task_config, write_pairs

from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.config.recorded import head_of, recorded
from bert_jax.config.schema import Config
from bert_jax.config.sentence_parts import Dense, Dropout, Normalize, Pooling
from bert_jax.config.task_model import TaskModelConfig, without_head
from bert_jax.convert.run_encoder import encoder_of_run
from bert_jax.convert.sentence_encoder import SentenceEncoder
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.finetune.task_data import TaskData, open_task
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card
from bert_jax.training.initial import find_initial
from bert_jax.training.initial_encoder import left_out
from bert_jax.workdir.layout import Workdir

NOWHERE = Workdir.open("/nowhere/run")
OWN: dict[str, Any] = {
    "task__pooling": "cls", "task__normalize": False,
    "task__query_prompt": "query: ", "task__passage_prompt": "passage: ",
    "phases[0].seq_length": 48,
}  # fmt: skip
PARTS = (
    "cls pooling (config.task.pooling=cls), "
    "vectors of any length (config.task.normalize=False), "
    "query prompt (config.task.query_prompt='query: '), "
    "passage prompt (config.task.passage_prompt='passage: '), "
    "texts of 48 tokens (config.phases[0].seq_length=48)"
)
LINE = f"left out, of a sentence encoder: {PARTS}"
POOL = Pooling(("mean",), True, 32)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("pairs") / "task")


def opened(task: Path, kind: str = "sentence_pairs", **changes: Any) -> tuple[Config, TaskData]:
    config = (task_config if kind == "rte" else partial(pairs_config, name=kind))(task, **changes)
    data = open_task(config, NOWHERE)
    return data.configured(config), data


def notes_from(source: Path, task: Path, **changes: Any) -> list[str]:
    config, data = opened(task, init=str(source), task__tokenizer="", **changes)
    found = find_initial(config, NOWHERE, data)
    assert found
    return [line for line in found.read().notes if "sentence encoder" in line]


def line_of(task: Path, kind: str, theirs: SentenceEncoder, **changes: Any) -> str:
    config, data = opened(task, kind, **changes)
    return "".join(left_out(theirs, config, data.tokenizer))


def test_a_folder_of_sentence_transformers(task: Path, tmp_path: Path) -> None:
    config, data = opened(task, **OWN)
    model = without_head(config.model)
    export(
        random_params(model, ()), model, data.tokenizer, tmp_path / "encoder",
        card=Card(origin="x"), sentence=encoder_of_run(config),
    )  # fmt: skip
    assert notes_from(tmp_path / "encoder", task) == [LINE]
    assert notes_from(tmp_path / "encoder", task, **OWN) == []


def test_a_run_that_trained_vectors(task: Path, tmp_path: Path) -> None:
    config, data = opened(task, **OWN)
    meta = {
        "config": recorded(config),
        "data": {"tokenizer": data.tokenizer.digest, **head_of(config.model)},
    }
    checkpoints = RunCheckpoints(Workdir.open(tmp_path / "run"), config.checkpoint)
    params = jax.tree.map(jnp.asarray, random_params(without_head(config.model), ()))
    checkpoints.save({"step": jnp.int32(2), "params": params, "opt": {"x": jnp.ones(2)}}, meta)
    checkpoints.close()
    data.tokenizer.save(tmp_path / "run/tokenizer.json")
    assert notes_from(tmp_path / "run", task) == [LINE]
    assert notes_from(tmp_path / "run", task, **OWN) == []


def test_only_keys_that_the_run_has_are_named(task: Path) -> None:
    prompts = {"query": "q: ", "document": "d: ", "clustering": "c: ", "none": ""}
    theirs = SentenceEncoder((POOL, Normalize()), ({}, {}), prompts=prompts)
    query = "query prompt (config.task.query_prompt='q: ')"
    others = "passage prompt, prompts of other names ('clustering')"
    assert line_of(task, "rte", theirs).endswith(
        f": mean pooling, normalization, query prompt, {others}"
    )
    for kind in ("sentence_pairs", "scored_pairs"):
        assert line_of(task, kind, theirs).endswith(
            f": {query}, passage prompt (config.task.passage_prompt='d: '), "
            "prompts of other names ('clustering')"
        )


def test_a_default_prompt_is_that_of_both_sides(task: Path) -> None:
    theirs = SentenceEncoder(
        (POOL, Normalize()), ({}, {}), prompts={"x": "x: "}, default_prompt="x"
    )
    both = [f"{side} prompt (config.task.{side}_prompt='x: ')" for side in ("query", "passage")]
    assert line_of(task, "sentence_pairs", theirs).endswith(f"encoder: {', '.join(both)}")
    assert line_of(task, "labeled_pairs", theirs).endswith(f"encoder: {both[0]}")
    given = {"task__query_prompt": "x: ", "task__passage_prompt": "p: "}
    assert line_of(task, "labeled_pairs", theirs, **given).endswith(f"encoder: {both[1]}")


def test_what_no_key_sets_is_named_too(task: Path) -> None:
    parts = (
        Pooling(("mean", "max"), True, 32), Dense(64, 5, True, "Tanh", False), Dropout(0.1),
        Normalize(),
    )  # fmt: skip
    theirs = SentenceEncoder(
        parts, ({},) * 4, lowercase=True, dimensions=4, similarity="dot", max_length=512
    )
    wanted = (
        "a dense layer of 5 (config.task.dense=5), mean+max pooling "
        "(config.task.pooling=mean,max), texts of 64 tokens (config.phases[0].seq_length=64), "
        "vectors cut to 4 numbers, similarity 'dot'"
    )
    config, data = opened(task)
    assert left_out(theirs, config, data.tokenizer)[0].endswith(f"encoder: {wanted}")
    same, _ = opened(task, task__pooling="mean, max")
    assert (
        ": a dense layer of 5 (config.task.dense=5), texts"
        in (left_out(theirs, same, data.tokenizer)[0])
    )
    cased = Tokenizer.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], lowercase=False)
    assert "lower-casing before the tokenizer" in left_out(theirs, config, cased)[0]


def test_a_pool_without_the_prompt(task: Path) -> None:
    theirs = SentenceEncoder((Pooling(("mean",), False, 32), Normalize()), ({}, {}))
    wanted = "left out, of a sentence encoder: mean pooling without the prompt's tokens"
    assert line_of(task, "sentence_pairs", theirs) == wanted


LAYERS = "24:GELU,8:Identity:no_bias:residual"


def heads_of_start(source: Path, task: Path, kind: str, **changes: Any) -> Mapping[str, Any]:
    """The arrays that a run takes from a model for its head, by their paths below it."""
    config, data = opened(task, kind, init=str(source), task__tokenizer="", **changes)
    assert isinstance(config.model, TaskModelConfig)
    found, start = find_initial(config, NOWHERE, data), f"params/{config.model.head.name}/"
    assert found
    leaves = found.read().leaves
    return {
        path.removeprefix(start): leaf for path, leaf in leaves.items() if path.startswith(start)
    }


@pytest.mark.parametrize("source", ["folder", "run"])
def test_dense_layers_are_taken_by_a_run_of_any_kind_with_the_same(
    task: Path, tmp_path: Path, source: str
) -> None:
    config, data = opened(task, task__dense=LAYERS)
    assert isinstance(config.model, TaskModelConfig)
    head = config.model.head.name
    params, drawn = random_params(config.model, ("in_batch_negatives",)), np.random.default_rng(0)
    assert {*params[head]} == {"dense_0", "dense_1"}
    params[head] = jax.tree.map(lambda x: np.float32(drawn.normal(size=x.shape)), params[head])
    if source == "run":
        meta = {
            "config": recorded(config),
            "data": {"tokenizer": data.tokenizer.digest, **head_of(config.model)},
        }
        checkpoints = RunCheckpoints(Workdir.open(tmp_path / source), config.checkpoint)
        state = {"step": jnp.int32(2), "params": jax.tree.map(jnp.asarray, params)}
        checkpoints.save({**state, "opt": {"x": jnp.ones(2)}}, meta)
        checkpoints.close()
        data.tokenizer.save(tmp_path / source / "tokenizer.json")
    else:
        model = without_head(config.model)
        export(
            {"encoder": params["encoder"]}, model, data.tokenizer, tmp_path / source,
            card=Card(origin="x"), sentence=encoder_of_run(config, params),
        )  # fmt: skip
    given = {
        f"{layer}/{name}": x for layer in params[head] for name, x in params[head][layer].items()
    }
    for kind in ("sentence_pairs", "labeled_pairs"):
        found = heads_of_start(tmp_path / source, task, kind, task__dense=LAYERS)
        assert found.keys() == given.keys()
        assert all((found[path] == given[path]).all() for path in given)
    assert notes_from(tmp_path / source, task, task__dense=LAYERS) == []
    other = "24,8:Identity:no_bias:residual"  # the activation differs
    assert not heads_of_start(tmp_path / source, task, "sentence_pairs", task__dense=other)
    for dense in (other, ""):
        (line,) = notes_from(tmp_path / source, task, task__dense=dense)
        wanted = f"a dense layer of 24 and a dense layer of 8 (config.task.dense={LAYERS})"
        assert line == f"left out, of a sentence encoder: {wanted}"
    assert not heads_of_start(tmp_path / source, task, "rte")
