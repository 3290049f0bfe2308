"""Restart policy: two budgets, one for preemptions and one for failures."""

import dataclasses

from bert_jax.exit_codes import LOST, STOPPED

UNLIMITED = -1  # as --max_preemptions and --max_failures
_MAX_PAUSE = 30.0  # seconds between a failure and the next start
_MAX_DOUBLINGS = 10  # 2**1024, after as many failures, is no float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Restart budgets, and timeouts for the job's processes in seconds."""

    max_preemptions: int = 100
    max_failures: int = 3
    grace: float = 25.0  # from the request to stop until the checkpoint is saved
    noticing: float = 15.0  # to detect that another process is gone
    margin: float = 15.0  # to exit, in addition to the above or after SIGTERM
    between: float = 1.0  # from the first failure to the next start; doubles each time


@dataclasses.dataclass(frozen=True)
class Decision:
    """The decision to restart a job or not: after how many seconds, and why."""

    again: bool
    pause: float
    reason: str


NOT_AGAIN = Decision(again=False, pause=0.0, reason="not started again")


@dataclasses.dataclass
class Restarts:
    """The restarts that a job has used."""

    preemptions: int = 0
    failures: int = 0

    def after(self, code: int, limits: Limits) -> Decision:
        """Decides whether a job that ended with an exit code is restarted; counts the restart.

        code: as from `exit_codes.verdict`; not 0.
        """
        if code == STOPPED:
            return self._restart("preemptions", limits.max_preemptions, pause=0.0)
        if code == LOST:
            pause = min(limits.between * 2 ** min(self.failures, _MAX_DOUBLINGS), _MAX_PAUSE)
            return self._restart("failures", limits.max_failures, pause)
        return NOT_AGAIN

    def _restart(self, budget: str, most: int, pause: float) -> Decision:
        used = getattr(self, budget)
        if used == most:
            used_up = f"{most} of {most} {budget} used (--max_{budget})"
            return Decision(again=False, pause=0.0, reason=f"not started again: {used_up}")
        setattr(self, budget, used + 1)
        after = f" in {pause:g} s" if pause else ""
        left = (
            f"{used + 1} {budget} so far"
            if most == UNLIMITED
            else f"{most - used - 1} of {most} {budget} left"
        )
        return Decision(again=True, pause=pause, reason=f"starting again{after} ({left})")
