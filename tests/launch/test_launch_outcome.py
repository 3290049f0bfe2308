"""Tests of the exit code of a job."""

import pytest

from bert_jax import exit_codes


def test_the_launcher_knows_the_codes_of_the_program():
    assert (exit_codes.STOPPED, exit_codes.LOST) == (exit_codes.STOPPED, exit_codes.LOST)


@pytest.mark.parametrize(
    ("codes", "whole"),
    [
        ([0, 0], 0),
        ([42, 42], 42),
        ([0, 42], 42),
        ([43, 43], 43),
        ([0, 43], 43),
        ([-9, 43], 43),
        ([137, 43], 43),
        ([-6, -11], 43),
        ([42, -9], 42),
        ([-9, 42], 42),
        ([44, 44], 44),
        ([45, 44, 42], 45),
        ([43, 1], 1),
        ([42, 2, -9], 2),
        ([-9, 7, 1], 7),
        ([255, 43], 255),
    ],
)
def test_the_exit_code_of_a_job(codes, whole):
    assert exit_codes.verdict(codes) == whole


def test_hosts_are_named_by_how_they_ended_signals_first():
    ends = [("host-0", 43), ("host-1", -9), ("host-2", 43), ("host-3", 137), ("host-4", -40)]
    assert exit_codes.describe(ends) == (
        "host-1 was killed by SIGKILL; host-3 ended with 137 (SIGKILL); "
        "host-4 was killed by signal 40; host-0, host-2 ended with 43"
    )
