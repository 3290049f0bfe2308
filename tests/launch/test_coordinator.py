"""When host 0 starts and ends attempts: clocks and reports of hosts are made up."""

import dataclasses

import pytest

from bert_jax.exit_codes import LOST, STOPPED
from bert_jax.launch.restarts import Limits, Restarts
from bert_jax.launch.tpu.agent.coordinator import ARRIVAL, SILENT, Coordinator, Events
from bert_jax.launch.tpu.history import INSTALLING, READY, RUNNING, End, HostState, Plan

LIMITS = Limits(max_preemptions=2, max_failures=1, grace=20.0, noticing=5.0, margin=10.0)


class Slice:
    """Hosts that report, and the coordinator that reads it."""

    def __init__(self, hosts: int = 3, plan: Plan = Plan(), restarts: Restarts | None = None):  # noqa: B008
        self.now = 0.0
        self.states = {index: HostState(f"boot {index}", READY) for index in range(hosts)}
        self.ages = dict.fromkeys(self.states, 1.0)
        self.coordinator = Coordinator(hosts, plan, restarts or Restarts(), LIMITS, self.now)

    def advance(self, seconds: float = 1.0, **events: bool) -> Plan:
        self.now += seconds
        hosts = {index: (state, self.ages[index]) for index, state in self.states.items()}
        self.coordinator.advance(hosts, Events(**events), self.now)
        return self.coordinator.plan

    def run(self, attempt: int) -> None:
        """All hosts run an attempt."""
        for index, state in self.states.items():
            self.states[index] = HostState(state.boot, RUNNING, attempt)

    def end(self, index: int, code: int) -> None:
        state = self.states[index]
        self.states[index] = HostState(state.boot, RUNNING, state.attempt, code)


def test_an_attempt_starts_when_all_hosts_are_ready():
    slice_ = Slice()
    slice_.states[1] = HostState("boot 1", INSTALLING)
    assert slice_.advance().attempts == ()
    slice_.states[1] = HostState("boot 1", READY)
    plan = slice_.advance()
    assert plan.is_running
    assert plan.attempts[0].boots == ("boot 0", "boot 1", "boot 2")


def test_a_host_whose_report_is_old_is_not_ready():
    slice_ = Slice()
    slice_.ages[2] = SILENT + 1
    assert slice_.advance().attempts == ()


def test_hosts_that_do_not_come_cost_a_failure_each_time():
    slice_ = Slice()
    del slice_.states[2]
    assert slice_.advance(ARRIVAL).attempts == ()
    plan = slice_.advance(1.0)
    assert [attempt.code for attempt in plan.attempts] == [LOST]
    assert plan.attempts[0].why.startswith(
        "host-2 did not report within 30 minutes; starting again"
    )
    plan = slice_.advance(ARRIVAL + 1)
    assert plan.final == End(LOST, plan.attempts[1].why)


def test_a_host_that_cannot_install_ends_the_job_with_its_line():
    slice_ = Slice()
    slice_.states[1] = HostState("boot 1", INSTALLING, code=1, line="pip ended with 1")
    assert slice_.advance().final == End(1, "host-1: pip ended with 1")


@pytest.mark.parametrize(("code", "ended"), [(0, 0), (1, 1), (44, 44), (45, 45)])
def test_exit_codes_that_are_final_end_the_job(code, ended):
    slice_ = Slice()
    slice_.advance()
    slice_.run(1)
    for index in range(3):
        assert slice_.advance().final is None
        slice_.end(index, code)
    final = slice_.advance().final
    assert final is not None
    assert final.code == ended


def test_preemptions_and_failures_have_budgets_of_their_own():
    slice_ = Slice(hosts=1, restarts=Restarts(preemptions=1))
    codes = []
    for attempt, code in enumerate((42, 43), start=1):
        slice_.advance(10.0)
        slice_.run(attempt)
        slice_.end(0, code)
        codes.append(slice_.advance().attempts[-1].why)
    assert codes == [
        "host-0 ended with 42; starting again (0 of 2 preemptions left)",
        "host-0 ended with 43; starting again in 1 s (0 of 1 failures left)",
    ]
    slice_.advance(10.0)
    slice_.run(3)
    slice_.end(0, 42)
    assert slice_.advance().final == End(
        42, "host-0 ended with 42; not started again: 2 of 2 preemptions used (--max_preemptions)"
    )


