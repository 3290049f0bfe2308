"""Held-out evaluation: one pass over the held-out rows with one fixed masking."""

import functools

from bert_jax import objectives, sharding
from bert_jax.config import Config, PhaseConfig
from bert_jax.metrics import Totals
from bert_jax.step import Program
from data_pipeline.batch import Batches


class HeldOut:
    """The held-out split of a run, evaluated as often as asked.

    The pass visits the rows in one fixed random order, the same rows and masks every time, so that
    its beginning is a fair sample; rows past the end are empty and have no weight.
    """

    def __init__(
        self, config: Config, phase: PhaseConfig, batches: Batches, corpus: objectives.Corpus
    ):
        whole = -(-batches.rows_per_epoch // phase.batch_size)
        self.num_batches = min(whole, config.evaluation.batches or whole)
        self._phase, self._batches, self._sources = phase, batches, corpus.sources

    def evaluate(self, program: Program, params: dict) -> dict[str, float]:
        """Losses, accuracies and baselines over at most `config.evaluation.batches` batches."""
        totals = Totals()
        for index in range(self.num_batches):
            make = functools.partial(self._batches.once, index)
            batch = sharding.global_batch(make, program.rows, self._phase.batch_size)
            totals.add(program.evaluate(params, batch))
        return objectives.summarize(totals.sums, self._sources)
