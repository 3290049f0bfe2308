"""The loss of a student in pieces: its value and gradients against all logits at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.ops import distillation_loss as op


def outputs(rng: np.random.Generator, width: int) -> op.Output:
    """Of 4 rows of 37 positions and 200 entries, ten of them padding."""
    states, table = rng.normal(size=(4, 37, width)), rng.normal(size=(200, width))
    bias = np.where(np.arange(200) < 190, rng.normal(size=200), -np.inf)
    return op.Output(*(jnp.asarray(x, jnp.float32) for x in (states, table, bias)))


def plain_loss(
    student: op.Output, teacher: op.Output, targets: op.Targets, scale: op.Scale, T: float
) -> jax.Array:
    """The loss from all logits at once."""

    def logits(one: op.Output) -> jax.Array:
        return (jnp.einsum("bpe,ve->bpv", one.states, one.table) + one.bias[None, None])[..., :190]

    own, wanted = logits(student), logits(teacher)
    log_p = jax.nn.log_softmax(own)
    hard = -jnp.take_along_axis(log_p, targets.labels[..., None], -1)[..., 0]
    soft, soft_wanted = jax.nn.log_softmax(own / T), jax.nn.log_softmax(wanted / T)
    kl = jnp.sum(jnp.exp(soft_wanted) * (soft_wanted - soft), -1)
    loss = scale.labels * (hard * targets.labelled).sum()
    return loss + scale.teacher * T**2 * (kl * targets.taught).sum()


def plain_figures(
    student: op.Output, teacher: op.Output, targets: op.Targets, T: float
) -> dict[str, float]:
    """The sums of the figures from all logits at once, in float64."""

    def logits(one: op.Output) -> np.ndarray:
        states, table, bias = (np.asarray(x, np.float64) for x in one)
        return (states @ table.T + bias)[..., :190]

    def log_softmax(x: np.ndarray) -> np.ndarray:
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    own, wanted = logits(student), logits(teacher)
    theirs = log_softmax(wanted / T)
    even = np.asarray(targets.log_baseline, np.float64)[:190]
    labelled, taught = (np.asarray(x) for x in (targets.labelled, targets.taught))
    first = wanted.argmax(-1)

    def apart(ours: np.ndarray) -> np.ndarray:
        return np.sum(np.exp(theirs) * (theirs - ours), -1) * taught

    return {
        "label_correct": ((own.argmax(-1) == targets.labels) * labelled).sum(),
        "kl": apart(log_softmax(own / T)).sum(),
        "agreement": ((own.argmax(-1) == first) * taught).sum(),
        "baseline_kl": apart(even).sum(),
        "baseline_agreement": ((first == int(targets.baseline_first)) * taught).sum(),
    }


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_pieces_give_the_loss_and_the_gradients_of_all_logits(
    groups: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op, "_PIECE", 32)
    rng = np.random.default_rng(0)
    student, teacher = outputs(rng, 16), outputs(rng, 24)
    labels = jnp.asarray(rng.integers(0, 190, (4, 37)), jnp.int32)
    chosen = [jnp.asarray(rng.random((4, 37)) < share, jnp.float32) for share in (0.2, 0.8)]
    unigram = np.asarray(jax.nn.log_softmax(jnp.asarray(rng.normal(size=190), jnp.float32)))
    guess = map(jnp.asarray, op.baseline(unigram, 200, temperature))
    targets, scale = op.Targets(labels, *chosen, *guess), op.Scale(*map(jnp.float32, (0.3, 0.2)))

    def pieces(student: op.Output) -> tuple:
        return op.distillation_loss(student, teacher, targets, scale, temperature, groups)

    with jax.default_matmul_precision("highest"):
        (loss, figures), gradients = jax.value_and_grad(pieces, has_aux=True)(student)
        wanted, their_gradients = jax.value_and_grad(plain_loss)(
            student, teacher, targets, scale, temperature
        )
        itself = op.distillation_loss(teacher, teacher, targets, scale, temperature, groups)[1]
    np.testing.assert_allclose(loss, wanted, rtol=1e-6)
    for ours, theirs in zip(gradients, their_gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    for name, value in plain_figures(student, teacher, targets, temperature).items():
        np.testing.assert_allclose(getattr(figures, name).sum(), value, rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(itself.kl, 0, atol=1e-4)
    np.testing.assert_allclose(itself.agreement.sum(), chosen[1].sum())
