"""Losses against the soft labels of a teacher: their formulas in NumPy, with their gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config.task_model import VectorConfig
from bert_jax.config.task_settings import TaskConfig
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.known_objectives import OBJECTIVES
from bert_jax.objectives.sentence_vectors import Vectors
from bert_jax.objectives.soft_labels import TEACHER
from bert_jax.objectives.total import all_sums, denominators, summarize, with_teacher

CORPUS = Corpus((), np.zeros(7, np.float32))
DRAW = np.random.default_rng(5)
X = DRAW.normal(size=(4, 3, 5)).astype(np.float32)  # logits of 12 examples
Z = 3 * DRAW.normal(size=(4, 3, 5))  # of the teacher
W = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 0], [0, 1, 1]], np.float32)
T, SHARE = 3.0, 0.3
TASK = TaskConfig(temperature=T, teacher_weight=SHARE)
IDS = {"example_ids": np.ones((4, 3), np.int32)}


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return (p * np.log(p / q)).sum(-1)


def classes(names: tuple[str, str]) -> tuple[dict, np.ndarray, np.ndarray]:
    """The batch of one class of five, loss and gradient."""
    labels = DRAW.integers(0, 5, (4, 3))
    p, q, hard = softmax(Z / T), softmax(X / T), softmax(X.astype(float))
    one_hot = np.eye(5)[labels]
    loss = (1 - SHARE) * -np.log((hard * one_hot).sum(-1)) + SHARE * T**2 * kl(p, q)
    gradient = (1 - SHARE) * (hard - one_hot) + SHARE * T * (q - p)
    return dict(zip(names, (labels, W), strict=True)), loss, gradient


def many_labels() -> tuple[dict, np.ndarray, np.ndarray]:
    labels = DRAW.integers(0, 2, (4, 3, 5)).astype(np.float32)
    p, q, hard = sigmoid(Z / T), sigmoid(X / T), sigmoid(X.astype(float))
    soft = kl(np.stack([p, 1 - p], -1), np.stack([q, 1 - q], -1))
    own = -np.log(np.where(labels > 0, hard, 1 - hard))
    loss = ((1 - SHARE) * own + SHARE * T**2 * soft).mean(-1)
    gradient = ((1 - SHARE) * (hard - labels) + SHARE * T * (q - p)) / 5
    return {"labels": labels, "label_weights": W}, loss, gradient


def scores() -> tuple[dict, np.ndarray, np.ndarray]:
    labels = DRAW.normal(size=(4, 3, 5)).astype(np.float32)
    loss = ((1 - SHARE) * (X - labels) ** 2 + SHARE * (X - Z) ** 2).mean(-1)
    gradient = 2 * ((1 - SHARE) * (X - labels) + SHARE * (X - Z)) / 5
    return {"labels": labels, "label_weights": W}, loss, gradient


def of(task: str, logits: Any, batch: dict) -> tuple[jax.Array, dict]:
    counts, outputs = denominators(batch, (task,)), {task: logits}
    loss, sums = all_sums(outputs, batch, CORPUS, counts)
    return with_teacher(loss, sums, outputs, batch, counts, TASK)


def figures(task: str, logits: Any, batch: dict) -> dict[str, float]:
    found = summarize(jax.tree.map(np.asarray, of(task, logits, batch)[1]), ())
    return {name.removeprefix(f"{task}/"): value for name, value in found.items()}


CASES: dict[str, Callable[[], tuple[dict, np.ndarray, np.ndarray]]] = {
    "single_label_classification": lambda: classes(("labels", "label_weights")),
    "token_classification": lambda: classes(("token_labels", "token_weights")),
    "multiple_choice": lambda: classes(("choices", "choice_weights")),
    "labeled_pairs": lambda: classes(("labels", "pair_weights")),
    "multi_label_classification": many_labels,
    "regression": scores,
}


@pytest.mark.parametrize("task", CASES)
def test_loss_and_gradient_are_those_of_the_formula(task: str) -> None:
    batch, loss, gradient = CASES[task]()
    batch |= IDS | {TEACHER: OBJECTIVES[task].soft.targets(Z, T)}
    forms = {"multiple_choice": (4, 15, 1), "labeled_pairs": (4, 3, 1, 5)}  # of one width
    logits = jnp.asarray(X.reshape(forms.get(task, X.shape)))
    found, slope = jax.value_and_grad(lambda x: of(task, x, batch)[0])(logits)
    assert float(found) == pytest.approx((loss * W).sum() / W.sum(), rel=1e-6)
    wanted = gradient * W[..., None] / W.sum()
    np.testing.assert_allclose(slope.reshape(X.shape), wanted, atol=1e-6)
    plain = {name: values for name, values in batch.items() if name != TEACHER}
    hard, sums = of(task, logits, plain)
    assert not any("teacher" in name for name in sums[task])
    assert figures(task, logits, batch)["loss"] == pytest.approx(float(hard), rel=1e-6)


def test_the_figures_of_classes_stand_beside_the_best_constant() -> None:
    batch, _, _ = CASES["single_label_classification"]()
    p = OBJECTIVES["single_label_classification"].soft.targets(Z, T)
    found = figures("single_label_classification", X, batch | IDS | {TEACHER: p})
    p, x = p[W > 0].astype(float), X[W > 0]
    assert found["teacher_loss"] == pytest.approx(kl(p, softmax(x / T)).mean(), rel=1e-5)
    assert found["teacher_agreement"] == pytest.approx((p.argmax(-1) == x.argmax(-1)).mean())
    assert found["baseline_teacher_loss"] == pytest.approx(kl(p, p.mean(0)).mean(), rel=1e-5)
    guesses = np.bincount(p.argmax(-1))
    assert found["baseline_teacher_agreement"] == pytest.approx(guesses.max() / len(p))


def test_the_figures_of_labels_and_scores_stand_beside_the_best_constant() -> None:
    task = "multi_label_classification"
    p = OBJECTIVES[task].soft.targets(Z, T)
    found = figures(task, X, CASES[task]()[0] | IDS | {TEACHER: p})
    p, x = p[W > 0].astype(float), X[W > 0]
    both, mean = np.stack([p, 1 - p], -1), np.stack([p.mean(0), 1 - p.mean(0)], -1)
    assert found["baseline_teacher_loss"] == pytest.approx(kl(both, mean).mean(), rel=1e-5)
    assert found["teacher_agreement"] == pytest.approx(((p > 0.5) == (x > 0)).mean())
    share = (p > 0.5).mean(0)
    assert found["baseline_teacher_agreement"] == pytest.approx(np.maximum(share, 1 - share).mean())
    found = figures("regression", X, CASES["regression"]()[0] | IDS | {TEACHER: Z.astype("f")})
    assert found["teacher_loss"] == pytest.approx(((X - Z) ** 2)[W > 0].mean(), rel=1e-5)
    assert found["baseline_teacher_loss"] == pytest.approx(Z[W > 0].var(0).mean(), rel=1e-5)
    assert "teacher_agreement" not in found


def test_the_losses_of_pairs_are_sums_over_the_widths() -> None:
    """Of labels and of cosines; a teacher's are those of whole vectors."""
    logits, batch = jnp.stack([jnp.asarray(X), 2 * jnp.asarray(X)], 2), CASES["labeled_pairs"]()[0]
    p = softmax(Z / T).astype("f")
    found = figures("labeled_pairs", logits, batch | IDS | {TEACHER: p})
    wanted = (kl(p, softmax(X / T)) + kl(p, softmax(2 * X / T)))[W > 0].mean()
    assert found["teacher_loss"] == pytest.approx(wanted, rel=1e-5)
    constant = 2 * kl(p[W > 0], p[W > 0].mean(0)).mean()
    assert found["baseline_teacher_loss"] == pytest.approx(constant, rel=1e-4)

    x, theirs = DRAW.normal(size=(4, 3, 2, 8)), DRAW.uniform(-1, 1, (4, 3, 1)).astype("f")
    vectors = Vectors(
        jnp.asarray(x.reshape(4, 6, 8), jnp.float32), VectorConfig(loss="cosine", dimensions=(4,))
    )
    batch = {"scores": np.zeros((4, 3), "f"), "pair_weights": W, **IDS, TEACHER: theirs}
    wanted = np.zeros((4, 3))
    for size in (8, 4):
        u, v = np.moveaxis(x[..., :size], 2, 0)
        lengths = np.linalg.norm(u, axis=-1) * np.linalg.norm(v, axis=-1)
        wanted += ((u * v).sum(-1) / lengths - theirs[..., 0]) ** 2
    found = figures("scored_pairs", vectors, batch)
    assert found["teacher_loss"] == pytest.approx(wanted[W > 0].mean(), rel=1e-5)
    constant = 2 * theirs[..., 0][W > 0].var()
    assert found["baseline_teacher_loss"] == pytest.approx(constant, rel=1e-4)


