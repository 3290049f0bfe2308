"""Sentences of a token store, restored from the vector of what deletion leaves of them: TSDAE.

Tokens are deleted independently of one another, others in every epoch; one always stays (Wang,
Reimers and Gurevych 2021, arXiv 2104.06979; there words). Held-out sentences have the same ones in
every evaluation, and are pairs of neighbors as in `store_pairs`: their whole texts are compared.
"""

import functools
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from bert_jax.config.task_settings import TaskConfig
from bert_jax.data_pipeline.random.counter_rng import below, chance, draw, threshold
from bert_jax.data_pipeline.random.numba_jit import compiled
from bert_jax.finetune.tasks.encoding import Targets
from bert_jax.finetune.tasks.kind import Prepared, TaskContext
from bert_jax.finetune.tasks.labeled_examples import Examples
from bert_jax.finetune.tasks.store_pairs import StoreTask
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.denoising import DENOISING as OBJECTIVE
from bert_jax.objectives.denoising import KEPT


class Denoising(StoreTask):
    """Sentences of a store."""

    name = "denoising"
    objectives = (OBJECTIVE.name,)
    own_settings = ("dense", "normalize", "most_pairs", "deletion", "retrieval")

    def places(self, task: TaskConfig) -> tuple[int, ...]:
        return (0,)

    def labels(self, examples: Examples) -> list[str]:
        return [one.texts[-1] for one in examples.examples]

    def loss(self, task: TaskConfig) -> Any:
        return "reconstruction"

    def prepare(self, context: TaskContext, examples: Examples) -> Prepared:
        prepared = super().prepare(context, examples)
        draws = {KEPT: functools.partial(kept_ids, context.task.deletion)}
        return Prepared(
            prepared.encoded, prepared.targets | Targets(drawn=draws), notes=prepared.notes
        )

    def check_batches(
        self, examples: Examples, prepared: Prepared, batches: Iterable[np.ndarray]
    ) -> None:
        return  # sentences are not compared

    def corpus(self, train: Prepared, vocabulary: int) -> Corpus:
        """Counts each token but the first of a sentence, which is given to the decoder."""
        encoded = train.encoded
        counts = 1.0 + np.bincount(encoded.ids, minlength=vocabulary)
        counts -= np.bincount(encoded.ids[encoded.starts[:-1]], minlength=vocabulary)
        return Corpus((), np.log(counts / counts.sum()).astype(np.float32))


def kept_ids(share: float, key: np.uint64, ids: np.ndarray) -> np.ndarray:
    """Returns the ids of the tokens that are left of a sequence, and -1 after them, int32 [n].

    share: the probability that a token is deleted; the first and the last, [CLS] and [SEP], stay,
    and one of the others in any case.
    """
    found, left = np.full(len(ids), -1, np.int32), ids[_stays(key, len(ids), threshold(share))]
    found[: len(left)] = left
    return found


@compiled
def _stays(key, length, limit):
    stays = np.ones(length, np.bool_)
    for token in range(1, length - 1):
        stays[token] = not chance(draw(key, token), limit)
    if length > 2 and not stays[1:-1].any():
        stays[1 + below(draw(key, 0), length - 2)] = True
    return stays


DENOISING: Final = Denoising()
