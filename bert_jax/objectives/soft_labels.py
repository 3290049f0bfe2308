"""Losses against the soft labels of a teacher, what it predicts for the training examples.

    loss = (1 - w) · loss of the labels + w · T² · KL(teacher ‖ student)

Both are softened by the temperature T: their logits are divided by it. T² makes up for the
gradients, which shrink with 1/T² (Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a
Neural Network", section 2). A batch with a teacher has the array `TEACHER`: probabilities at T, or
scores. Sizes: [...] examples, tokens or questions, C classes or labels.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.parallel.global_batch import Batch

TEACHER: Final = "teacher"  # batch array, float32
Sums = dict[str, jax.Array]


@dataclass(frozen=True)
class SoftLoss:
    """The loss of an objective against soft labels.

    Attributes:
        targets: (logits of a teacher, temperature) -> what the batch has of them, float32.
        sums: (logits, batch, weights, temperature) -> "teacher_loss", in nats or squared;
            "teacher_correct", how often the first guess is the teacher's, if there are guesses; and
            sums for `baselines`.
        baselines: (sums, count) -> the metrics of the best constant prediction.
        softens: whether a temperature has an effect.
    """

    targets: Callable[[np.ndarray, float], np.ndarray]
    sums: Callable[[Any, Batch, jax.Array, float], Sums]
    baselines: Callable[[Mapping[str, Any], float], dict[str, float]]
    softens: bool = True

    def scale(self, temperature: float) -> float:
        """Returns the factor of "teacher_loss" in the loss of a run."""
        return temperature**2 if self.softens else 1.0

    def summarize(self, sums: Mapping[str, Any], count: float) -> dict[str, float]:
        """Returns the metrics of predictions beside those of trivial ones."""
        found = {"teacher_loss": float(sums["teacher_loss"]) / count}
        if "teacher_correct" in sums:
            found["teacher_agreement"] = float(sums["teacher_correct"]) / count
        return found | self.baselines(sums, count)


def softmax(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Returns probabilities over the last dimension, float32, computed in float64."""
    scaled = np.asarray(logits, np.float64) / temperature
    powers = np.exp(scaled - scaled.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True)).astype(np.float32)


def divergence(logits: jax.Array, teacher: jax.Array) -> jax.Array:
    """Returns KL(teacher ‖ softmax of logits) in nats, float32 [...].

    Args:
        logits: float32 [..., C], -inf where the teacher has 0.
        teacher: probabilities, float32 [..., C]; the result is 0 where all are.
    """
    has = teacher > 0
    ratio = jnp.log(jnp.where(has, teacher, 1)) - jax.nn.log_softmax(logits)
    return jnp.sum(jnp.where(has, teacher * ratio, 0), axis=-1)


def entropy(teacher: jax.Array) -> jax.Array:
    """Returns -sum p log p in nats, float32 [...], of [..., C]."""
    return jax.scipy.special.entr(teacher).sum(-1)


def _total(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns the weighted sums of [..., C] over all but the last dimension, [C]."""
    return (values * weights[..., None]).reshape(-1, values.shape[-1]).sum(0)


def _class_sums(logits: jax.Array, batch: Batch, weights: jax.Array, temperature: float) -> Sums:
    """teacher: float32 [..., C]; logits: of the same numbers, whatever their shape."""
    teacher = batch[TEACHER]
    logits, guess = logits.reshape(teacher.shape), teacher.argmax(-1)
    return {
        "teacher_loss": jnp.sum(divergence(logits / temperature, teacher) * weights),
        "teacher_correct": jnp.sum((logits.argmax(-1) == guess) * weights),
        "teacher_entropy": jnp.sum(entropy(teacher) * weights),
        "teacher_sum": _total(teacher, weights),
        "teacher_guesses": _total(jax.nn.one_hot(guess, teacher.shape[-1]), weights),
    }


def _class_baselines(sums: Mapping[str, Any], count: float) -> dict[str, float]:
    """The constant that is nearest to all soft labels is their mean: its divergence is the entropy
    of the mean less the mean entropy."""
    mean = np.asarray(sums["teacher_sum"], np.float64) / count
    own = float(sums["teacher_entropy"]) / count
    return {
        "baseline_teacher_loss": _entropy(mean) - own,
        "baseline_teacher_agreement": float(np.max(sums["teacher_guesses"])) / count,
    }


def _entropy(shares: np.ndarray) -> float:
    seen = shares[shares > 0]
    return float(-(seen * np.log(seen)).sum())


def _sigmoid(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Returns the probability of each label, float32, computed in float64."""
    scaled = np.asarray(logits, np.float64) / temperature
    return np.exp(-np.logaddexp(0, -scaled)).astype(np.float32)


def _label_sums(logits: jax.Array, batch: Batch, weights: jax.Array, temperature: float) -> Sums:
    """The mean over labels, each a divergence of two answers; teacher: float32 [..., C]."""
    teacher, x = batch[TEACHER], logits / temperature
    both = jnp.stack([teacher, 1 - teacher], axis=-1)
    loss = divergence(jnp.stack([x, jnp.zeros_like(x)], axis=-1), both)
    same = (x > 0) == (teacher > 0.5)
    return {
        "teacher_loss": jnp.sum(loss.mean(-1) * weights),
        "teacher_correct": jnp.sum(same.mean(-1) * weights),
        "teacher_entropy": jnp.sum(entropy(both).mean(-1) * weights),
        "teacher_sum": _total(teacher, weights),
        "teacher_guesses": _total((teacher > 0.5).astype(jnp.float32), weights),
    }


def _label_baselines(sums: Mapping[str, Any], count: float) -> dict[str, float]:
    """The mean over labels of what `_class_baselines` has of classes."""
    means, guesses = (np.asarray(sums[f"teacher_{x}"], np.float64) for x in ("sum", "guesses"))
    constants = [_entropy(np.array([mean, 1 - mean])) for mean in means / count]
    return {
        "baseline_teacher_loss": float(np.mean(constants)) - float(sums["teacher_entropy"]) / count,
        "baseline_teacher_agreement": float(np.maximum(guesses, count - guesses).mean()) / count,
    }


def _score_sums(logits: jax.Array, batch: Batch, weights: jax.Array, temperature: float) -> Sums:
    """Squared error, the mean over outputs; teacher: float32 [..., C], its scores."""
    teacher = batch[TEACHER]
    return {
        "teacher_loss": jnp.sum(jnp.square(logits - teacher).mean(-1) * weights),
        "teacher_sum": _total(teacher, weights),
        "teacher_squares": _total(jnp.square(teacher), weights),
    }


def _score_baselines(sums: Mapping[str, Any], count: float) -> dict[str, float]:
    """The variance of the scores."""
    means, squares = (
        np.asarray(sums[f"teacher_{x}"], np.float64) / count for x in ("sum", "squares")
    )
    return {"baseline_teacher_loss": float(np.mean(squares - np.square(means)))}


OF_CLASSES: Final = SoftLoss(softmax, _class_sums, _class_baselines)
OF_LABELS: Final = SoftLoss(_sigmoid, _label_sums, _label_baselines)
OF_SCORES: Final = SoftLoss(
    lambda logits, temperature: np.asarray(logits, np.float32),
    _score_sums,
    _score_baselines,
    softens=False,
)
