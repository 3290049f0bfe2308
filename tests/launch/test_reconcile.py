"""What a launcher does about a queued resource, state by state."""

import pytest

from bert_jax.exit_codes import LOST, STOPPED
from bert_jax.launch.restarts import Limits
from bert_jax.launch.tpu.history import Attempt, End, History, Plan, Retired, used
from bert_jax.launch.tpu.reconcile import (
    Create,
    Delete,
    Finish,
    Leave,
    Observed,
    Resource,
    Retire,
    Wait,
    reconcile,
)

LIMITS = Limits(max_preemptions=2, max_failures=1)
NO_CAPACITY = 'There is no more capacity in the zone "us-west4-a"; try another [EID: 0x1]'
NO_QUOTA = "Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0"


def worked(number: int, *codes: int | None, retired: int | str | None = "no") -> History:
    """A queued resource on which attempts ended with these codes; None: one is running."""
    plan = Plan(tuple(Attempt(("boot",), code) for code in codes))
    given_up = None if retired == "no" else Retired(retired, "preempted")
    return History(number, plan, given_up, reported=True)


def refused(number: int) -> History:
    return History(number, retired=Retired(None, NO_CAPACITY, refused=True))


def act(
    resources: list[Resource], *histories: History, limits: Limits = LIMITS, **seen: object
) -> object:
    return reconcile(Observed(resources, histories, **seen), limits)


@pytest.mark.parametrize(
    "state", ["ACCEPTED", "WAITING_FOR_RESOURCES", "CREATING", "PROVISIONING", "SUSPENDING", "NEW"]
)
def test_what_is_being_made_is_waited_for_however_long(state):
    assert act([Resource(1, state)], idle=1e9) == Wait(state)


def test_machines_are_requested_once():
    assert act([]) == Create(1)
    assert act([], first=4) == Create(4)
    assert act([Resource(1, "ACTIVE")], worked(1, None)) == Wait("the job")


def test_a_preempted_one_is_given_up_deleted_waited_for_and_requested_again():
    suspended, history = [Resource(1, "SUSPENDED")], worked(1, None)
    action = act(suspended, history)
    assert action == Retire(
        1, Retired(STOPPED, "preempted"), "preempted; starting again (1 of 2 preemptions left)"
    )
    history = worked(1, None, retired=STOPPED)
    assert act(suspended, history) == Delete(1)
    assert act([Resource(1, "DELETING")], history) == Wait("the TPU to be released")
    assert act([], history) == Create(2)


def test_a_preemption_that_was_announced_counts_once():
    """The processes had saved and ended with 42 before the machines were gone."""
    action = act([Resource(1, "SUSPENDED")], worked(1, None, 42))
    assert action == Retire(1, Retired(None, "preempted"), "preempted; starting again")
    assert used([worked(1, 42, retired=None)]).preemptions == 1
    assert used([worked(1, 42, retired=STOPPED)]).preemptions == 1
    assert used([worked(1, 43, None, retired=STOPPED)]).preemptions == 1
    assert used([worked(1, 42, None, retired=STOPPED)]).preemptions == 2


def test_a_budget_that_is_used_up_ends_the_job():
    histories = [
        worked(1, None, retired=STOPPED),
        worked(2, None, retired=STOPPED),
        worked(3, None),
    ]
    used_up = "preempted; not started again: 2 of 2 preemptions used (--max_preemptions)"
    action = act([Resource(3, "SUSPENDED")], *histories)
    assert action == Finish(End(STOPPED, used_up))
    unlimited = Limits(max_preemptions=-1)
    assert isinstance(act([Resource(3, "SUSPENDED")], *histories, limits=unlimited), Retire)


