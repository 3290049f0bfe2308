"""What made vectors in the model that a run starts from is named if the run makes its own
without."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from exported import random_params
from small_task import pairs_config, task_config, write_pairs

from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.config.recorded import head_of, recorded
from bert_jax.config.schema import Config
from bert_jax.config.sentence_parts import Dense, Dropout, Normalize, Pooling
from bert_jax.config.task_model import without_head
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
        "mean+max pooling (config.task.pooling=mean,max), a dense layer of 5, texts of 64 tokens "
        "(config.phases[0].seq_length=64), vectors cut to 4 numbers, similarity 'dot'"
    )
    config, data = opened(task)
    assert left_out(theirs, config, data.tokenizer)[0].endswith(f"encoder: {wanted}")
    same, _ = opened(task, task__pooling="mean, max")
    assert ": a dense layer of 5, texts" in left_out(theirs, same, data.tokenizer)[0]
    cased = Tokenizer.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], lowercase=False)
    assert "lower-casing before the tokenizer" in left_out(theirs, config, cased)[0]


def test_a_pool_without_the_prompt(task: Path) -> None:
    theirs = SentenceEncoder((Pooling(("mean",), False, 32), Normalize()), ({}, {}))
    wanted = "left out, of a sentence encoder: mean pooling without the prompt's tokens"
    assert line_of(task, "sentence_pairs", theirs) == wanted
