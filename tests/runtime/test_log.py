"""The log: plain on a terminal, with time, level and process in a job of several processes."""

import logging
import re
import signal
from collections.abc import Iterator

import pytest
import rich.progress
from signals import dispositions

from bert_jax.config.config_files import load
from bert_jax.distributed.job import in_process_job
from bert_jax.runtime.console import console
from bert_jax.runtime.log import NOTICE, configure_logging, logger

# A module of a lower room, which does not know how lines are written.
below = logging.getLogger("bert_jax.data_pipeline.plan.cache")


@pytest.fixture(autouse=True)
def _again() -> Iterator[None]:
    yield
    configure_logging()


def log_a_line_of_each_level() -> None:
    logger.info("step 5/10  loss 1.000")
    below.warning("plan: damaged")
    logger.error("run: no store")
    logger.log(NOTICE, "stopped")


def test_a_single_process_logs_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    log_a_line_of_each_level()
    out, err = capsys.readouterr()
    assert out == "step 5/10  loss 1.000\n"
    assert err == "warning: plan: damaged\nerror: run: no store\nstopped\n"


def test_a_job_logs_time_level_and_process(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("host-0 (process 0)")
    log_a_line_of_each_level()
    logger.info("goodput 50%\n  time  share")
    out, err = capsys.readouterr()
    lines = (out + err).splitlines()
    when = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    found = [re.fullmatch(rf"{when} ([A-Z]+) host-0 \(process 0\): (.*)", line) for line in lines]
    assert [match and match.groups() for match in found] == [
        ("INFO", "step 5/10  loss 1.000"),
        ("INFO", "goodput 50%"),
        ("INFO", "  time  share"),
        ("WARNING", "plan: damaged"),
        ("ERROR", "run: no store"),
        ("NOTICE", "stopped"),
    ]


def test_the_other_processes_of_a_job_log_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("host-1 (process 1)", quiet=True)
    log_a_line_of_each_level()
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split()[1:4] for line in err.splitlines()] == [
        ["WARNING", "host-1", "(process"],
        ["ERROR", "host-1", "(process"],
        ["NOTICE", "host-1", "(process"],
    ]


def test_a_traceback_has_the_process_on_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("host-1 (process 1)")
    try:
        raise ValueError("why")
    except ValueError as error:
        logger.error("unexpected error", exc_info=error)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 4
    assert all(" ERROR host-1 (process 1): " in line for line in lines)
    assert lines[-1].endswith("ValueError: why")


def test_names_in_a_line_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    logger.warning("\x1b[2Jrun\udce9 [bold]: 100%s")
    assert capsys.readouterr().err == "warning: \ufffd[2Jrun\ufffd [bold]: 100%s\n"


def test_a_line_stands_above_a_progress_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging()
    monkeypatch.setattr(console, "_force_terminal", True)
    with rich.progress.Progress(console=console, refresh_per_second=0.01) as bar:
        bar.add_task("train", total=10)
        logger.info("step 5  held-out [bold]")
        logger.warning("run: slow")
    out, err = capsys.readouterr()
    lines = [re.sub("\x1b\\[[0-9;?]*[A-Za-z]|\r", "", line) for line in out.split("\n")]
    assert "step 5  held-out [bold]" in lines
    assert "warning: run: slow" in lines  # the bar has taken over both streams
    assert err == ""


def test_a_run_inside_a_program_logs_to_the_handlers_of_the_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger.handlers, logger.propagate = [], True  # as nothing has configured it
    with dispositions(lambda _: signal.SIG_DFL), in_process_job(load("tiny")):
        logger.info("step 5/10")
    assert capsys.readouterr().out == "step 5/10\n"
    logger.handlers = own = [logging.NullHandler()]
    with in_process_job(load("tiny")):
        logger.info("step 5/10")
    assert logger.handlers is own
    assert capsys.readouterr() == ("", "")
