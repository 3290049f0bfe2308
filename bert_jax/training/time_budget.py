"""`--time_budget`: the speed of the first steps decides once how many steps a run has.

Before a new run starts, its first steps train a state that is then dropped; their speed decides the
steps of all phases. The run starts from its initial state with these steps in its configuration,
so it is bit for bit the run that was configured with them, and the clock is never read again.
`config.json` records the decision, and every later start of the run uses it.
"""

import bisect
import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from bert_jax.config.optimizer_settings import STABLE
from bert_jax.config.schema import Config
from bert_jax.distributed.job import Job
from bert_jax.errors import UserError, count
from bert_jax.runtime.console import clock
from bert_jax.runtime.log import logger
from bert_jax.training import claim
from bert_jax.training.setup import RunContext, with_steps
from bert_jax.training.speed import Measured, measure
from bert_jax.workdir.layout import Workdir

_MOST_STEPS = 2**31 - 1  # of a run


@dataclasses.dataclass(frozen=True)
class TimeBudget:
    """The time budget of a start: none, a recorded decision, or one that is still to be made."""

    config: Config  # with the decided steps, if they are recorded
    # `time_budget` of config.json: seconds, the steps of each phase as configured and as decided.
    record: dict[str, Any] | None = None
    seconds: float | None = None  # the budget that is still to be measured

    @classmethod
    def read(
        cls, config: Config, workdir: Workdir, job: Job, seconds: float | None
    ) -> "TimeBudget":
        """Returns the budget of a run: process 0 reads what the workdir records.

        Args:
            seconds: the time budget of this start, if it has one.

        Raises:
            UserError: the model to start from has begun its schedule, or as `claim.check_free`.
        """
        text = ""
        if job.peers.is_first:
            text = json.dumps(_recorded(config, workdir, seconds))
        record, undecided = json.loads(job.peers.all_gather_text("time budget", text)[0])
        if undecided and config.init_optimizer == "carry":
            raise UserError(
                "--time_budget sets the steps of a new schedule, but config.init_optimizer=carry "
                "continues that of a model; leave out one of the two"
            )
        if record:
            config = config.with_steps(record["steps"])
        return cls(config, record, seconds if undecided else None)

    def decide(self, run: RunContext) -> RunContext:
        """Returns the run with the steps that fit the budget, and the decision in its description.

        Raises:
            UserError: the budget is too short for the shortest run.
        """
        record = self.record
        if self.seconds is not None:
            record = _measured_record(run, self.seconds)
            run = with_steps(run, record["steps"])
        if record is None:
            return run
        return dataclasses.replace(run, description=run.description | {"time_budget": record})


def _recorded(
    config: Config, workdir: Workdir, seconds: float | None
) -> tuple[dict[str, Any] | None, bool]:
    """Returns the decision recorded in a workdir that holds for this configuration, and whether one
    is still to be made. Steps that were configured differently since then replace a decision."""
    old, started = claim.recorded_run(workdir, config)
    record = old.get("time_budget") if old else None
    if record and record["config_steps"] == [phase.steps for phase in config.phases]:
        effect = "" if seconds in (None, record["seconds"]) else "; --time_budget changes nothing"
        logger.info(
            f"trains {count(sum(record['steps']), 'step')}, decided at its start by a time budget "
            f"of {clock(record['seconds'])}{effect}"
        )
        return record, False
    if seconds is not None and started:
        logger.info(
            f"{workdir}: --time_budget decides the steps of a new run; this run has started and "
            f"keeps its {count(config.total_steps, 'step')}"
        )
    return None, seconds is not None and not started


def _measured_record(run: RunContext, seconds: float) -> dict[str, Any]:
    """Returns the decision of process 0, after all processes have measured together."""
    measured, text = measure(run, seconds), ""
    if run.job.peers.is_first:
        steps = steps_within(seconds, run.config, run.description["step_flops"], measured)
        configured = [phase.steps for phase in run.config.phases]
        text = json.dumps({"seconds": seconds, "config_steps": configured, "steps": steps})
    return dict(json.loads(run.job.peers.all_gather_text("time budget", text)[0]))


def steps_within(
    seconds: float, config: Config, step_flops: Sequence[float], measured: Measured
) -> list[int]:
    """Returns the steps of each phase of the longest run within a time budget.

    Phases keep their proportions, each with at least one step.

    Args:
        seconds: the budget.
        step_flops: operations of a step of each phase.

    Raises:
        UserError: not even the shortest run ends in time.
    """

    def needed(total: int) -> float:
        return _run_seconds(_shared(config, total), config, step_flops, measured)

    total = bisect.bisect_right(range(1, _MOST_STEPS - len(config.phases)), seconds, key=needed)
    shortest = _shortest(config)
    if total < shortest:
        warmup = config.optimizer.warmup_steps
        lower = f", or a lower --config.optimizer.warmup_steps ({warmup:,} now)" if warmup else ""
        raise UserError(
            f"--time_budget={seconds:g}s: the shortest run has {shortest:,} steps, more than its "
            f"warmup, and ends after about {math.ceil(needed(shortest)):,} s, of which "
            f"{math.ceil(measured.elapsed):,} s were for compiling and measuring; give a longer "
            f"budget{lower}"
        )
    steps = _shared(config, total)
    logger.info(
        f"time budget {clock(seconds)}, {clock(measured.elapsed)} of it used: "
        f"{count(sum(steps), 'step')} at {measured.step:.3g} s/step, "
        f"{measured.evaluation:.3g} s per evaluation, {measured.save:.3g} s per checkpoint"
    )
    return steps


def _shared(config: Config, total: int) -> list[int]:
    """Returns about `total` steps shared among the phases in proportion to their own."""
    return [max(1, round(total * phase.steps / config.total_steps)) for phase in config.phases]


def _run_seconds(
    steps: Sequence[int], config: Config, step_flops: Sequence[float], measured: Measured
) -> float:
    """Returns the seconds from the start of the job to the end of a run with these steps.

    Later phases take the time of the first in proportion to the operations of a step. The first
    phase's evaluation is in the cache of compiled programs. A checkpoint waits until the previous
    one is written.
    """
    evaluate_every, save_every = config.evaluation.every_steps, config.checkpoint.every_steps
    total = measured.elapsed + len(steps) * measured.compile_train
    total += (len(steps) - 1) * measured.compile_evaluate + measured.write
    done = 0
    for own, flops in zip(steps, step_flops, strict=True):
        slower, last = flops / step_flops[0], done + own
        evaluations = _times_due(evaluate_every, done, last)
        total += slower * (own * measured.step + evaluations * measured.evaluation)
        wait = max(0.0, measured.write - save_every * slower * measured.step)
        total += _times_due(save_every, done, last) * (measured.save + wait)
        done = last
    return total


def _times_due(every: int, first: int, last: int) -> int:
    """Returns how often something due every `every` steps, and after the last, is due in a phase.
    first, last: updates done at its start and end."""
    return last // every - first // every + (last % every > 0)


def _shortest(config: Config) -> int:
    """Returns the steps of the shortest run that trains beyond its warmups, before any decay."""
    stable = config.optimizer.schedule in STABLE
    shortest = len(config.phases)
    for span in config.schedule_spans:
        if span.warmup_steps:
            rest = 1 - stable * span.decay_steps / span.steps
            share = config.total_steps / span.steps
            shortest = max(shortest, math.ceil((span.warmup_steps / rest + 1) * share))
    return shortest
