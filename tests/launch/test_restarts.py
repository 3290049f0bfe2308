"""Tests of the two restart budgets."""

import pytest

from bert_jax.exit_codes import FINAL, LOST, STOPPED
from bert_jax.launch.restarts import UNLIMITED, Limits, Restarts


def test_each_budget_counts_its_own_restarts():
    restarts, limits = Restarts(), Limits(max_preemptions=2, max_failures=1, between=1.0)
    decisions = [restarts.after(code, limits) for code in (STOPPED, LOST, STOPPED, LOST, STOPPED)]
    assert [decision.reason for decision in decisions] == [
        "starting again (1 of 2 preemptions left)",
        "starting again in 1 s (0 of 1 failures left)",
        "starting again (0 of 2 preemptions left)",
        "not started again: 1 of 1 failures used (--max_failures)",
        "not started again: 2 of 2 preemptions used (--max_preemptions)",
    ]
    assert [decision.again for decision in decisions] == [True, True, True, False, False]
    assert (restarts.preemptions, restarts.failures) == (2, 1)


@pytest.mark.parametrize("code", [*FINAL, 3, 127])
def test_an_error_that_would_come_again_uses_no_budget(code):
    restarts = Restarts()
    assert not restarts.after(code, Limits()).again
    assert restarts == Restarts()


def test_a_budget_may_have_no_limit():
    restarts = Restarts()
    limits = Limits(max_preemptions=UNLIMITED, max_failures=UNLIMITED)
    for _ in range(2000):
        assert restarts.after(STOPPED, limits).again
        decision = restarts.after(LOST, limits)
    assert decision.reason == "starting again in 30 s (2000 failures so far)"


def test_pauses_double_up_to_a_limit():
    restarts, limits = Restarts(), Limits(max_failures=9)
    pauses = [restarts.after(LOST, limits).pause for _ in range(7)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert restarts.after(STOPPED, limits).pause == 0.0
