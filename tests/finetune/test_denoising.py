"""TSDAE: sentences of a token store, restored from the vector of what is left of them."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from corpus import small_store
from small_task import task_config
from task_steps import SGD, trained

from bert_jax.config.schema import Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.finetune.tasks.denoising import kept_ids

MODEL = {
    "model__vocab_size": 100, "model__max_position_embeddings": 32,
    "model__pad_vocab_to_multiple_of": 64, "phases[0]__seq_length": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("denoising") / "store")


def denoising_config(store: TokenStore, **changes: Any) -> Config:
    settings = {"task__name": "denoising", "task__data": str(store.path)}
    tokenizer = {"task__tokenizer": str(store.tokenizer_path)}
    return task_config(Path(store.path), **{**settings, **tokenizer, **MODEL, **changes})


def test_tokens_are_deleted_at_random_and_one_always_stays() -> None:
    ids = np.arange(100, 1102, dtype=np.int32)
    left = kept_ids(0.6, np.uint64(7), ids)
    count = int((left >= 0).sum())
    assert 340 < count < 460  # five standard deviations
    assert {100, 1101} <= {*left[:count].tolist()}
    assert (np.diff(left[:count]) > 0).all()
    assert (left[count:] == -1).all()
    assert (left != kept_ids(0.6, np.uint64(8), ids)).any()
    few = [kept_ids(0.999, np.uint64(key), ids[:6]) for key in range(200)]
    assert {int((one >= 0).sum()) for one in few} == {3}
    assert {int(one[1]) for one in few} == {101, 102, 103, 104}


FORMS = {
    "padded on 8 devices": {"phases[0]__examples_per_row": 1, "mesh__data": 8},
    "2 devices, micro-batches": {"phases[0]__micro_batches": 2, "mesh__data": 2},
}


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_a_batch_changes_no_loss_and_no_update(store: TokenStore, form: str) -> None:
    sgd = {key.replace(".", "__"): value for key, value in SGD.items()}
    losses, before, params = trained(denoising_config(store, **sgd), 3)
    changes = FORMS[form]
    others, _, after = trained(
        denoising_config(store, **sgd, **changes), 3, changes["mesh__data"]
    )
    print(losses)
    np.testing.assert_allclose(others, losses, rtol=1e-6)
    moved = jax.tree.leaves(jax.tree.map(lambda a, b: np.abs(a - b).max(), before, params))
    print(moved)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, atol=2e-6), params, after)
