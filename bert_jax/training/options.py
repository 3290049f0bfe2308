"""The options of a run: what a start of it is asked for, besides its configuration."""

import dataclasses
from typing import Any, Final

from bert_jax.runtime import duration
from bert_jax.training.profiling import Steps


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """The options of a run, for `pretrain` and `finetune` alike; a flag of a field's name gives it.

    Attributes:
        strict_restore: fail at a checkpoint that is damaged or of another run, instead of moving it
            to quarantine and restoring an older one.
        adopt: use checkpoints in the workdir although they belong to another run.
        profile: steps to profile.
        wandb: project of Weights & Biases that metrics are sent to, too.
        time_budget: seconds that decide the steps of a new run, instead of the configuration's; not
            of a task, whose epochs decide them.
        stop_after: save and stop at this step, as if preempted there; no flag.
    """

    strict_restore: bool = False
    adopt: bool = False
    profile: Steps | None = None
    wandb: str | None = None
    time_budget: float | None = None
    stop_after: int | None = None

    @classmethod
    def parse(
        cls, *, profile: str | None = None, time_budget: str | None = None, **others: Any
    ) -> "RunOptions":
        """Returns the options, with durations and steps in words; UsageError for a wrong one."""
        return cls(
            profile=Steps.parse(profile) if profile else None,
            time_budget=None if time_budget is None else duration.parse("time_budget", time_budget),
            **others,
        )


DEFAULTS: Final = RunOptions()
