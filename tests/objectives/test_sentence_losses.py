"""The losses of sentence vectors: against PyTorch and sentence-transformers from the same vectors,
and over devices."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentence_library as library
from jax.sharding import PartitionSpec as P
from late_import import LateImport

from bert_jax.config.schema import MeshConfig
from bert_jax.config.task_model import VectorConfig
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.in_batch_negatives import is_anchor, is_candidate
from bert_jax.objectives.known_objectives import OBJECTIVES
from bert_jax.objectives.labeled_pairs import pair_logits
from bert_jax.objectives.sentence_vectors import Vectors, widths
from bert_jax.parallel.mesh import make_mesh

torch = LateImport("torch")
NO_CORPUS = Corpus((), np.zeros(1, np.float32))
E, D = 16, 12  # examples, numbers of a vector
SLOTS = (8, 4)  # rows, and the places of examples in each: half of them are empty
# name -> objective, texts of an example, settings
FORMS: dict[str, tuple[str, int, VectorConfig]] = {
    "pairs": ("in_batch_negatives", 2, VectorConfig(loss="negatives")),
    "hard negatives": ("in_batch_negatives", 4, VectorConfig(loss="negatives")),
    "hard negatives, both directions": (
        "in_batch_negatives", 4, VectorConfig(loss="negatives", directions="both"),
    ),
    "widths": ("in_batch_negatives", 3, VectorConfig(loss="negatives", dimensions=(8, 3))),
    "cosine": ("scored_pairs", 2, VectorConfig(loss="cosine", dimensions=(5,))),
    "cosent": ("scored_pairs", 2, VectorConfig(loss="cosent", dimensions=(5,))),
}  # fmt: skip
EVERY_FORM = pytest.mark.parametrize("form", FORMS)


def example_vectors(texts: int) -> np.ndarray:
    """[E, C, D]; the texts of an example are alike, so that the losses are far from 0."""
    drawn = np.random.default_rng(0)
    own = drawn.normal(size=(E, 1, D)) + drawn.normal(size=(E, texts, D))
    return own.astype(np.float32)


def placed(values: np.ndarray) -> np.ndarray:
    """[E, ...] -> [B, N, ...] with every second place empty."""
    out = np.zeros((SLOTS[0] * SLOTS[1], *values.shape[1:]), values.dtype)
    out[::2] = values
    return out.reshape(*SLOTS, *values.shape[1:])


def batch_of(texts: int) -> dict[str, np.ndarray]:
    numbers = 1 + np.arange(E * texts, dtype=np.int32).reshape(E, texts)
    scores = np.random.default_rng(1).integers(0, 6, E).astype(np.float32) / 5
    weights = np.ones(E, np.float32)
    found = {"texts": numbers, "scores": scores, "pair_weights": weights}
    return {name: placed(values) for name, values in found.items()}


def loss_of(form: str, batch: dict, x_BxNxCxD: jax.Array) -> jax.Array:
    """The sum of the loss of the examples of this device."""
    name, _, settings = FORMS[form]
    vectors = Vectors(x_BxNxCxD.reshape(len(x_BxNxCxD), -1, x_BxNxCxD.shape[-1]), settings)
    return OBJECTIVES[name].sums(vectors, batch, NO_CORPUS)["loss"]


def torch_loss(form: str, x_ExCxD: Any, scores: np.ndarray) -> Any:
    """By the formulas of sentence-transformers' MultipleNegativesRankingLoss, MatryoshkaLoss,
    CosineSimilarityLoss and CoSENTLoss; the mean, or CoSENT's one number."""
    _, _, settings = FORMS[form]
    total = 0.0
    for width in widths(settings, D):
        x = torch.nn.functional.normalize(x_ExCxD[..., :width], dim=-1)
        labels, right = torch.tensor(scores), torch.arange(E)
        if settings.loss == "negatives":
            candidates = torch.cat(list(x[:, 1:].unbind(1)))
            ways = [x[:, 0] @ candidates.T]
            ways += [x[:, 1] @ x[:, 0].T] if settings.directions == "both" else []
            each = [torch.nn.functional.cross_entropy(20 * way, right) for way in ways]
            total = total + sum(each) / len(each)
            continue
        cosine = (x[:, 0] * x[:, 1]).sum(-1)
        if settings.loss == "cosine":
            total = total + torch.nn.functional.mse_loss(cosine, labels)
            continue
        gaps = 20 * (cosine[:, None] - cosine[None])
        gaps = gaps - (labels[:, None] >= labels[None]).float() * 1e12
        total = total + torch.logsumexp(torch.cat([torch.zeros(1), gaps.reshape(-1)]), 0)
    return total


