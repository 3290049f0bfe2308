"""Cross-entropy with labels and with a teacher's predictions, from the states before the output.

Both networks predict a token as states · tableᵀ + bias. Where the loss looks at every position of
a batch, its logits are far larger than anything else in a step (512 tokens of 256 rows over 30,522
entries: 16 GB for each network in float32). So positions are taken in pieces, and the forward pass
of a piece makes the gradients of its states, table and bias at once: no logits are kept, and none
are computed twice. It is the arithmetic of a softmax head by autodiff: two products for the
logits, one of each network, and two for the student's gradients.

Sizes: B rows, P positions in a row, V padded vocabulary; E and F, the widths of the states of
student and teacher; G groups of rows.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.ops.sums import over_positions

_LOWEST = np.float32(-1e9)  # logit of a padding row: finite, so that 0 · log 0 is 0
_PIECE = 2048  # positions of one device in a piece


class Output(NamedTuple):
    """The factors of a network's logits; padding rows of the vocabulary have bias -inf."""

    states: jax.Array  # [B, P, E]
    table: jax.Array  # [V, E]
    bias: jax.Array  # float32 [V]


class Targets(NamedTuple):
    """Labels and weights of each position."""

    labels: jax.Array  # int32 [B, P]
    labelled: jax.Array  # float32 [B, P], 1 where the label counts
    taught: jax.Array  # float32 [B, P], 1 where the teacher counts
    log_baseline: jax.Array  # float32 [V]: the unigram's log-probabilities, at the temperature
    baseline_first: jax.Array  # int32 scalar, its first guess


class Scale(NamedTuple):
    """Factors of the two sums in the loss."""

    labels: jax.Array  # float32 scalar
    teacher: jax.Array  # the same; the square of the temperature is not in it


class Figures(NamedTuple):
    """Sums over the positions that count, each [B]. They have no gradients."""

    label_loss: jax.Array  # -log p(label), nats
    label_correct: jax.Array
    kl: jax.Array  # KL(teacher ‖ student), both at the temperature, nats
    agreement: jax.Array  # whether both have the same first guess, or the same among equal ones
    baseline_kl: jax.Array  # the same of the unigram in place of the student
    baseline_agreement: jax.Array


