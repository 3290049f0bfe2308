"""Signals while C++ code holds the main thread: one line, 128 + the number."""

import signal
import subprocess
import sys

import pytest
from signals import with_signals

from bert_jax.runtime.interrupts import ending_at_signals

pytestmark = pytest.mark.processes
# Holds the main thread as a compiler does: a handler of Python would not run for a minute.
HELD = """
import ctypes
from bert_jax.runtime.interrupts import ending_at_signals
from bert_jax.runtime.log import configure_logging
configure_logging()
with ending_at_signals():
    print("held", flush=True)
    ctypes.CDLL(None).sleep({seconds})
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_process_with_one_line(number: signal.Signals) -> None:
    command = with_signals([sys.executable, "-c", HELD.format(seconds=60)])
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert (out, err) == ("", f"{number.name}: interrupted without a result\n")


def test_signals_are_as_before_afterwards() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with ending_at_signals():
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_an_ignored_signal_stays_ignored() -> None:
    program = HELD.format(seconds=1)
    command = with_signals([sys.executable, "-c", program], ignored=[signal.SIGHUP])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=30) == 0