@pytest.mark.torch
@EVERY_FORM
def test_a_loss_and_its_gradient_are_those_of_pytorch(form: str) -> None:
    _, texts, _ = FORMS[form]
    x, batch = example_vectors(texts), batch_of(texts)
    value, gradient = jax.value_and_grad(functools.partial(loss_of, form, batch))(
        jnp.asarray(placed(x))
    )
    theirs = torch.tensor(x, requires_grad=True)
    loss = torch_loss(form, theirs, batch["scores"].reshape(-1)[::2])
    loss.backward()
    np.testing.assert_allclose(float(value) / E, loss.item(), rtol=1e-6)
    flat = np.asarray(gradient).reshape(-1, texts, D) / E
    np.testing.assert_allclose(flat[::2], theirs.grad.numpy(), rtol=1e-5, atol=1e-6)
    assert not flat[1::2].any()


def torch_loss_of_texts(x_ExCxD: Any, texts_ExC: list[list[int]], settings: VectorConfig) -> Any:
    """The sum of the loss by its words, one softmax at a time: the candidates of a text are those
    that differ from it and belong to no text that equals it."""
    total, pairs = 0.0, {tuple(one[:2]) for one in texts_ExC}
    for width in widths(settings, D):
        x = torch.nn.functional.normalize(x_ExCxD[..., :width], dim=-1)
        ways = [(0, 1)] + ([(1, 0)] if settings.directions == "both" else [])
        for own, other in ways:
            columns = range(1, len(texts_ExC[0])) if other else [0]
            for i, mine in enumerate(texts_ExC):
                scores = [20 * x[i, own] @ x[i, other]]
                for j, theirs in enumerate(texts_ExC):
                    for column in columns:
                        pair = (mine[own], theirs[column])
                        if pair[0] != pair[1] and (pair if other else pair[::-1]) not in pairs:
                            scores.append(20 * x[i, own] @ x[j, column])
                total = total + (torch.logsumexp(torch.stack(scores), 0) - scores[0]) / len(ways)
    return total


@pytest.mark.torch
@pytest.mark.parametrize("directions", ["one", "both"])
@pytest.mark.parametrize("kinds", [4, 12])
def test_a_loss_of_equal_texts_and_its_gradient_are_those_of_pytorch(
    directions: Any, kinds: int
) -> None:
    """Few texts, in any column, with one vector each: anchors, positives and negatives that are one
    another's, and pairs that are there twice."""
    drawn = np.random.default_rng(kinds)
    texts = drawn.integers(1, kinds + 1, (E, 4)).astype(np.int32)
    x = drawn.normal(size=(kinds + 1, D)).astype(np.float32)[texts]
    settings = VectorConfig(loss="negatives", directions=directions, dimensions=(8, 3))
    batch = batch_of(4) | {"texts": placed(texts)}

    def loss(x_BxNxCxD: jax.Array) -> jax.Array:
        vectors = Vectors(x_BxNxCxD.reshape(SLOTS[0], -1, D), settings)
        return OBJECTIVES["in_batch_negatives"].sums(vectors, batch, NO_CORPUS)["loss"]

    value, gradient = jax.value_and_grad(loss)(jnp.asarray(placed(x)))
    theirs = torch.tensor(x, requires_grad=True)
    total = torch_loss_of_texts(theirs, texts.tolist(), settings)
    total.backward()
    np.testing.assert_allclose(float(value), total.item(), rtol=1e-6)
    flat = np.asarray(gradient).reshape(-1, 4, D)[::2] / E
    np.testing.assert_allclose(flat, theirs.grad.numpy() / E, rtol=1e-5, atol=1e-6)


def test_cosent_of_equal_scores_teaches_nothing() -> None:
    x, batch = placed(example_vectors(2)), batch_of(2)
    batch["scores"] = np.where(batch["pair_weights"] > 0, np.float32(0.4), 0)
    value, gradient = jax.value_and_grad(functools.partial(loss_of, "cosent", batch))(
        jnp.asarray(x)
    )
    assert float(value) == 0
    assert not np.asarray(gradient).any()


