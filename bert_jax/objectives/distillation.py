"""Learning from a teacher: its predictions and its last states, beside the masked tokens.

The loss of DistilBERT (`config.distillation`): see `config/distillation_settings.py`. Sizes: B
rows, S positions, P those where the loss looks, H and T the widths of student and teacher.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from bert_jax.config.distillation_settings import DistillationConfig
from bert_jax.model.heads import without_padding
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.encoder_with_heads import PretrainingModel
from bert_jax.objectives.masked_lm import MASKED_LM, unigram_sums
from bert_jax.objectives.positions import real_tokens, slots_of_positions, with_slots
from bert_jax.objectives.total import Sums, all_sums
from bert_jax.ops.distillation_loss import Output, Scale, Targets, baseline, distillation_loss
from bert_jax.parallel.global_batch import Batch

DISTILLATION = "distillation"  # of the sums of a step, and prefix of its metrics
_SHORTEST = 1e-8  # length of a vector below which its cosine is not defined


def taught(batch: Batch, settings: DistillationConfig) -> jax.Array:
    """Returns the weights, 0 or 1, of the positions where the loss looks, [B, P]."""
    if settings.positions == "masked":
        return batch["masked_weights"]
    return real_tokens(batch)


def distillation_sums(
    student: PretrainingModel,
    teacher: PretrainingModel,
    batch: Batch,
    key: jax.Array,
    corpus: Corpus,
    counts: Mapping[str, jax.Array],
    settings: DistillationConfig,
    groups: int,
) -> tuple[jax.Array, Sums]:
    """Returns the training loss and the sums behind it, as `all_sums`.

    Those of `DISTILLATION`, over the positions where the loss looks: the divergence in nats, at the
    temperature, and equal first guesses, both also of the unigram, and the cosine.

    Args:
        counts: denominators of the global batch, of each objective and of `DISTILLATION`.
        groups: of rows, see `ops.distillation_loss`.
    """
    x_BxSxH = student.encoded(batch, key)
    theirs_BxSxT = jax.lax.stop_gradient(teacher.encoded(batch))
    others = student.logits(x_BxSxH, batch, key, without=(MASKED_LM.name,))
    loss, sums = all_sums(others, batch, corpus, counts)
    size = student.encoder.config.padded_vocab_size
    targets = _targets(batch, settings, baseline(corpus.log_unigram, size, settings.temperature))
    if settings.positions == "masked":
        places_BxPx1 = batch["masked_positions"][..., None]
        x_BxSxH, theirs_BxSxT = (
            jnp.take_along_axis(x, places_BxPx1, axis=1) for x in (x_BxSxH, theirs_BxSxT)
        )
    scale = Scale(
        settings.mlm_weight / counts[MASKED_LM.name], settings.kl_weight / counts[DISTILLATION]
    )
    own, figures = distillation_loss(
        _output(student, x_BxSxH),
        _output(teacher, theirs_BxSxT),
        targets,
        scale,
        settings.temperature,
        groups,
    )
    loss, count = loss + own, targets.taught.sum()
    by_name = {name: x.sum() for name, x in figures._asdict().items()} | {"count": count}
    if settings.cosine_weight:
        by_name["cosine"] = jnp.sum(_cosine(student, x_BxSxH, theirs_BxSxT) * targets.taught)
        away = count - by_name["cosine"]
        loss += settings.cosine_weight / counts[DISTILLATION] * away
    sums[MASKED_LM.name] = {
        "loss": by_name.pop("label_loss"),
        "correct": by_name.pop("label_correct"),
        **unigram_sums(batch["masked_labels"], batch["masked_weights"], corpus),
    }
    return loss, {**sums, DISTILLATION: by_name}


def _output(model: PretrainingModel, x_BxPxH: jax.Array) -> Output:
    head = getattr(model, MASKED_LM.head)
    bias = without_padding(head.config, head.bias[...])
    return Output(head.transformed(x_BxPxH), model.encoder.embeddings.word[...], bias)


def _targets(batch: Batch, settings: DistillationConfig, unigram: tuple) -> Targets:
    labels_BxP, labelled_BxP = batch["masked_labels"], batch["masked_weights"]
    if settings.positions == "all":
        none_BxS = jnp.zeros_like(batch["example_ids"])
        labels_BxP = with_slots(none_BxS, batch, labels_BxP)
        labelled_BxP = slots_of_positions(batch)
    weights_BxP = taught(batch, settings)
    return Targets(labels_BxP, labelled_BxP, weights_BxP, *map(jnp.asarray, unigram))


def _cosine(student: PretrainingModel, x_BxPxH: jax.Array, theirs_BxPxT: jax.Array) -> jax.Array:
    """Returns the cosine of both networks' states, float32 [B, P]."""
    if hasattr(student, "teacher_projection"):
        x_BxPxH = student.teacher_projection(x_BxPxH)
    x, y = x_BxPxH.astype(jnp.float32), theirs_BxPxT.astype(jnp.float32)
    lengths = jnp.sum(x * x, -1) * jnp.sum(y * y, -1)
    return jnp.sum(x * y, -1) * jax.lax.rsqrt(jnp.maximum(lengths, _SHORTEST**2))
