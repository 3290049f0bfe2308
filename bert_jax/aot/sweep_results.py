"""The results of a search of `bert-jax compile --sweep`: what it tried, and what it chose."""

import dataclasses

from bert_jax.aot.memory_advice import Change, flags
from bert_jax.aot.report_data import PhaseReport


@dataclasses.dataclass(frozen=True)
class Trial:
    """One candidate.

    changes: config overrides by key. phases: reports of the compiled phases, up to the first that
    does not fit. refusal: why the candidate is ruled out, None if it is valid.
    """

    changes: Change
    phases: tuple[PhaseReport, ...] = ()
    refusal: str | None = None

    @property
    def seconds(self) -> float | None:
        """Time of all steps, estimated, on GPUs a lower bound; None if ruled out or unknown."""
        each = [p.ranked_seconds and p.phase.steps * p.ranked_seconds for p in self.phases]
        return None if self.refusal or not all(each) else sum(s for s in each if s)

    @property
    def tokens_per_second(self) -> float | None:
        """Throughput of all devices over the phases, padding included."""
        tokens = sum(p.phase.steps * p.phase.batch_size * p.phase.row_tokens for p in self.phases)
        return tokens / self.seconds if self.seconds else None

    @property
    def needed(self) -> int:
        """Most bytes per device in any phase; 0 if nothing was compiled."""
        return max((phase.memory.total for phase in self.phases), default=0)

    @property
    def flags(self) -> str:
        """The command-line flags that apply the changes."""
        return flags(self.changes)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """tried: in the order of the search. left: candidates not tried within the time limit.
    in_loop: what all candidates have besides, where the search had the layers in a loop.
    unrolled: the best without that, with its layers unrolled; None if there was no time for it."""

    tried: tuple[Trial, ...]
    left: tuple[Change, ...]
    seconds: float
    in_loop: Change = dataclasses.field(default_factory=dict)
    unrolled: Trial | None = None

    @property
    def ranked(self) -> tuple[Trial, ...]:
        """The candidates that fit, the fastest first."""
        fitting = (trial for trial in self.tried if trial.tokens_per_second)
        return tuple(sorted(fitting, key=lambda trial: -(trial.tokens_per_second or 0)))

    @property
    def best(self) -> Trial | None:
        return next(iter(self.ranked), None)

    @property
    def chosen(self) -> Change | None:
        """The changes of the config that make the best; None if no candidate fits."""
        if self.best is None:
            return None
        as_given = self.unrolled and not self.unrolled.refusal
        return self.best.changes if as_given else {**self.in_loop, **self.best.changes}

    @property
    def refused(self) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.tried if trial.refusal)