@pytest.mark.torch
@pytest.mark.parametrize("normalize", [False, True])
def test_the_softmax_over_both_vectors_is_that_of_pytorch(normalize: bool) -> None:
    x, drawn = example_vectors(2), np.random.default_rng(2)
    kernel, bias = (drawn.normal(size=s).astype(np.float32) for s in ((3 * D, 4), (4,)))
    labels = drawn.integers(0, 4, E)

    def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
        logits = pair_logits(x[None], kernel, jnp.asarray(bias), (D, 7), normalize=normalize)
        batch = {"labels": labels[None], "pair_weights": np.ones((1, E), np.float32)}
        return OBJECTIVES["labeled_pairs"].sums(logits, batch, NO_CORPUS)["loss"] / E

    value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(jnp.asarray(x), jnp.asarray(kernel))
    theirs = [torch.tensor(one, requires_grad=True) for one in (x, kernel)]
    total = 0.0
    for width in (D, 7):
        of_width = theirs[0][..., :width]
        if normalize:
            of_width = torch.nn.functional.normalize(of_width, dim=-1)
        u, v = of_width.unbind(1)
        rows = torch.cat([part[:width] for part in theirs[1].split(D)])
        logits = torch.cat([u, v, (u - v).abs()], -1) @ rows + torch.tensor(bias)
        total = total + torch.nn.functional.cross_entropy(logits, torch.tensor(labels))
    total.backward()
    np.testing.assert_allclose(float(value), total.item(), rtol=1e-6)
    for ours, other in zip(gradients, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(ours), other.grad.numpy(), atol=1e-6)


# By name: the form above, and the class of sentence-transformers with its arguments.
THEIRS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "pairs": ("pairs", "MultipleNegativesRankingLoss", {}),
    "cached": ("pairs", "CachedMultipleNegativesRankingLoss", {"mini_batch_size": 3}),
    "hard negatives": ("hard negatives", "MultipleNegativesRankingLoss", {}),
    "both directions": (
        "hard negatives, both directions", "MultipleNegativesSymmetricRankingLoss", {},
    ),
    "widths": ("widths", "MultipleNegativesRankingLoss", {"widths": (D, 8, 3)}),
    "cosine": ("cosine", "CosineSimilarityLoss", {"widths": (D, 5)}),
    "cosent": ("cosent", "CoSENTLoss", {"widths": (D, 5)}),
}  # fmt: skip
DIRECTIONS = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}


