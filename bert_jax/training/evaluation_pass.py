"""The held-out rows of a phase, evaluated in one pass with one fixed masking.

The examples and masks depend only on the store, the sequence length, the pairing and the masking:
runs that differ in seed, batch size, packing, mixing or static masks are evaluated on the same
ones. A limit (`config.evaluation.batches`) takes the first limit * batch_size rows, so results are
comparable only between runs where that product is equal.
"""

import abc
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import jax
import numpy as np

from bert_jax.config.schema import Config, PhaseConfig
from bert_jax.data_pipeline import assemble
from bert_jax.data_pipeline.analysis.baselines import tokens_per_document
from bert_jax.data_pipeline.batch import prefetch
from bert_jax.data_pipeline.masking.masking_settings import MODES
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.metrics import spread
from bert_jax.metrics.neighbor_attention import neighbor_metrics
from bert_jax.metrics.step_metrics import SumAccumulator
from bert_jax.objectives import total as objectives
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.known_objectives import OBJECTIVES
from bert_jax.parallel import global_batch
from bert_jax.parallel.global_batch import Batch
from bert_jax.training.batches import held_out_config, phase_batches
from bert_jax.training.fill_step import FILLS
from bert_jax.training.per_example import PerExample
from bert_jax.training.step import StepFunctions

Rows = Callable[..., assemble.Batch]


