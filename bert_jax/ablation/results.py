"""The results of an ablation: the held-out values of its runs, and their differences.

Runs that are not as planned, that ended with 44, whose values are not all finite, or that are not
better than the unigram on the primary measure, are left out of all means.
"""

# Over 300 lines: one class, whose figures are computed once and from one another.

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bert_jax.ablation import as_planned, budget, state, statistics
from bert_jax.ablation.as_planned import Workdirs
from bert_jax.ablation.budget import Budget, Contrast
from bert_jax.ablation.layout import AblationDir
from bert_jax.ablation.measured import (
    REMEDY,
    Measured,
    damage,
    judged,
    not_finite,
    on_others,
)
from bert_jax.ablation.record import Record
from bert_jax.ablation.spec import Ablation, Run
from bert_jax.ablation.state import RunState, Values
from bert_jax.ablation.statistics import Difference, Verdict
from bert_jax.ablation.tasks import is_task
from bert_jax.metrics import goodput, run_records
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.storage.reader_errors import VALUE_ERRORS
from bert_jax.training.eval_setting import OWN
from bert_jax.training.per_example import DamagedValuesError
from bert_jax.workdir.layout import Workdir


@dataclasses.dataclass(frozen=True)
class Results:
    """The runs of an ablation that were measured, the states of all, and their differences.

    Attributes:
        states, measured: by the name of the run.
        planned: what a run of each variant is to spend.
        unplanned: run -> in what it is not as planned.
        record: what `ablation.json` records.
    """

    ablation: Ablation
    workdir: AblationDir
    runs: Sequence[Run]
    states: Mapping[str, RunState]
    measured: Mapping[str, Measured]
    planned: Mapping[str, Budget]
    unplanned: Mapping[str, Sequence[str]]
    record: Record

    @functools.cached_property
    def excluded(self) -> dict[str, str]:
        """Run -> why it is left out of all means."""
        unplanned = {name: as_planned.sentence(own) for name, own in self.unplanned.items()}
        return self.failures | unplanned

    @functools.cached_property
    def failures(self) -> dict[str, str]:
        """Run -> in what it failed."""
        primary = self.ablation.values.primary
        form = OWN if is_task(primary) else self.ablation.form(primary)
        reasons = {
            name: f"ended with 44: {found.reason}"
            for name, found in self.states.items()
            if found.state == "diverged"
        }
        for name, each in self.measured.items():
            if what := not_finite(each):
                reasons[name] = f"held-out values are not finite: {what}"
                continue
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
        """Returns the runs of a variant that failed."""
        own = (run.name for run in self.runs if run.variant == variant)
        return [name for name in own if name in self.failures and name not in self.unplanned]

    def other(self, compared: str) -> list[str]:
        """Returns the runs of two compared variants, see `Ablation.compared`, that are not as
        planned."""
        pair = self.ablation.compared[compared]
        own = (run.name for run in self.runs if run.variant in pair)
        return [name for name in own if name in self.unplanned]

    def failed_more(self, compared: str, found: Difference) -> bool:
        """Returns whether the better one of two variants has more failed runs, which are in no
        mean: those that remain are its better ones."""
        variant, other = (len(self.failed(name)) for name in self.ablation.compared[compared])
        return variant > other if found.mean < 0 else other > variant

    @property
    def seen(self) -> tuple[int, ...]:
        """The seeds of which a variant and the reference are measured."""
        first, *others = (
            {each.run.seed for each in self.measured.values() if each.run.variant == variant.name}
            for variant in self.ablation.variants
        )
        return tuple(seed for seed in self.ablation.seeds if seed in first & set().union(*others))

    @functools.cached_property
    def spent(self) -> dict[str, Budget]:
        """Returns what the runs of each variant that count spent on average; as planned without
        one."""
        own = {name: [each.spent for each in self.of(name).values()] for name in self.planned}
        return {n: budget.mean(spent) if spent else self.planned[n] for n, spent in own.items()}

    def contrast(self, compared: str) -> Contrast:
        """Returns what a variant spent beside what it is compared with, see `Ablation.compared`."""
        variant, other = self.ablation.compared[compared]
        consequences = self.ablation.values.consequences
        found = budget.contrast(self.spent[variant], self.spent[other], consequences)
        return dataclasses.replace(found, unknown=self.unrecorded(variant, other))

    def unrecorded(self, *variants: str) -> tuple[str, ...]:
        """Returns the runs of variants that count and did not record what they spent."""
        own = (each for variant in variants for each in self.of(variant).values())
        return tuple(each.run.name for each in own if not each.is_recorded)

    def mean(self, variant: str, form: str, key: str) -> float | None:
        """Returns the mean of a metric over the seeds of a variant; None without a run, or where
        a run has no such number."""
        own = [each.metrics[form].get(key) for each in self.of(variant).values()]
        found = [value for value in own if run_records.is_finite(value)]
        return float(np.mean(found)) if found and len(found) == len(own) else None

    @functools.cached_property
    def primary(self) -> dict[str, Difference]:
        """Returns the difference of each variant in the primary measure, in nats."""
        names = {variant.name for variant in self.ablation.variants}
        return {key: found for key, found in self.of_primary.items() if key in names}

    @functools.cached_property
    def of_primary(self) -> dict[str, Difference]:
        """Returns the same of each comparison, see `Ablation.compared`."""
        return dict(self._compared(self.ablation.values.primary, "loss"))

    @functools.cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """Returns the verdict on each variant, corrected for the number of planned variants; none
        where runs are not as planned, and none in favour of the one, variant or reference, with
        more failed runs."""
        differences = self.primary
        planned = {name: each for name, each in differences.items() if not self.other(name)}
        found = dict.fromkeys(differences, Verdict(float("nan"), None))
        found |= statistics.verdicts(planned, len(self.ablation.variants) - 1)
        for name, verdict in found.items():
            if verdict.shown and self.failed_more(name, differences[name]):
                found[name] = dataclasses.replace(verdict, shown=None)
        return found

    @functools.cached_property
    def differences(self) -> list[tuple[str, str, str, str, Difference]]:
        """One row per (metric, quantity, source, compared): loss in nats and accuracy, in all text
        ("") and in each source; for `compared` see `Ablation.compared`."""
        rows = []
        for measure in self.ablation.measures:
            for what in ("loss", "correct"):
                for source in ("", *self._sources(measure)):
                    for compared, found in self._compared(measure, what, source):
                        rows.append((measure, what, source, compared, found))
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
        form = self.ablation.form(measure)
        for compared, (variant, other) in self.ablation.compared.items():
            own, theirs = self.of(variant), self.of(other)
            seeds = [seed for seed in self.ablation.seeds if seed in own and seed in theirs]
            if seeds:
                pairs = [(own[seed], theirs[seed]) for seed in seeds]
                found = _difference(pairs, form, what, source)
                if found:
                    yield compared, found

    def hours(self, variant: str) -> float | None:
        """Returns the mean hours of a trained run of a variant, None without one."""
        names = [run for run in self.runs if run.variant == variant and run.name in self.measured]
        if not names:
            return None
        seconds = [_wall_seconds(self.workdir.run(run)) for run in names]
        return float(np.mean(seconds)) / 3600


