"""Checks before anything is created: all of them run, and every failure is reported at once."""

import dataclasses
from collections.abc import Callable, Iterable

from bert_jax.data_pipeline.errors import UserError


class CheckFailedError(Exception):
    """A check failed: what is wrong, and what to do."""

    def __init__(self, line: str, remedy: str):
        super().__init__(f"{line}; {remedy}")


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that must hold.

    name: one or two words, such as "bucket".
    probe: returns a line about what it found; raises CheckFailedError, or UserError with both the
        line and the remedy in its message.
    """

    name: str
    probe: Callable[[], str]


def run_checks(checks: Iterable[Check], say: Callable[[str], None]) -> None:
    """Runs all checks and says what each found; raises UserError if any failed."""
    failures = {}
    for check in checks:
        try:
            say(f"{check.name}: {check.probe()}")
        except (CheckFailedError, UserError) as error:
            failures[check.name] = str(error)
    if len(failures) == 1:
        ((name, line),) = failures.items()
        raise UserError(f"{name}: {line}")
    for name, line in failures.items():
        say(f"{name}: FAILED: {line}")
    if failures:
        raise UserError(
            f"{len(failures)} checks failed before anything was created: {', '.join(failures)}"
        )