class EvaluationPass(abc.ABC):
    """One pass over held-out rows, in batches of `batch_size`; as the training loop asks for it.

    Args:
        corpus: of the rows, as `make_step_functions` takes it.
        make: returns rows of a batch, by its index.
    """

    def __init__(self, corpus: Corpus, make: Rows, batch_size: int, num_batches: int) -> None:
        self.corpus, self.num_batches = corpus, num_batches
        self._make, self.batch_size = make, batch_size

    def no_rows(self) -> assemble.Batch:
        """Returns a batch without rows: its names, dtypes and widths."""
        return self._make(0, rows=[])

    def compile(self, program: StepFunctions) -> jax.stages.Compiled:
        """Compiles the evaluation step for batches of these rows."""
        return program.compile_evaluate(self.no_rows(), self.batch_size)

    def evaluate(
        self,
        program: StepFunctions,
        params: dict,
        advance: Callable[[float], None] = lambda tokens: None,
        *,
        compiled: jax.stages.Compiled | None = None,
        begin: Callable[[], None] = lambda: None,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> dict[str, float]:
        """Returns the metrics of all rows, see `_summary`, and the attention on neighbouring tokens
        if the config measures it.

        Args:
            advance: called with the number of real tokens of each batch.
            compiled: the evaluation step, if it was compiled ahead of time.
            begin: called before each batch; an exception from it ends the evaluation.
            while_waiting: see `prefetch`.
        """
        totals, parts = SumAccumulator(), []
        step = functools.partial(compiled or program.evaluate, params)
        for sums in self._sums(program, step, advance, begin, while_waiting):
            parts.append(self._take_rows(sums))
            totals.add(sums)
        attention = totals.sums.pop("attention", None)
        found = self._summary(program, totals.sums, parts)
        return found | (neighbor_metrics(attention) if attention else {})

    def before_training(
        self, params: dict, begin: Callable[[], None] = lambda: None
    ) -> Mapping[str, Mapping[str, float]]:
        """Returns what evaluations are compared with, measured once by the initial parameters: the
        metrics of a task by the name of each row; nothing by default. begin: as of `evaluate`."""
        return {}

    def _sums(
        self,
        program: StepFunctions,
        step: Callable[[Batch], Any],
        advance: Callable[[float], None],
        begin: Callable[[], None] = lambda: None,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> Iterator[Any]:
        """Yields what `step` returns of each batch."""

        def place(index: int) -> dict[str, jax.Array]:
            rows = functools.partial(self._make, index)
            return global_batch.global_batch(rows, program.rows, self.batch_size)

        with closing(prefetch(place, 0, self.num_batches, while_waiting=while_waiting)) as batches:
            for _, batch in batches:
                begin()
                sums = step(batch)
                yield sums
                # Of the batch, or of each row.
                advance(float(np.asarray(sums["tokens"]["real"]).sum()))

    @abc.abstractmethod
    def _take_rows(self, sums: dict[str, Any]) -> Any:
        """Removes from the sums of a batch what is of each row or example, and returns it."""

    @abc.abstractmethod
    def _summary(
        self, program: StepFunctions, sums: dict[str, Any], parts: list[Any]
    ) -> dict[str, float]:
        """Returns the metrics, from the sums of all batches and what was taken from each."""


class HeldOut(EvaluationPass):
    """The held-out split in the shapes of a phase; `evaluate` may be called repeatedly.

    A pass visits the same rows and masks in one fixed random order, so that a prefix is an unbiased
    sample. Rows past the end are empty and have zero weight.
    """

    def __init__(self, config: Config, phase: PhaseConfig, store: TokenStore):
        """Uses at most `config.evaluation.batches` * `phase.batch_size` rows; 0 batches = all."""
        eval_config = held_out_config(config, phase)
        batch_size = eval_config.phases[0].batch_size
        self._batches = phase_batches(eval_config, store, store.held_out, eval_config.phases[0])
        self._store = store
        total, limit = self._batches.rows_per_epoch, config.evaluation.batches * phase.batch_size
        self.rows = min(total, limit or total)
        super().__init__(
            self.corpus_of(config.data.masking),
            self._batches.evaluation_batch,
            batch_size,
            -(-self.rows // batch_size),
        )

    def corpus_of(self, masking: str) -> Corpus:
        """Returns the frequencies of what is predicted in such rows with a masking: only RoBERTa's
        predicts special tokens, which the token counts do not include."""
        predicted = MODES[masking].masks_specials
        specials = self._batches.specials_per_token() if predicted else (0.0, 0.0)
        return Corpus.of(self._store, specials)

    def _take_rows(self, sums: dict[str, Any]) -> Any:
        sums.pop(FILLS, None)  # of rows whose first prediction is none to be shown
        return jax.tree.map(global_batch.local_values, sums.pop(objectives.ROWS))

    def _summary(
        self, program: StepFunctions, sums: dict[str, Any], parts: list[Any]
    ) -> dict[str, float]:
        """Returns losses, accuracies and baselines of the held-out rows, and what `_means` says of
        them."""
        scalars = objectives.summarize(sums, self._store.sources)
        return scalars | self._means(self._per_example(self._gathered(program, parts)))

    def evaluate_examples(
        self,
        program: StepFunctions,
        params: dict,
        advance: Callable[[float], None] = lambda tokens: None,
    ) -> tuple[dict[str, float], PerExample]:
        """Returns what `evaluate` returns, without attention, and the values of every example."""
        step = functools.partial(program.evaluate_rows, params)
        found = self._sums(program, step, advance)
        parts = [jax.tree.map(global_batch.local_values, sums) for sums in found]
        batches = self._gathered(program, parts)
        # Rows past the end have no weight, but they count as padding.
        sums = jax.tree.map(lambda x: sum(batch.sum(0, np.float64) for batch in x), batches)
        values = self._per_example(batches)
        return objectives.summarize(sums, self._store.sources) | self._means(values), values

    def _gathered(self, program: StepFunctions, parts: Sequence[Any]) -> Any:
        """Returns the sums of each row of each batch, [batches, B, …], from those of the rows that
        each process holds, [n, …] of each batch."""
        local = jax.tree.map(lambda *batches: np.stack(batches), *parts)
        return global_batch.gather_batches(local, program.rows, self.batch_size)

    def _per_example(self, batches: Any) -> PerExample:
        """Returns the values of the examples, from what `_gathered` returns."""
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[: self.rows], batches)
        own = {name: of for name, of in rows.items() if name != "tokens"}
        known = {name: of for name, of in own.items() if name in OBJECTIVES}
        trivial = {name: OBJECTIVES[name].baseline_rows(of) for name, of in known.items()}
        examples = self._batches.evaluation_examples(self.rows)
        ends = np.cumsum(tokens_per_document(self._store.held_out))
        documents = np.searchsorted(ends, examples.first_token, "right")
        return PerExample.of_rows(examples.number, documents, examples.source, own, trivial)

    def _means(self, values: PerExample) -> dict[str, float]:
        """Returns what the means of each objective are of, predictions and documents, with half the
        width of their 95 % intervals and of their baselines'; of several sources, the means of
        each, too."""
        kept, documents = np.unique(values.document, return_inverse=True)
        scalars = {"documents": float(len(kept))}
        for name, own in values.sums.items():
            count = own["count"]
            scalars[f"{name}/count"] = float(count.sum(dtype=np.float64))
            sources = np.unique(values.source[count > 0])
            for what, key in (("loss", "loss"), ("accuracy", "correct")):
                if key not in own:
                    continue
                _, margin = _mean(own[key], count, documents)
                scalars[f"{name}/{what}_margin"] = margin
                if (trivial := values.baselines.get(name, {}).get(key)) is not None:
                    _, margin = _mean(trivial, count, documents)
                    scalars[f"{name}/baseline_{what}_margin"] = margin
                for source in sources if len(sources) > 1 else ():
                    of = values.source == source
                    mean, margin = _mean(own[key][of], count[of], documents[of])
                    inside = f"{name}/{self._store.sources[source]}/{what}"
                    scalars |= {inside: mean, f"{inside}_margin": margin}
        return scalars


def _mean(sums: np.ndarray, counts: np.ndarray, documents: np.ndarray) -> tuple[float, float]:
    """Returns the mean over predictions, and how much it varies with the choice of documents.

    Args:
        sums, counts: of each example [N], not all without predictions.
        documents: int [N], the index of each example's.
    """
    by_document, count = np.bincount(documents, sums), np.bincount(documents, counts)
    return float(by_document.sum() / count.sum()), spread.margin(by_document, count)
