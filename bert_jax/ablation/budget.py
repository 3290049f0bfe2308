"""Budgets of the runs of an ablation: updates, real tokens, positions and FLOPs.

All variants spend alike, as `config.equal` says, in each phase: the reference decides how much, and
the steps of the others follow, rounded. Warmups are scaled with the steps. What remains different
is named with every verdict.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from bert_jax.ablation.spec import Ablation, Run
from bert_jax.ablation.stores import Stores
from bert_jax.aot.lower import teacher_of
from bert_jax.config.schema import Config, PhaseConfig
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.metrics import run_records
from bert_jax.metrics.flops import step_flops
from bert_jax.training.batches import phase_batches
from bert_jax.training.resolve import with_teacher_width
from bert_jax.workdir.layout import Workdir

NAMED: Final = 1.02  # a ratio above is named with the verdict
TOLERATED: Final = 1.05  # above, of updates or tokens: not attributable to the setting alone
_TITLES: Final = {
    "steps": "updates", "real_tokens": "real tokens", "positions": "positions", "flops": "FLOPs",
}  # fmt: skip
_CONFOUNDING: Final = ("steps", "real_tokens")


@dataclasses.dataclass(frozen=True)
class Budget:
    """The budget of one run of a variant."""

    steps: float  # updates
    real_tokens: float  # padding not counted
    positions: float  # with padding
    flops: float


@dataclasses.dataclass(frozen=True)
class Contrast:
    """The budget of a variant next to that of the reference, in words.

    Attributes:
        others: ratios over 2 %, such as "31 % more updates"; without `cost`.
        cost: "31 % more FLOPs", if they are more than 5 % more.
        confounds: what differs by more than 5 % and is no consequence of the setting.
        unknown: runs that did not record what they spent.
    """

    others: tuple[str, ...]
    cost: str
    confounds: tuple[str, ...]
    unknown: tuple[str, ...] = ()

    @property
    def is_attributable(self) -> bool:
        """Returns whether a difference is that of the setting alone."""
        return not self.confounds and not self.unknown

    @property
    def text(self) -> str:
        """Returns the words for a verdict, "" where nothing differs."""
        parts = [f", with {_listed(self.others)}"] if self.others else []
        parts += [f"; costs {self.cost}"] if self.cost else []
        why = [_listed(self.confounds)] if self.confounds else []
        if self.unknown:
            runs = f"{_listed(self.unknown)}, whose metrics.jsonl is incomplete"
            why.append(f"updates and real tokens are unknown for {runs}")
        if why:
            parts.append(f"; not attributable to the setting alone: {'; '.join(why)}")
        return "".join(parts)


def contrast(own: Budget, reference: Budget, consequences: Sequence[str] = ()) -> Contrast:
    """Returns what a variant spends beside the reference.

    consequences: names of what the setting itself decides, see `AblationConfig`.
    """
    others, confounds, cost = [], [], ""
    for name, title in _TITLES.items():
        ours, theirs = getattr(own, name), getattr(reference, name)
        ratio = max(ours, theirs) / min(ours, theirs)
        text = f"{_percent(abs(ours / theirs - 1))} {'more' if ours > theirs else 'fewer'} {title}"
        if ours > TOLERATED * theirs and name == "flops":
            cost = text
        elif ratio > NAMED:
            follows = name in consequences
            others.append(f"{text} (a consequence of the setting)" if follows else text)
            if ratio > TOLERATED and name in _CONFOUNDING and not follows:
                confounds.append(title)
    return Contrast(tuple(others), cost, tuple(confounds))


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %") if share >= 0.0995 else f"{100 * share:.1f} %"


def _listed(parts: Sequence[str]) -> str:
    """Returns "a, b and c"."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def equalize_budgets(ablation: Ablation, stores: Stores) -> tuple[Ablation, dict[str, Budget]]:
    """Returns the ablation with the steps of each variant, and what a run of each is to spend.

    Raises:
        UserError: the teacher of a variant is not there.
    """
    reference = ablation.variants[0].config
    per_step = {v.name: _per_step(v.config, stores[v.config.data.store]) for v in ablation.variants}
    variants, spent = [], {}
    for variant in ablation.variants:
        steps = [
            _steps(ablation.values.equal, phase.steps, theirs, ours)
            for phase, theirs, ours in zip(
                reference.phases, per_step[ablation.reference], per_step[variant.name], strict=True
            )
        ]
        variants.append(dataclasses.replace(variant, config=_with_steps(variant.config, steps)))
        parts = list(zip(steps, per_step[variant.name], strict=True))
        spent[variant.name] = Budget(
            *(
                sum(number * getattr(each, field.name) for number, each in parts)
                for field in dataclasses.fields(Budget)
            )
        )
    return dataclasses.replace(ablation, variants=tuple(variants)), spent


