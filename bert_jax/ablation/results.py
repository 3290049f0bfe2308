"""The results of an ablation: the held-out values of its runs, and their differences.

Runs that ended with 44, or are not better than the unigram on the primary measure, are in no mean.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.ablation import state, statistics
from bert_jax.ablation.spec import Ablation, Run, folder
from bert_jax.ablation.state import RunState
from bert_jax.ablation.statistics import Difference, Verdict
from bert_jax.ablation.tasks import is_task
from bert_jax.errors import UserError
from bert_jax.metrics import goodput, records
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.training import per_example
from bert_jax.training.held_out_form import OWN
from bert_jax.training.per_example import PerExample
from bert_jax.workdir.layout import Workdir


@dataclasses.dataclass(frozen=True)
class Measured:
    """The held-out values of a run, by the full name of their form."""

    run: Run
    forms: Mapping[str, PerExample]
    metrics: Mapping[str, Mapping[str, Any]]
    bigram_loss: float
    sources: Sequence[str]
    held_out: str  # digest of the text
    seconds: float  # that its evaluation took, fine-tuning for tasks included


@dataclasses.dataclass(frozen=True)
class Results:
    """The runs of an ablation that were measured, the states of all, and their differences."""

    ablation: Ablation
    workdir: str
    runs: Sequence[Run]
    states: Mapping[str, RunState]  # by the name of the run
    measured: Mapping[str, Measured]  # the same

    @functools.cached_property
    def excluded(self) -> dict[str, str]:
        """Run -> why it is in no mean."""
        primary = self.ablation.values.primary
        form = OWN if is_task(primary) else self.ablation.form(primary)
        reasons = {
            name: f"ended with 44: {found.reason}"
            for name, found in self.states.items()
            if found.state == "diverged"
        }
        for name, each in self.measured.items():
            own = each.metrics[form]
            loss, unigram = (own[f"{MASKED_LM.name}/{key}"] for key in ("loss", "baseline_loss"))
            if not loss < unigram:
                reasons[name] = f"loss {loss:.3f} is not below the unigram's {unigram:.3f}"
        return reasons

    def of(self, variant: str) -> dict[int, Measured]:
        """Returns the runs of a variant that count, by seed."""
        return {
            each.run.seed: each
            for name, each in self.measured.items()
            if each.run.variant == variant and name not in self.excluded
        }

    def failed(self, variant: str) -> list[str]:
        """Returns the runs of a variant that are in no mean."""
        own = (run.name for run in self.runs if run.variant == variant)
        return [name for name in own if name in self.excluded]

    def mean(self, variant: str, form: str, key: str) -> float | None:
        """Returns the mean of a metric over the seeds of a variant; None without a run."""
        found = [each.metrics[form][key] for each in self.of(variant).values()]
        return float(np.mean(found)) if found else None

    @functools.cached_property
    def primary(self) -> dict[str, Difference]:
        """Returns the difference of each variant in the primary measure, in nats."""
        return dict(self._compared(self.ablation.values.primary, "loss"))

    @functools.cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """Returns the verdict on each variant; none in favour of one with more failed runs than the
        reference."""
        differences = self.primary
        found = statistics.verdicts(differences)
        allowed = len(self.failed(self.ablation.reference))
        for name, verdict in found.items():
            better = differences[name].mean < 0
            if verdict.shown and better and len(self.failed(name)) > allowed:
                found[name] = dataclasses.replace(verdict, shown=None)
        return found

    @functools.cached_property
    def differences(self) -> list[tuple[str, str, str, str, Difference]]:
        """Of each (measure, what, source, variant): loss in nats and accuracy, in all text ("") and
        in each source."""
        rows = []
        for measure in self.ablation.measures:
            for what in ("loss", "correct"):
                for source in ("", *self._sources(measure)):
                    for variant, found in self._compared(measure, what, source):
                        rows.append((measure, what, source, variant, found))
        return rows

    def _sources(self, measure: str) -> Sequence[str]:
        """Returns the sources of held-out text; a task has none."""
        first = next(iter(self.measured.values()), None)
        if is_task(measure):
            return ()
        return first.sources if first and len(first.sources) > 1 else ()

    def _compared(
        self, measure: str, what: str, source: str = ""
    ) -> Iterator[tuple[str, Difference]]:
        form, reference = self.ablation.form(measure), self.of(self.ablation.reference)
        for variant in self.ablation.variants[1:]:
            own = self.of(variant.name)
            seeds = [seed for seed in self.ablation.seeds if seed in own and seed in reference]
            if seeds:
                pairs = [(own[seed], reference[seed]) for seed in seeds]
                found = _difference(pairs, form, what, source)
                if found:
                    yield variant.name, found

    def hours(self, variant: str) -> float | None:
        """Returns the mean hours of a trained run of a variant, None without one."""
        names = [run for run in self.runs if run.variant == variant and run.name in self.measured]
        if not names:
            return None
        seconds = [_wall_seconds(folder(self.workdir, run)) for run in names]
        return float(np.mean(seconds)) / 3600


def _wall_seconds(workdir: str) -> float:
    """Returns the time from the first start of a run to its last record."""
    return goodput.account(list(records.records(Workdir.open(workdir).metrics))).wall


def _difference(
    pairs: Sequence[tuple[Measured, Measured]], form: str, what: str, source: str
) -> Difference | None:
    """Returns the difference of a variant to the reference; None if the source has no examples, or
    nothing can be right in the form, such as in a regression.

    pairs: the two runs of each seed.
    """
    first = pairs[0][1].forms[form]
    if what not in judged(first)[1]:
        return None
    taken = np.ones(len(first.document), bool)
    if source:
        taken = first.source == list(pairs[0][1].sources).index(source)
    if not taken.any():
        return None
    kept, documents = np.unique(first.document[taken], return_inverse=True)
    values = []
    for own, theirs in pairs:
        ours = _aligned(own, first, form)[what], _aligned(theirs, first, form)[what]
        values.append(ours[0][taken].astype(np.float64) - ours[1][taken])
    sums = statistics.by_document(np.stack(values), documents, len(kept))
    count = judged(first)[1]["count"][taken].astype(np.float64)
    return statistics.compare(sums, statistics.by_document(count, documents, len(kept)))


def judged(examples: PerExample) -> tuple[str, Mapping[str, np.ndarray]]:
    """Returns the objective that a form compares, and its sums: masked tokens, or the task's."""
    name = MASKED_LM.name
    if name not in examples.sums:
        (name,) = examples.sums
    return name, examples.sums[name]


