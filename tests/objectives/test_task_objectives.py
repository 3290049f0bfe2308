"""The objectives of tasks: losses against their formulas, packed rows, and dropout."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from golden_case import TINY
from layout_models import LAYOUTS, TASKS, task_batch, task_config, task_params
from small import COMPUTE

from bert_jax.config.task_model import HeadConfig
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.encoder_with_heads import encoder_rows
from bert_jax.objectives.known_objectives import OBJECTIVES, task_of
from bert_jax.objectives.pretraining_model import declare
from bert_jax.objectives.total import all_sums, denominators, summarize

USUAL = ("single_label_classification", "question_answering")
CORPUS = Corpus(("text",), np.zeros(TINY.vocab_size, np.float32))
DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(4, 3, 5)).astype(np.float32)  # logits of 12 examples
W = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 0], [0, 1, 1]], np.float32)


def summary(task: str, logits: np.ndarray, batch: dict) -> dict[str, float]:
    batch = {"example_ids": np.ones((4, 3), np.int32), **batch}
    sums = OBJECTIVES[task].sums(jnp.asarray(logits), batch, CORPUS)
    tokens = {"real": 12, "all": 12}
    found = summarize({task: jax.tree.map(np.asarray, sums), "tokens": tokens}, ("text",))
    denominator = denominators(batch, (task,))[task]
    assert found[f"{task}/loss"] == pytest.approx(float(sums["loss"] / denominator))
    return {name.removeprefix(f"{task}/"): value for name, value in found.items()}


def test_the_loss_of_classes_is_their_cross_entropy():
    labels = DRAW.integers(0, 5, (4, 3))
    found = summary("single_label_classification", X, {"labels": labels, "label_weights": W})
    log_sums = np.log(np.exp(X.astype(np.float64)).sum(-1))
    loss = log_sums - np.take_along_axis(X, labels[..., None], -1)[..., 0]
    assert found["loss"] == pytest.approx((loss * W).sum() / W.sum(), rel=1e-6)
    right = (X.argmax(-1) == labels)[W > 0]
    assert found["accuracy"] == pytest.approx(right.mean())
    share = np.bincount(labels[W > 0], minlength=5) / W.sum()
    assert found["baseline_accuracy"] == pytest.approx(share.max())
    wanted = -sum(p * np.log(p) for p in share if p)
    assert found["baseline_loss"] == pytest.approx(wanted, rel=1e-6)


def test_the_loss_of_many_labels_is_a_mean_of_binary_ones():
    labels = DRAW.integers(0, 2, (4, 3, 5)).astype(np.float32)
    large = X * 50  # no exponential overflows
    found = summary("multi_label_classification", large, {"labels": labels, "label_weights": W})
    x = large.astype(np.float64)
    loss = np.logaddexp(0, np.where(labels > 0, -x, x))
    assert found["loss"] == pytest.approx((loss.mean(-1) * W).sum() / W.sum(), rel=1e-6)
    right = ((x > 0) == (labels > 0))[W > 0]
    assert found["accuracy"] == pytest.approx(right.mean())
    share = labels[W > 0].mean(0)
    assert found["baseline_accuracy"] == pytest.approx(np.maximum(share, 1 - share).mean())


def test_the_loss_of_numbers_is_their_squared_error():
    labels = DRAW.normal(size=(4, 3, 5)).astype(np.float32)
    found = summary("regression", X, {"labels": labels, "label_weights": W})
    error = np.square(X - labels)[W > 0]
    assert found["loss"] == pytest.approx(error.mean(), rel=1e-6)
    assert "accuracy" not in found
    assert found["baseline_loss"] == pytest.approx(labels[W > 0].var(0).mean(), rel=1e-5)


def test_tokens_without_a_label_do_not_count():
    labels = DRAW.integers(0, 5, (4, 3))
    batch = {"token_labels": labels, "token_weights": W}
    found = summary("token_classification", X, batch)
    batch["token_labels"] = np.where(W > 0, labels, (labels + 1) % 5)
    assert summary("token_classification", X, batch) == found


def test_the_loss_of_choices_is_the_cross_entropy_over_the_sequences_of_an_example():
    """The scores of X's 5 sequences, one after another in a row."""
    choices = DRAW.integers(0, 5, (4, 3))
    found = summary(
        "multiple_choice", X.reshape(4, 15, 1), {"choices": choices, "choice_weights": W}
    )
    labels = {"labels": choices, "label_weights": W}
    assert found == pytest.approx(summary("single_label_classification", X, labels))


def test_the_encoder_reads_a_strip_in_each_row():
    """Of whole rows the losses would be the same, but attention would cost several times more."""
    batch = task_batch(task_config("bert", "multiple_choice"))
    B, C, S = batch["input_ids"].shape
    assert C > 1
    for name, values in encoder_rows(batch).items():
        np.testing.assert_array_equal(values, batch[name].reshape(B * C, S), err_msg=name)


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, marks=[] if task in USUAL else pytest.mark.slow)
        for task in TASKS
        if task != "multiple_choice"
    ],
)
def test_a_packed_row_has_the_loss_of_its_examples_alone(task):
    """Two examples in each row of half the number of rows."""
    config = task_config("bert", task, num_hidden_layers=1)
    alone = task_batch(config)
    S = alone["input_ids"].shape[1]
    together = {}
    for name, values in alone.items():
        pairs = values.reshape(2, 2, *values.shape[1:])
        if name == "example_ids":
            pairs = pairs * np.array([1, 2], np.int32)[:, None]
        if name in ("cls_positions", "answer_starts", "answer_ends", "masked_positions"):
            pairs = pairs + np.array([0, S], np.int32)[:, None]
        together[name] = pairs.reshape(2, -1, *values.shape[2:])
    params = task_params(config)
    graph, _ = declare(config, COMPUTE, (task,))

    def loss(batch):
        return all_sums(nnx.merge(graph, params)(batch), batch, CORPUS)[0]

    with jax.default_matmul_precision("highest"):
        assert float(jax.jit(loss)(together)) == pytest.approx(float(loss(alone)), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("task", ["single_label_classification", "token_classification"])
def test_in_training_what_a_head_reads_is_dropped(layout, task):
    config = task_config(layout, task, num_hidden_layers=1)
    config = dataclasses.replace(config, head=dataclasses.replace(config.head, dropout=0.5))
    model = nnx.merge(declare(config, COMPUTE, (task,))[0], task_params(config))
    batch = task_batch(config)
    states = DRAW.normal(size=(*batch["input_ids"].shape, config.hidden_size)).astype("f")

    def logits(key: int | None) -> np.ndarray:
        return np.asarray(model.logits(states, batch, key and jnp.uint32(key))[task])

    for key, other in ((1, None), (1, 2)):
        assert np.abs(logits(key) - logits(other)).max() > 0.01
        assert (logits(key) == logits(key)).all()


@pytest.mark.parametrize(
    ("head", "task"),
    [
        (HeadConfig(name="classifier"), "single_label_classification"),
        (HeadConfig(name="classifier", labels=("score",)), "regression"),
        (HeadConfig(name="classifier", problem_type="regression"), "regression"),
        (
            HeadConfig(name="classifier", problem_type="multi_label_classification"),
            "multi_label_classification",
        ),
        (HeadConfig(name="tagger"), "token_classification"),
        (HeadConfig(name="qa"), "question_answering"),
        (HeadConfig(name="choice"), "multiple_choice"),
    ],
)
def test_the_objective_of_a_head_is_that_of_transformers(head, task):
    assert task_of(head) == task
    assert OBJECTIVES[task].head == head.name