def _wall_seconds(workdir: Workdir) -> float:
    """Returns the time from the first start of a run to its last record."""
    return goodput.account(list(run_records.records(workdir.metrics))).wall


def _difference(
    pairs: Sequence[tuple[Measured, Measured]], form: str, what: str, source: str
) -> Difference | None:
    """Returns the difference of a variant to another; None if the source has no examples, or
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
        ours, others = (judged(each.forms[form])[1][what][taken] for each in (own, theirs))
        values.append(ours.astype(np.float64) - others)
    sums = statistics.by_document(np.stack(values), documents, len(kept))
    count = judged(first)[1]["count"][taken].astype(np.float64)
    return statistics.compare(sums, statistics.by_document(count, documents, len(kept)))


def read_results(
    ablation: Ablation,
    workdir: AblationDir,
    runs: Sequence[Run],
    planned: Mapping[str, Budget],
    record: Record,
) -> Results:
    """Reads what the runs in a workdir have given so far.

    planned: what a run of each variant is to spend. record: what `ablation.json` records.
    """
    forms = {measure: ablation.form(measure) for measure in ablation.measures}
    states = {run.name: state.state_of(workdir, run, forms) for run in runs}
    dirs = Workdirs(workdir)
    unplanned = {run.name: as_planned.differences(ablation, dirs, run, record) for run in runs}
    for compare in (as_planned.between, as_planned.between_tasks):
        for name, reason in compare(ablation, dirs, runs):
            unplanned[name].append(reason)
    measured = {}
    for run in runs:
        found = states[run.name]
        if found.state == "damaged":
            unplanned[run.name].append(found.reason)
        if found.values:
            try:
                one, other = _measured(ablation, dirs, run, found.values, planned, record)
                bad = damage(ablation, one)
            except DamagedValuesError as error:
                other, bad = [], str(error)
            except VALUE_ERRORS:
                other, bad = [], f"not all values are those that are written ({REMEDY})"
            unplanned[run.name] += [*other, *filter(None, [bad])]
            if not bad:
                measured[run.name] = one
    for name, reason in on_others(ablation, measured):
        unplanned[name].append(reason)
    unplanned = {name: own for name, own in unplanned.items() if own}
    return Results(ablation, workdir, runs, states, measured, planned, unplanned, record)


def _measured(
    ablation: Ablation,
    dirs: Workdirs,
    run: Run,
    of_text: Values,
    planned: Mapping[str, Budget],
    record: Record,
) -> tuple[Measured, list[str]]:
    """Returns the values of a run, and in what they are not as planned."""
    workdir = dirs.root
    values, about = dict(of_text[0]), of_text[1]
    other = as_planned.of_values(ablation, run, record, about)
    metrics = {name: own["metrics"] for name, own in about["forms"].items()}
    seconds = about["seconds"]
    for measure in ablation.tasks:
        examples, of_task = state.values_in(workdir.values(run, measure))
        (values[measure],) = examples.values()
        (metrics[measure],) = (own["metrics"] for own in of_task["forms"].values())
        seconds += of_task["seconds"]
        seconds += _wall_seconds(workdir.run(run, measure))
        other += as_planned.of_task_values(dirs, run, measure, record, of_task)
    spent, is_recorded = budget.measured(
        workdir.run(run), run, planned[run.variant], dirs.of(run).first_step
    )
    return Measured(
        run=run,
        forms=values,
        metrics=metrics,
        bigram_loss=about["bigram_loss"],
        sources=about["sources"],
        spent=spent,
        is_recorded=is_recorded,
        software=as_planned.software(dirs.of(run)),
        seconds=seconds,
    ), other
