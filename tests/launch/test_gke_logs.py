"""The output of pods, with a small program in the place of kubectl."""

import re

import pytest

from bert_jax.launch.backends.gke_logs import PodLogs

pytestmark = pytest.mark.processes
# Ends at once, as kubectl does when the containers have ended or the connection is lost.
PROGRAM = ("sh", "-c", 'echo "asked for: $*"', "kubectl")


def ended(logs: PodLogs) -> None:
    """Waits until the program has ended."""
    logs._process.wait(60)


def test_output_of_pods_that_have_ended_is_not_printed_again(capfd):
    """Their containers end a moment before the pods are shown as ended."""
    with PodLogs(PROGRAM, is_new=True) as logs:
        logs.follow(0)
        ended(logs)
        logs.follow(0)
        logs.finish(0)
    assert capfd.readouterr().out == "asked for: --follow\n"


def test_a_lost_connection_is_made_again_since_it_was_lost(capfd):
    with PodLogs(PROGRAM, is_new=True) as logs:
        for _ in range(3):  # the pods still run at the look after
            logs.follow(0)
            ended(logs)
    first, second = capfd.readouterr().out.splitlines()
    assert first == "asked for: --follow"
    assert re.fullmatch(r"asked for: --follow --since=[1-9]\d*s", second)


def test_the_next_attempt_is_printed_from_its_start(capfd):
    with PodLogs(PROGRAM, is_new=False) as logs:
        for attempt in (2, 3):
            logs.follow(attempt)
            ended(logs)
    first, second = capfd.readouterr().out.splitlines()
    assert re.fullmatch(r"asked for: --follow --since=[1-9]\d*s", first)
    assert second == "asked for: --follow"
