"""The loop that repeats a failed call."""

import pytest

from bert_jax.storage import retry as retries
from bert_jax.storage.remote import STORAGE_RETRIES
from bert_jax.storage.retry import RetryPolicy, retry


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, in seconds."""
    made: list[float] = []
    monkeypatch.setattr(retries, "sleep", made.append)
    return made


def failing(times: int, error: Exception):
    """Returns a function that fails so often, and a list of its calls."""
    calls = []

    def call() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return "done"

    return call, calls


def test_a_call_is_repeated_until_it_succeeds(pauses: list[float]) -> None:
    call, calls = failing(3, OSError("x"))
    lines: list[str] = []
    found = retry(call, RetryPolicy(6, 0.5), lambda error, when: lines.append(f"{error}; {when}"))
    assert (found, len(calls), pauses) == ("done", 4, [0.5, 1.0, 2.0])
    assert lines[0] == "x; attempt 1 of 6, the next in 0.5 s"
    assert lines[2] == "x; attempt 3 of 6, the next in 2 s"


def test_storage_that_fails_three_times_is_read(pauses: list[float]) -> None:
    call, calls = failing(3, OSError("x"))
    assert retry(call, STORAGE_RETRIES) == "done"
    assert len(calls) == 4


def test_the_error_of_the_last_attempt_is_raised(pauses: list[float]) -> None:
    call, calls = failing(3, OSError("x"))
    with pytest.raises(OSError, match="x"):
        retry(call, RetryPolicy(3, 1.0))
    assert (len(calls), pauses) == (3, [1.0, 2.0])


def test_an_error_of_another_kind_is_raised_at_once(pauses: list[float]) -> None:
    call, calls = failing(1, ValueError("x"))
    with pytest.raises(ValueError, match="x"):
        retry(call, RetryPolicy(3, 1.0, retryable=lambda error: isinstance(error, OSError)))
    assert (len(calls), pauses) == (1, [])


def test_processes_that_failed_together_retry_at_different_times(pauses: list[float]) -> None:
    for _ in range(20):
        call, _ = failing(1, OSError("x"))
        retry(call, RetryPolicy(2, 1.0, jitter=True))
    assert len(set(pauses)) > 1
    assert all(0.5 <= pause <= 1.5 for pause in pauses)
