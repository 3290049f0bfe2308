"""Repeats a failed call: storage, saves, the lock of a workdir."""

import dataclasses
import random
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
sleep = time.sleep  # between attempts


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """A retry policy: which errors are retried, how often and after which pauses."""

    attempts: int
    pause: float  # seconds after the first failed attempt; doubles
    jitter: bool = False  # pauses vary: processes that failed together retry at different times
    retryable: Callable[[BaseException], bool] = lambda error: True  # others are raised at once


def retry(
    call: Callable[[], Result],
    policy: RetryPolicy,
    on_retry: Callable[[Exception, str], None] = lambda error, when: None,
) -> Result:
    """Returns `call()`; raises the error of the last attempt, or one that is not retried.

    on_retry: called before each pause with the error and "attempt 1 of 4, the next in 1 s".
    """
    for attempt in range(1, policy.attempts):
        try:
            return call()
        except Exception as error:
            if not policy.retryable(error):
                raise
            pause = policy.pause * 2 ** (attempt - 1)
            pause *= 0.5 + random.random() if policy.jitter else 1.0
            when = f"attempt {attempt} of {policy.attempts}, the next in {round(pause, 1):g} s"
            on_retry(error, when)
        sleep(pause)
    return call()
