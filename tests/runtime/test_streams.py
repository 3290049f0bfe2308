"""Output that cannot be written ends nothing: closed pipes, full disks, closed descriptors."""

import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import rich.console

from bert_jax import cli, exit_codes
from bert_jax.commands.command import Command
from bert_jax.runtime import streams
from bert_jax.runtime.streams import TolerantStream

FULL = "No space left on device"


def stream(number: int, **like: object) -> TolerantStream:
    before = io.TextIOWrapper(io.BytesIO(), **like)
    return TolerantStream(number, before, line_buffering=False)


@pytest.fixture
def pipe() -> Iterator[list[int]]:
    """Both ends; those that a test closes it takes out."""
    ends = list(os.pipe())
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def full() -> Iterator[int]:
    with open("/dev/full", "wb") as file:
        yield file.fileno()


@pytest.mark.parametrize("write_through", [False, True])
def test_a_reader_that_went_away_is_no_failure(write_through, pipe):
    os.close(pipe.pop(0))
    out = stream(pipe[0], write_through=write_through)
    for _ in range(3):
        print("line", file=out, flush=True)
        rich.console.Console(file=out).print("line")  # which exits where a pipe is broken
    assert out.failure == ""


@pytest.mark.parametrize("write_through", [False, True])
def test_a_full_disk_is_noted(write_through, full):
    out = stream(full, write_through=write_through)
    print("line" * 10_000, file=out, flush=True)
    assert out.failure == FULL


def test_everything_arrives_in_a_pipe_that_somebody_made_non_blocking(pipe):
    os.set_blocking(pipe[1], False)
    got = []
    reader = threading.Thread(target=lambda: got.append(os.fdopen(pipe[0], closefd=False).read()))
    out = stream(pipe[1])
    timer = threading.Timer(0.1, reader.start)  # the pipe is full by then
    timer.start()
    out.write("x" * 300_000)
    out.close()
    os.close(pipe.pop())
    timer.join()
    reader.join()
    assert got == ["x" * 300_000]


def test_characters_that_the_terminal_does_not_know_are_escaped(pipe):
    out = stream(pipe[1], encoding="ascii")
    print("█ é", file=out, flush=True)
    assert os.read(pipe[0], 100) == rb"\u2588 \xe9" + b"\n"


@pytest.fixture
def shout(monkeypatch) -> None:
    """A verb that prints, and one like it that is a run."""
    for name, is_run in (("shout", False), ("train", True)):
        verb = Command(
            "",
            "",
            lambda values, words: None,
            lambda values, words: print("x" * 10_000),
            is_run=is_run,
        )
        monkeypatch.setitem(cli.COMMANDS, name, verb)


def test_a_result_that_is_not_complete_is_an_error_and_a_log_is_not(
    shout, full, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "stdout", stream(full))
    assert cli.main(["shout"]) == exit_codes.FAILED
    assert capsys.readouterr().err == f"error: standard output is not complete: {FULL}\n"
    assert cli.main(["train"]) == exit_codes.DONE
    assert capsys.readouterr().err == ""


def test_a_stream_of_a_notebook_or_a_test_is_left_alone(shout, capsys):
    before = sys.stdout, sys.stderr
    with streams.tolerant_streams(), streams.own_stdout():
        assert (sys.stdout, sys.stderr) == before
    assert cli.main(["shout"]) == exit_codes.DONE
    assert capsys.readouterr().out == "x" * 10_000 + "\n"


@pytest.mark.parametrize(("how", "lines"), [("| head -1", 1), ("> /dev/full", 0), (">&-", 0)])
@pytest.mark.processes
def test_help_ends_without_a_traceback(how, lines):
    command = f"set -o pipefail; {sys.executable} -m bert_jax --help {how}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == lines
