"""Metrics of tasks: known values, and cases in which they are not defined."""

import sys

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.finetune.tasks.metrics import entities, measure


def test_known_values() -> None:
    labels, predictions = [1, 1, 1, 0, 0], [1, 1, 0, 1, 0]
    found = measure(["accuracy", "f1", "matthews"], labels, predictions)
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["f1"] == pytest.approx(2 / 3)
    assert found["matthews"] == pytest.approx((2 * 1 - 1 * 1) / np.sqrt(3 * 3 * 2 * 2))
    found = measure(["pearson", "spearman"], [1.0, 2.0, 3.0], [1.0, 2.0, 9.0])
    assert found["pearson"] == pytest.approx(np.corrcoef([1, 2, 3], [1, 2, 9])[0, 1])
    assert found["spearman"] == pytest.approx(1)


def test_parts_are_measured_apart() -> None:
    names = ("accuracy", "accuracy_mismatched")
    found = measure(names, [0, 1, 2, 2], [0, 1, 2, 1], {"": 1, "_mismatched": 3})
    assert found == {"accuracy": 1.0, "accuracy_mismatched": pytest.approx(2 / 3)}


def test_f1_is_that_of_class_1() -> None:
    """MRPC's positive class, not a mean over classes."""
    assert measure(["f1"], [0, 0, 0, 1], [0, 0, 0, 0]) == {"f1": 0.0}
    assert measure(["f1"], [1, 1, 1, 0], [1, 1, 1, 1])["f1"] == pytest.approx(6 / 7)


# Any warning is an error in these tests (pyproject.toml).
@pytest.mark.parametrize(
    ("labels", "predictions", "expected"),
    [
        ([1, 1, 1], [1, 1, 1], {"accuracy": 1.0, "f1": 1.0, "matthews": None}),
        ([0, 0, 0], [0, 0, 0], {"accuracy": 1.0, "f1": None, "matthews": None}),
        ([0, 0, 0], [1, 1, 1], {"accuracy": 0.0, "f1": 0.0, "matthews": None}),
        ([0, 1, 0], [1, 1, 1], {"accuracy": 1 / 3, "f1": 0.5, "matthews": 0.0}),
        ([0, 1, 2], [2, 2, 2], {"accuracy": 1 / 3, "f1": 0.0, "matthews": 0.0}),
        ([1], [0], {"accuracy": 0.0, "f1": 0.0, "matthews": None}),
        ([], [], {"accuracy": None, "f1": None, "matthews": None}),
    ],
)
def test_one_class_gives_a_number_or_none(
    labels: list[int], predictions: list[int], expected: dict[str, float | None]
) -> None:
    assert measure(list(expected), labels, predictions) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("labels", "predictions"),
    [
        ([1.0, 2.0, 3.0], [0.5, 0.5, 0.5]),
        ([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]),
        ([1.0, 2.0, 3.0], [1e9, 1e9 + 1e-7, 1e9]),
        ([0.1] * 3, [0.1] * 3),
        ([1.0], [2.0]),
        ([], []),
    ],
)
def test_constant_scores_have_no_correlation(labels: list[float], predictions: list[float]) -> None:
    assert measure(["pearson", "spearman"], labels, predictions) == {
        "pearson": None,
        "spearman": None,
    }


def test_random_values_agree_with_their_definitions() -> None:
    """Matthews as the correlation of two binary variables; Spearman as that of ranks with ties."""
    drawn = np.random.default_rng(3)
    for _ in range(50):
        labels, predictions = drawn.integers(0, 2, (2, 40))
        expected = np.corrcoef(labels, predictions)[0, 1]
        assert measure(["matthews"], labels, predictions)["matthews"] == pytest.approx(expected)
        scores = drawn.integers(0, 5, (2, 40))
        ranks = [[(row < v).sum() + (row == v).sum() / 2 for v in row] for row in scores]
        spearman = measure(["spearman"], *scores)["spearman"]
        assert spearman == pytest.approx(np.corrcoef(*ranks)[0, 1])


def test_entities_count_with_their_type_and_ends() -> None:
    labels = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "B-ORG"]]
    predictions = [["B-PER", "O", "O", "B-LOC"], ["B-ORG", "I-ORG"]]
    found = entities(labels, predictions)  # B-LOC is right; 4 true, 3 predicted
    assert found == pytest.approx({"precision": 1 / 3, "recall": 1 / 4, "f1": 2 / 7})


def test_an_entity_may_begin_with_i_as_in_conlleval() -> None:
    assert entities([["B-PER", "I-PER"]], [["I-PER", "I-PER"]])["f1"] == 1.0


@pytest.mark.parametrize(
    ("labels", "predictions", "expected"),
    [
        ([["O", "O"]], [["O", "O"]], (None, None, None)),
        ([["O", "O"]], [["B-PER", "O"]], (0.0, None, 0.0)),
        ([["B-PER", "O"]], [["O", "O"]], (None, 0.0, 0.0)),
        ([], [], (None, None, None)),
    ],
)
def test_no_entity_gives_a_number_or_none(
    labels: list, predictions: list, expected: tuple[float | None, ...]
) -> None:
    assert tuple(entities(labels, predictions).values()) == expected


def test_a_library_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(UserError, match=r"need scikit-learn, .* 'bert-jax\[finetune\]'"):
        measure(["accuracy"], [1], [1])