def _per_step(config: Config, store: TokenStore) -> list[Budget]:
    """Returns what a step of each phase spends; UserError if its teacher is not there."""
    if teacher := teacher_of(config):
        config = with_teacher_width(config, teacher)
    return [
        Budget(
            1,
            _real_tokens(config, phase, store),
            phase.batch_size * phase.row_tokens,
            step_flops(config, phase, teacher),
        )
        for phase in config.phases
    ]


def _real_tokens(config: Config, phase: PhaseConfig, store: TokenStore) -> float:
    fill_rate, _ = phase_batches(config, store, store.train, phase).fill_rate()
    return phase.batch_size * phase.row_tokens * fill_rate


def _steps(equal: str, steps: int, theirs: Budget, ours: Budget) -> int:
    """Returns the steps with which a variant spends what the reference spends in `steps`."""
    return max(1, round(steps * getattr(theirs, equal) / getattr(ours, equal)))


def _with_steps(config: Config, steps: Sequence[int]) -> Config:
    """Returns the configuration with other steps, and warmups of the same share of them."""
    warmup = round(config.optimizer.warmup_steps * sum(steps) / config.total_steps)
    phases = []
    for phase, number in zip(config.phases, steps, strict=True):
        own = phase.warmup_steps
        scaled = None if own is None else round(own * number / phase.steps)
        phases.append(dataclasses.replace(phase, steps=number, warmup_steps=scaled))
    optimizer = dataclasses.replace(config.optimizer, warmup_steps=warmup)
    return dataclasses.replace(config, optimizer=optimizer, phases=tuple(phases))


def measured(
    workdir: Workdir, run: Run, planned: Budget, first_step: int = 0
) -> tuple[Budget, bool]:
    """Returns what a run that was trained to its last step spent, by its own records: the updates
    that were not skipped, and the real tokens of its batches; and whether the records are whole,
    those of every `log_every_steps` to the last. Positions and FLOPs follow from the
    configuration. Without records all is as planned.

    first_step: updates done before the run, by the model that it continues.
    """
    skipped = len(run_records.read_records(workdir.metrics, "skipped"))
    steps = tokens = 0.0
    whole = 0  # steps
    found = run_records.read_records(workdir.metrics, "train")
    for length, record in _intervals(found, first_step):
        phase = run.config.phases[_index(record.get("phase"), len(run.config.phases))]
        if run_records.is_finite(padding := record.get("padding")) and 0 <= padding <= 1:
            steps += length
            tokens += length * phase.batch_size * phase.row_tokens * (1 - padding)
            whole += length if length <= run.config.log_every_steps else 0
    total = run.config.total_steps - first_step
    share = _positions(run.config, first_step) / _positions(run.config, 0)
    real = tokens * total / steps if steps else planned.real_tokens * share
    spent = Budget(total - skipped, real, planned.positions * share, planned.flops * share)
    return spent, whole == total


def _positions(config: Config, first_step: int) -> int:
    """Returns the positions of all batches from a step on."""
    found, begins = 0, 0
    for phase in config.phases:
        ends = begins + phase.steps
        found += max(0, ends - max(begins, first_step)) * phase.batch_size * phase.row_tokens
        begins = ends
    return found


def _index(phase: Any, phases: int) -> int:
    """Returns the number of the phase that a record names, which may be damaged."""
    return min(phase, phases - 1) if isinstance(phase, int) and phase >= 0 else 0


def _intervals(found: Iterable[Mapping], before: int) -> Iterator[tuple[int, Mapping]]:
    """Yields each record with the number of steps since the one before; before: the first one."""
    for record in found:
        yield record["step"] - before, record
        before = record["step"]


def mean(spent: Sequence[Budget]) -> Budget:
    """Returns what several runs spent on average."""
    names = [field.name for field in dataclasses.fields(Budget)]
    return Budget(*(sum(getattr(each, name) for each in spent) / len(spent) for name in names))