def _aligned(each: Measured, first: PerExample, form: str) -> Mapping[str, np.ndarray]:
    """Returns the sums of a run that are compared; UserError if its examples are others."""
    own, count = each.forms[form], judged(first)[1]["count"]
    _, sums = judged(own)
    if not (np.array_equal(own.document, first.document) and np.array_equal(sums["count"], count)):
        raise UserError(
            f"{each.run.name}: measured on other examples in {form} than the first run; remove its "
            ".npz file, and `bert-jax ablate run` measures it again"
        )
    return sums


def read(ablation: Ablation, workdir: str, runs: Sequence[Run]) -> Results:
    """Reads what the runs in a workdir have given so far."""
    forms = {measure: ablation.form(measure) for measure in ablation.measures}
    states = {run.name: state.state_of(workdir, run, forms) for run in runs}
    measured = {}
    for run in runs:
        if states[run.name].state == "measured":
            values, about = per_example.read(state.examples_of(workdir, run))
            metrics = {name: own["metrics"] for name, own in about["forms"].items()}
            seconds = about["seconds"]
            for measure in ablation.tasks:
                examples, of_task = per_example.read(state.task_examples(workdir, run, measure))
                (values[measure],) = examples.values()
                (metrics[measure],) = (own["metrics"] for own in of_task["forms"].values())
                trained = state.task_folder(workdir, run, measure)
                seconds += of_task["seconds"] + _wall_seconds(trained)
            measured[run.name] = Measured(
                run,
                values,
                metrics,
                about["bigram_loss"],
                about["sources"],
                about["held_out"],
                seconds,
            )
    return Results(ablation, workdir, runs, states, measured)


def own_objectives(each: Measured) -> list[str]:
    """Returns the names of the objectives that a run was trained with."""
    return list(each.forms[OWN].sums)