def test_hosts_that_stay_silent_cost_a_failure():
    active, why = [Resource(1, "ACTIVE")], "host-2: no report for 15 minutes"
    action = act(active, worked(1, None), silent=why)
    assert action == Retire(
        1, Retired(LOST, why), f"{why}; starting again in 1 s (0 of 1 failures left)"
    )
    noticed = act(active, worked(1, 43), silent=why)  # by the other processes
    assert noticed == Retire(1, Retired(None, why), f"{why}; starting again")
    action = act([Resource(2, "ACTIVE")], worked(1, 43, 42), worked(2, None), silent=why)
    assert isinstance(action, Finish)
    assert action.end.code == LOST


def test_machines_that_somebody_else_deleted_cost_a_failure():
    action = act([], worked(1, None))
    assert isinstance(action, Retire)
    assert action.retired.code == LOST
    assert act([], History(1)) == Create(1)  # it was never seen: the request did not arrive


@pytest.mark.parametrize(("tries", "pause"), [(1, 60.0), (2, 120.0), (3, 240.0), (9, 960.0)])
def test_requests_without_capacity_are_made_again_after_growing_pauses(tries, pause):
    histories = [refused(number) for number in range(1, tries + 1)]
    failed = [Resource(tries, "FAILED", 8, NO_CAPACITY)]
    action = act(failed, *histories[:-1])
    assert action == Retire(tries, histories[-1].retired, NO_CAPACITY)
    assert isinstance(act([], *histories, idle=pause - 1), Wait)
    assert act([], *histories, idle=pause) == Create(tries + 1)
    assert used(histories).preemptions == used(histories).failures == 0
    assert act([], *histories, worked(tries + 1, None, retired=STOPPED), idle=0) == Create(
        tries + 2
    )


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (8, NO_QUOTA),
        (7, "Permission 'tpu.nodes.create' denied on 'projects/p/locations/us-west4-a'"),
        (3, "Cloud TPU received a bad request. the accelerator v5litepod-17 was not found"),
        (
            8,
            "Insufficient reserved capacity. Contact customer support to increase your reservation",
        ),
    ],
)
def test_another_refusal_ends_the_job_with_its_line(code, message):
    failed = [Resource(1, "FAILED", code, message)]
    ask = "; ask for more of it: https://console.cloud.google.com/iam-admin/quotas"
    end = End(1, message + (ask if message == NO_QUOTA else ""))
    assert act(failed) == Finish(end)
    assert act(failed, end=end) == Delete(1)
    assert act([], end=end) == Leave(end)


def test_the_machines_of_a_job_that_has_ended_are_deleted_if_the_hosts_could_not():
    end = End(0, "host-0 ended with 0")
    assert act([Resource(1, "ACTIVE")], worked(1, 0), end=end) == Delete(1)
    assert act([Resource(1, "DELETING")], worked(1, 0), end=end) == Wait("the TPU to be released")
    assert act([], worked(1, 0), end=end) == Leave(end)


def test_a_decision_of_host_0_outlives_it():
    final = End(44, "host-0 ended with 44; not started again")
    history = History(1, Plan((Attempt(("boot",), 44),), final), reported=True)
    assert act([Resource(1, "SUSPENDED")], history) == Finish(final)
    assert act([], history) == Finish(final)


@pytest.mark.parametrize("state", ["WAITING_FOR_RESOURCES", "PROVISIONING", "FAILED", None])
def test_a_job_that_is_stopped_before_it_has_machines_ends(state):
    resources = [Resource(1, state, 8, NO_CAPACITY)] if state else []
    stopped = End(STOPPED, "stopped before it had machines")
    assert act(resources, stopping=True) == Finish(stopped)


def test_a_job_that_is_to_stop_is_waited_for_and_not_started_again():
    working = worked(1, None)
    assert act([Resource(1, "ACTIVE")], working, stopping=True) == Wait("the job to stop")
    for resources in ([Resource(1, "SUSPENDED")], []):
        action = act(resources, working, stopping=True)
        assert isinstance(action, Finish)
        assert action.end.code == STOPPED


def test_what_an_earlier_submission_has_left_goes_first():
    assert act([Resource(2, "ACTIVE"), Resource(3, "ACTIVE")], first=3) == Delete(2)