def baseline(
    log_unigram: np.ndarray, size: int, temperature: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns `log_baseline` and `baseline_first` of `Targets`. Of NumPy arrays: a compiler would
    take a second to fold them.

    Args:
        log_unigram: float32 [V'], V' ≤ V, log-frequencies of the entries.
        size: V.
    """
    scaled = log_unigram.astype(np.float64) / temperature
    log_p = scaled - np.log(np.sum(np.exp(scaled - scaled.max()))) - scaled.max()
    missing = (0, size - len(log_p))
    padded = np.pad(log_p.astype(np.float32), missing, constant_values=_LOWEST)
    return padded, np.asarray(log_unigram.argmax(), np.int32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def distillation_loss(
    student: Output,
    teacher: Output,
    targets: Targets,
    scale: Scale,
    temperature: float,
    groups: int,
) -> tuple[jax.Array, Figures]:
    """Returns scale.labels · Σ -log p(label) + scale.teacher · T² · Σ KL(teacher ‖ student), and
    the sums behind it (Hinton et al. 2015, arXiv 1503.02531; T² keeps the gradients' size).

    Only the student has gradients.

    Args:
        temperature: T, which divides both networks' logits in the divergence.
        groups: G of equally many rows, whose gradients of table and bias are added up at the end
            only: the number of devices that share the batch where XLA partitions the program,
            1 where it runs on each device.
    """
    return _forward(student, teacher, targets, scale, temperature, groups)[0]


def _forward(student, teacher, targets, scale, temperature, groups):
    rows, positions = targets.labels.shape
    pieces = max(1, -(-rows // groups * positions // _PIECE))
    width = -(-positions // pieces)

    def cut(x: jax.Array) -> jax.Array:
        """[B, P, …] -> [pieces, G, B/G, width, …], with zeros where there are no positions."""
        padding = [(0, 0), (0, pieces * width - positions), *[(0, 0)] * (x.ndim - 2)]
        x = jnp.pad(x, padding).reshape(groups, rows // groups, pieces, width, *x.shape[2:])
        return jnp.moveaxis(x, 2, 0)

    student_bias, teacher_bias = (jnp.maximum(x.bias, _LOWEST) for x in (student, teacher))
    table = student.table.astype(student.states.dtype)

    def piece(sums: tuple, xs: tuple) -> tuple:
        states, theirs, labels, labelled, taught = xs
        logits = _logits(states, student.table, student_bias)
        wanted = _logits(theirs, teacher.table, teacher_bias)
        gradient, figures = _of_logits(
            logits, wanted, labels, labelled, taught, targets, scale, temperature
        )
        gradient = gradient.astype(states.dtype)
        of_table, of_bias = sums
        of_table += jnp.einsum(
            "gbpv,gbpe->gve", gradient, states, preferred_element_type=jnp.float32
        )
        of_bias += over_positions(gradient)
        of_states = jnp.einsum("gbpv,ve->gbpe", gradient, table)
        return (of_table, of_bias), (of_states, figures)

    zeros = tuple(jnp.zeros((groups, *x.shape), jnp.float32) for x in student[1:])
    xs = (student.states, teacher.states, *targets[:3])
    scanned: tuple = jax.lax.scan(piece, zeros, jax.tree.map(cut, xs))
    (of_table, of_bias), (of_states, figures) = scanned
    # [pieces, G, B/G, width, E] -> [B, P, E]
    of_states = jnp.moveaxis(of_states, 0, 2).reshape(rows, pieces * width, -1)[:, :positions]
    gradients = Output(of_states, of_table.sum(0).astype(student.table.dtype), of_bias.sum(0))
    figures = Figures(*(x.sum(0).reshape(rows) for x in figures))
    loss = scale.labels * figures.label_loss.sum()
    loss += scale.teacher * temperature**2 * figures.kl.sum()
    return (loss, figures), gradients


def _backward(temperature, groups, gradients, cotangents):
    del temperature, groups
    of_loss = cotangents[0]
    scaled = jax.tree.map(lambda x: (x * of_loss).astype(x.dtype), gradients)
    return scaled, None, None, None


distillation_loss.defvjp(_forward, _backward)


def _logits(states: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
    """[G, b, p, E] -> float32 [G, b, p, V]"""
    product = jnp.einsum(
        "gbpe,ve->gbpv", states, table.astype(states.dtype), preferred_element_type=jnp.float32
    )
    return product + bias[None, None, None]


def _of_logits(logits, wanted, labels, labelled, taught, targets, scale, temperature):
    """Returns the gradient of the loss in the student's logits, and the figures of a piece, each
    [G, b].

    The logits are the largest arrays of a step, so they are read three times in all: for the
    highest of each position, for the sums of exponentials, and for the gradient.

    logits, wanted: of student and teacher, float32 [G, b, p, V].
    """
    top, their_top = (x.max(-1, keepdims=True) for x in (logits, wanted))
    ids = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    is_label = ids == labels[..., None]
    x, y = logits - top, wanted - their_top  # at most 0
    soft, theirs = jnp.exp(x / temperature), jnp.exp(y / temperature)

    def total(values: jax.Array) -> jax.Array:
        return jnp.sum(values, axis=-1)

    of_label = total(jnp.where(is_label, x, 0))
    hard_total, soft_total, their_total = map(total, (jnp.exp(x), soft, theirs))
    apart = total(theirs * (y - x)) / temperature
    from_baseline = total(theirs * (y / temperature - targets.log_baseline[None, None, None]))
    # An argmax is a pass of its own; the highest logits come with the products.
    at_first = jnp.max(jnp.where(y >= 0, x, _LOWEST), axis=-1)
    of_baseline = total(jnp.where(ids == targets.baseline_first, y, 0))
    figures = Figures(
        label_loss=(jnp.log(hard_total) - of_label) * labelled,
        label_correct=(of_label >= 0) * labelled,
        kl=(apart / their_total + jnp.log(soft_total / their_total)) * taught,
        agreement=(at_first >= 0) * taught,
        baseline_kl=(from_baseline / their_total - jnp.log(their_total)) * taught,
        baseline_agreement=(of_baseline >= 0) * taught,
    )
    hard = scale.labels * labelled
    softened = scale.teacher * temperature * taught
    gradient = (
        (hard / hard_total)[..., None] * jnp.exp(x)
        - jnp.where(is_label, hard[..., None], 0)
        + (softened / soft_total)[..., None] * soft
        - (softened / their_total)[..., None] * theirs
    )
    return gradient, Figures(*(x.sum(-1) for x in figures))
