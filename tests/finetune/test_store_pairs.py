"""Pairs of sentences from a token store, without labels."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus import small_config, small_store
from small_task import task_config

import bert_jax
from bert_jax.api.vector_evaluation import load_model
from bert_jax.config.task_settings import TaskConfig
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import UserError
from bert_jax.finetune.check_task import check_task
from bert_jax.finetune.runs import finetune
from bert_jax.finetune.tasks.task_kinds import KINDS
from bert_jax.publish.export import run_export
from bert_jax.training import loop

KIND = KINDS["store_pairs"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("pairs") / "store")


def documents(store: TokenStore, split: str) -> list[list[list[int]]]:
    """The sentences of each document, in words' numbers."""
    own, found, at, line = getattr(store, split), [], 0, 0
    for size in own.document_lengths.tolist():
        found.append([])
        for length in own.sentence_lengths[line : line + size].tolist():
            found[-1].append(own.tokens[at : at + length].tolist())
            at += length
        line += size
    return found


def numbers(text: str) -> list[int]:
    return [int(word[1:]) + 5 for word in text.split()]


def read(store: TokenStore, **changes: Any) -> tuple:
    return KIND.read(TaskConfig(name="store_pairs", data=str(store.path), **changes))


def test_a_sentence_is_its_own_positive_or_its_neighbor_is(store: TokenStore) -> None:
    """Whole sentences of four tokens or more, and neighbors of one document."""
    same, held_out = read(store)
    wanted = [s for document in documents(store, "train") for s in document if len(s) >= 4]
    assert [numbers(one.texts[0]) for one in same.examples] == wanted
    assert all(one.texts[0] == one.texts[1] for one in same.examples)
    neighbors, same_held_out = read(store, pairs="neighbors")
    assert held_out.examples == same_held_out.examples  # neighbors in both cases
    for split, found in (("train", neighbors), ("held_out", held_out)):
        pairs = [
            [first, second]
            for document in documents(store, split)
            for first, second in itertools.pairwise(document)
            if min(len(first), len(second)) >= 4
        ]
        assert [list(map(numbers, one.texts)) for one in found.examples] == pairs


def test_of_many_pairs_some_are_taken_evenly(store: TokenStore) -> None:
    every, _ = read(store)
    some, _ = read(store, most_pairs=5)
    rows = [one.row for one in some.examples]
    assert len(rows) == 5
    assert (rows[0], rows[-1]) == (every.examples[0].row, every.examples[-1].row)


def test_a_model_learns_from_dropout_and_is_exported(store: TokenStore, tmp_path: Path) -> None:
    loop.pretrain(small_config(store), tmp_path / "run")
    changes: dict[str, Any] = {
        "task__name": "store_pairs", "task__data": str(store.path), "init": f"{tmp_path}/run",
        "task__tokenizer": "", "model__hidden_dropout_prob": 0.1, "task__epochs": 1.0,
        "model__vocab_size": store.vocab_size, "model__max_position_embeddings": 32,
        "model__pad_vocab_to_multiple_of": 64, "model__num_attention_heads": 2, "mesh__data": -1,
    }  # fmt: skip
    finetune(task_config(tmp_path, **changes), tmp_path / "vectors")
    run_export(tmp_path / "vectors", tmp_path / "folder")
    (vector,) = bert_jax.load(tmp_path / "folder").encode(["w1 w2 w3"])
    assert vector @ vector == pytest.approx(1, abs=1e-5)
    (of_run,) = load_model(f"{tmp_path}/vectors").encode(["w1 w2 w3"])  # as evaluate reads it
    np.testing.assert_allclose(of_run, vector, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "random weights learn nothing from a sentence and itself: set config.init"),
        ({"init": "run"}, "needs dropout, which tells both vectors of a sentence apart"),
        ({"task__held_out": "dev.tsv"}, "task.held_out=dev.tsv has no effect for store_pairs"),
        ({"task__text": "title"}, "task.text=title has no effect for store_pairs, whose texts"),
        ({"task__name": "rte", "task__pairs": "neighbors"}, "no effect for rte"),
    ],
)
def test_what_has_no_effect_is_one_line(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        check_task(task_config(tmp_path, **{"task__name": "store_pairs", **changes}))


def test_a_store_of_short_sentences_is_one_line(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", documents=4, held_out=2, sentences=1)
    with pytest.raises(UserError, match="has no neighboring sentences of 4 tokens or more"):
        read(store, pairs="neighbors")