def test_after_one_process_failed_the_others_have_time_to_notice():
    slice_ = Slice()
    slice_.advance()
    slice_.run(1)
    slice_.end(1, -9)
    assert slice_.advance().kill == 0
    assert slice_.advance(14.0).kill == 0
    assert slice_.advance(2.0).kill == 1  # the processes that still run are killed
    slice_.end(0, -9)
    assert slice_.advance().is_running
    plan = slice_.advance(10.0)  # and a host that does not say so is given up
    assert plan.attempts[0].code == LOST
    killed = "host-1, host-0, host-2 was killed by SIGKILL; starting again in 1 s"
    assert plan.attempts[0].why.startswith(killed)


def test_after_one_process_saved_the_others_have_as_long_as_saving_may_take():
    slice_ = Slice()
    slice_.advance()
    slice_.run(1)
    slice_.end(0, 42)
    slice_.advance()
    assert slice_.advance(29.0).kill == 0
    slice_.end(1, 42)
    slice_.end(2, 42)
    assert slice_.advance().attempts[0].code == STOPPED


def test_a_host_that_was_restarted_has_lost_its_process():
    slice_ = Slice()
    slice_.advance()
    slice_.run(1)
    slice_.states[2] = HostState("boot 2 again", READY)
    slice_.end(0, 43)
    slice_.end(1, 43)
    plan = slice_.advance()
    assert plan.attempts[0].code == LOST
    assert plan.attempts[0].why.startswith("host-2 was killed by SIGKILL; host-0, host-1 ended")
    assert slice_.advance(2.0).attempts[1].boots[2] == "boot 2 again"


def test_a_bucket_that_was_away_ends_no_attempt():
    """All reports are old, and none says that a process has ended."""
    slice_ = Slice()
    slice_.advance()
    slice_.run(1)
    slice_.ages = dict.fromkeys(slice_.states, 10 * SILENT)
    assert slice_.advance(10 * SILENT) == slice_.advance()
    assert slice_.coordinator.plan.is_running


def test_host_0_that_was_restarted_knows_that_its_process_is_lost():
    first = Slice()
    first.advance()
    second = Slice(plan=first.coordinator.plan)
    second.run(1)
    second.states[0] = HostState("boot 0 again", READY)
    second.end(1, 43)
    second.end(2, 43)
    assert second.advance().attempts[0].code == LOST


def test_a_job_that_is_to_stop_is_not_started_again():
    slice_ = Slice()
    slice_.advance()
    slice_.run(1)
    slice_.advance(stopping=True)
    for index, code in enumerate((43, 43, -9)):  # none could save
        slice_.end(index, code)
    assert slice_.advance(stopping=True).final.code == STOPPED
    assert Slice().advance(stopping=True).final == End(STOPPED, "stopped on request")


def test_a_job_that_does_not_stop_in_its_grace_is_killed():
    slice_ = Slice()
    slice_.advance()
    slice_.run(1)
    assert slice_.advance(stopping=True).kill == 0
    assert slice_.advance(29.0, stopping=True).kill == 0
    assert slice_.advance(2.0, stopping=True).kill == 1


def test_no_attempt_starts_on_a_machine_that_is_about_to_go():
    slice_ = Slice()
    slice_.advance()
    slice_.run(1)
    for index in range(3):
        slice_.end(index, 42)
    assert len(slice_.advance(leaving=True).attempts) == 1
    assert len(slice_.advance(60.0, leaving=True).attempts) == 1
    assert len(slice_.advance(1.0).attempts) == 2  # it stayed


def test_no_attempt_starts_while_another_machine_is_about_to_go():
    """Its process would save and end at once, again and again, until the budget is used up."""
    slice_ = Slice()
    slice_.advance()
    slice_.run(1)
    for index in range(3):
        slice_.end(index, 42)
    ended = slice_.states[2]
    slice_.states[2] = dataclasses.replace(ended, leaving=True)
    assert len(slice_.advance().attempts) == 1
    assert len(slice_.advance(ARRIVAL).attempts) == 1
    slice_.states[2] = ended
    plan = slice_.advance()
    assert [attempt.code for attempt in plan.attempts] == [42, None]


def test_processes_that_a_machine_took_along_as_it_went_are_preempted():
    slice_ = Slice()
    slice_.advance()
    slice_.run(1)
    for index in range(3):
        slice_.end(index, 43)
    slice_.states[2] = dataclasses.replace(slice_.states[2], leaving=True)
    assert slice_.advance().attempts[0].code == STOPPED