@pytest.mark.nightly
@pytest.mark.processes
@library.WITH_EACH_RELEASE
def test_losses_are_those_of_sentence_transformers(packages: str, tmp_path: Path) -> None:
    theirs = dict(THEIRS)
    if library.release(packages) >= 5:  # where the class of both directions is deprecated
        arguments = {"mini_batch_size": 3, **DIRECTIONS}
        theirs["cached, both directions"] = (
            "hard negatives, both directions", "CachedMultipleNegativesRankingLoss", arguments,
        )  # fmt: skip
        theirs["both directions"] = (
            "hard negatives, both directions", "MultipleNegativesRankingLoss", DIRECTIONS,
        )  # fmt: skip
    requests, arrays = [], {}
    for name, (form, loss, given) in theirs.items():
        texts = FORMS[form][1]
        arrays[f"{name} x"] = example_vectors(texts)
        request = {"do": "loss", "name": loss, "x": f"{name} x", **given}
        if form in ("cosine", "cosent"):
            arrays["scores"] = batch_of(texts)["scores"].reshape(-1)[::2]
            request["labels"] = "scores"
        requests.append(request)
    found = library.ask(packages, tmp_path / "asked", requests, arrays)
    for (name, (form, *_)), (wanted, _) in zip(theirs.items(), found, strict=True):
        texts = FORMS[form][1]
        value, gradient = jax.value_and_grad(functools.partial(loss_of, form, batch_of(texts)))(
            jnp.asarray(placed(example_vectors(texts)))
        )
        np.testing.assert_allclose(float(value) / E, wanted["loss"], rtol=1e-6, err_msg=name)
        own = np.asarray(gradient).reshape(-1, texts, D)[::2] / E
        np.testing.assert_allclose(own, wanted["gradient"], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.nightly
@pytest.mark.processes
@library.WITH_EACH_RELEASE
def test_the_softmax_over_both_vectors_is_that_of_sentence_transformers(
    packages: str, tmp_path: Path
) -> None:
    x, drawn, labels = example_vectors(2), np.random.default_rng(2), np.arange(E) % 4
    kernel, bias = (drawn.normal(size=s).astype(np.float32) for s in ((3 * D, 4), (4,)))
    size = {3: "sentence_embedding_dimension"}.get(library.release(packages), "embedding_dimension")
    request = {
        "do": "loss", "name": "SoftmaxLoss", "x": "x", "labels": "labels", "weight": "weight",
        "bias": "bias", size: D, "num_labels": 4,
    }  # fmt: skip
    arrays = {"x": x, "labels": labels, "weight": kernel.T, "bias": bias}
    ((wanted, _),) = library.ask(packages, tmp_path / "asked", [request], arrays)

    def loss(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        logits = pair_logits(x[None], kernel, bias, (D,), normalize=False)
        batch = {"labels": labels[None], "pair_weights": np.ones((1, E), np.float32)}
        return OBJECTIVES["labeled_pairs"].sums(logits, batch, NO_CORPUS)["loss"] / E

    value, gradients = jax.value_and_grad(loss, argnums=(0, 1, 2))(
        *map(jnp.asarray, (x, kernel, bias))
    )
    np.testing.assert_allclose(float(value), wanted["loss"], rtol=1e-6)
    of_x, of_kernel, of_bias = map(np.asarray, gradients)
    np.testing.assert_allclose(of_x, wanted["gradient"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_kernel.T, wanted["weight gradient"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_bias, wanted["bias gradient"], rtol=1e-5, atol=1e-6)


@EVERY_FORM
def test_devices_compare_the_examples_of_all(form: str) -> None:
    """Per-device code, whose gradients of its own rows are of the loss of all devices."""
    _, texts, _ = FORMS[form]
    x, batch = jnp.asarray(placed(example_vectors(texts))), batch_of(texts)
    one = functools.partial(loss_of, form)
    value, gradient = jax.value_and_grad(one, argnums=1)(batch, x)
    mesh = make_mesh(MeshConfig(data=4, fsdp=2), jax.devices()[:8])
    rows = P(("slice", "data", "fsdp"))

    def on_device(batch: dict, x: jax.Array) -> tuple:
        value, gradient = jax.value_and_grad(one, argnums=1)(batch, x)
        return jax.lax.psum(value, ("data", "fsdp")), gradient

    split = jax.shard_map(
        on_device, mesh=mesh, in_specs=(rows, rows), out_specs=(P(), rows), check_vma=False
    )
    with jax.set_mesh(mesh):
        others, parts = jax.jit(split)(batch, x)
    np.testing.assert_allclose(float(others), float(value), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(parts), np.asarray(gradient), rtol=1e-5, atol=1e-6 * E)


def test_equal_texts_are_no_negatives() -> None:
    """Rows: two questions with one paragraph, one question twice, a pair whose negative is the
    first paragraph, and an empty slot."""
    texts = np.array([[1, 2, 3], [4, 2, 5], [6, 7, 3], [6, 8, 9], [10, 11, 2], [0, 0, 0]])
    index = np.arange(5)
    found = is_candidate(texts[:5, 0], texts, index, np)
    positives, negatives = found[:, :6].astype(int), found[:, 6:].astype(int)
    assert positives.tolist() == [
        [1, 0, 1, 1, 1, 0],
        [0, 1, 1, 1, 1, 0],
        [1, 1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1, 0],
        [1, 1, 1, 1, 1, 0],
    ]
    assert negatives.tolist() == [
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1, 0],
    ]
    back = np.asarray(is_anchor(*map(jnp.asarray, (texts[:5, 1], texts, index)))).astype(int)
    assert back.tolist() == [[*row] for row in positives]
    swapped = np.array([[1, 2], [2, 1]])  # an anchor is no negative of itself
    found = is_candidate(swapped[:, 0], swapped, np.arange(2), np)
    assert found.tolist() == [[True, False], [False, True]]


def test_no_copy_of_a_known_positive_is_a_negative() -> None:
    """Rows: a question with two paragraphs, another with the second of them, and one whose negative
    is the first."""
    texts, index = np.array([[1, 2, 8], [1, 3, 9], [4, 3, 10], [5, 6, 2]]), np.arange(4)
    wanted = [[1, 0, 0, 1], [0, 1, 0, 1], [1, 0, 1, 1], [1, 1, 1, 1]]
    negatives = [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    for xp in (np, jnp):
        found = is_candidate(*map(xp.asarray, (texts[:, 0], texts, index)), xp=xp)
        assert np.asarray(found).astype(int).tolist() == [
            [*a, *b] for a, b in zip(wanted, negatives, strict=True)
        ]
    # a paragraph with two questions, one of which has another paragraph, too
    texts = np.array([[1, 2], [3, 2], [3, 4], [5, 6]])
    back = np.asarray(is_anchor(*map(jnp.asarray, (texts[:, 1], texts, index)))).astype(int)
    assert back.tolist() == [[1, 0, 0, 1], [0, 1, 0, 1], [1, 0, 1, 1], [1, 1, 1, 1]]


def test_the_loss_is_of_the_texts_that_are_left() -> None:
    """The second example has the positive of the first one."""
    x, batch = example_vectors(2), batch_of(2)
    batch["texts"].reshape(-1, 2)[2, 1] = batch["texts"].reshape(-1, 2)[0, 1]
    unit = x.astype(np.float64) / np.linalg.norm(x, axis=-1, keepdims=True)
    scores = 20 * unit[:, 0] @ unit[:, 1].T
    scores[[0, 1], [1, 0]] = -np.inf
    wanted = np.log(np.exp(scores).sum(1)) - np.diag(scores)
    found = loss_of("pairs", batch, jnp.asarray(placed(x)))
    np.testing.assert_allclose(float(found), wanted.sum(), rtol=1e-6)