def test_answers_are_learned_over_the_tokens_of_each_example() -> None:
    """Rows of two examples, of 4 and of 3 tokens, and one of padding."""
    logits = DRAW.normal(size=(2, 8, 2)).astype(np.float32)
    ids = np.tile(np.array([1] * 4 + [2] * 3 + [0], np.int32), (2, 1))
    parts = (slice(0, 4), slice(4, 7))
    teacher = np.zeros((2, 8, 2), np.float32)
    for part in parts:
        drawn = DRAW.normal(size=(2, 2, part.stop - part.start))
        teacher[:, part] = np.moveaxis(softmax(drawn), 1, 2)
    teacher[0, 0], teacher[0, 1] = teacher[0, :2].sum(0), 0  # a token with nothing
    batch = {
        "example_ids": ids,
        "cls_positions": np.tile(np.array([0, 4], np.int32), (2, 1)),
        "answer_starts": np.array([[1, 5], [0, 4]], np.int32),
        "answer_ends": np.array([[2, 5], [0, 6]], np.int32),
        "answer_weights": np.array([[1, 1], [1, 0]], np.float32),
        TEACHER: teacher,
    }
    wanted, slope, agree, even, first = 0.0, np.zeros(logits.shape), [], 0.0, []
    for row, example in ((0, 0), (0, 1), (1, 0)):
        part, same = parts[example], []
        for end, name in enumerate(("answer_starts", "answer_ends")):
            x = logits[row, part, end].astype(float)
            p, q, hard = teacher[row, part, end].astype(float), softmax(x / T), softmax(x)
            label = np.eye(len(x))[batch[name][row, example] - part.start]
            has = p > 0
            soft = (p[has] * np.log(p[has] / q[has])).sum()
            loss = (1 - SHARE) * -np.log(hard @ label) + SHARE * T**2 * soft
            wanted += loss / 2 / 3
            slope[row, part, end] = ((1 - SHARE) * (hard - label) + SHARE * T * (q - p)) / 6
            same.append((p.argmax(), q.argmax()))
            even += (p[has] * np.log(p[has] * len(x))).sum() / 6
        agree.append(all(a == b for a, b in same))
        first.append(all(a == 0 for a, _ in same))
    task = "question_answering"
    found, gradient = jax.value_and_grad(lambda x: of(task, x, batch)[0])(jnp.asarray(logits))
    assert float(found) == pytest.approx(wanted, rel=1e-6)
    np.testing.assert_allclose(gradient, slope, atol=1e-6)
    seen = figures(task, logits, batch)
    assert seen["teacher_agreement"] == pytest.approx(np.mean(agree))
    assert seen["baseline_teacher_agreement"] == pytest.approx(np.mean(first))
    assert seen["baseline_teacher_loss"] == pytest.approx(even, rel=1e-5)
