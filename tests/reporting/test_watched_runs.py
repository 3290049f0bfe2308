"""`bert-jax status --watch`: what it shows of runs until they end, and of one that goes away."""

import json
import os
import shutil
import sys
import time

import pytest
from logged_runs import REFRESH, config_of_two_phases, folder_of_a_run

from bert_jax import cli
from bert_jax.config.schema import Config
from bert_jax.errors import UserError
from bert_jax.reporting import status, watch
from bert_jax.reporting.status import as_json, read_status
from bert_jax.runtime.streams import TolerantStream


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    return config_of_two_phases(tmp_path_factory.mktemp("store"))


def test_a_watched_run_is_shown_until_it_ends(config, tmp_path, capsys, monkeypatch):
    """The page of a run that still runs is read again by a browser."""
    run, page, pages = folder_of_a_run(tmp_path / "run", config, 30), tmp_path / "run.html", []

    def sleep(seconds):
        pages.append((seconds, page.read_text()))
        if len(pages) == 2:
            folder_of_a_run(tmp_path / "end", config, 100)
            shutil.rmtree(run)
            (tmp_path / "end").rename(run)

    monkeypatch.setattr(time, "sleep", sleep)
    flags = [f"--workdir={run}", "--watch", "--every=3", f"--html={page}"]
    assert cli.main(["status", *flags]) == 0
    said = capsys.readouterr().out
    assert said.count("step 30 of 100") == 2
    assert said.count("step 100 of 100") == 1
    assert [seconds for seconds, text in pages if REFRESH in text] == [3, 3]
    assert '<meta http-equiv="refresh" content="3">' in pages[0][1]
    assert REFRESH not in page.read_text()
    assert cli.main(["status", f"--workdir={run}", "--every=3"]) == 2
    assert "--every has no effect without --watch" in capsys.readouterr().err


@pytest.mark.parametrize("page", [False, True])
def test_watching_ends_when_nobody_reads_it_any_more(page, config, tmp_path, monkeypatch):
    """As with `| head`; what writes a page continues, since browsers read that."""
    run, slept = folder_of_a_run(tmp_path / "run", config, 30), []
    reader, writer = os.pipe()

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 1:
            os.close(reader)
        if len(slept) == 3:
            folder_of_a_run(tmp_path / "end", config, 100)
            shutil.rmtree(run)
            (tmp_path / "end").rename(run)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(sys, "stdout", TolerantStream(writer, None, line_buffering=False))
    flags = [f"--html={tmp_path / 'run.html'}"] if page else []
    assert cli.main(["status", f"--workdir={run}", "--watch", *flags]) == 0
    assert len(slept) == (3 if page else 1)
    os.close(writer)


def test_ctrl_c_ends_watching_quietly(config, tmp_path, capsys, monkeypatch):
    run = folder_of_a_run(tmp_path / "run", config, 30)

    def sleep(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    assert cli.main(["status", f"--workdir={run}", "--watch"]) == 0
    out, err = capsys.readouterr()
    assert out.count("step 30 of 100") == 1
    assert err == ""


@pytest.mark.parametrize("fails", ["is gone", "is away"])
def test_a_watched_run_that_cannot_be_read_is_a_line_among_the_others(
    fails, config, tmp_path, capsys, monkeypatch
):
    """The others are watched until they end, or the storage answers again."""
    one, two = (folder_of_a_run(tmp_path / name, config, 30) for name in ("one", "two"))
    page, pages, read, away = tmp_path / "runs.html", [], status.read_status, []

    def read_status(folder):
        if folder in away:
            raise ConnectionError("the bucket does not answer")
        return read(folder)

    def sleep(seconds):
        pages.append(page.read_text())
        gone = [two, one][len(pages) - 1 : len(pages)]
        if fails == "is gone":
            shutil.rmtree(*gone)
        else:
            away[:] = map(str, gone)
        if len(pages) == 3:
            for run in (one, two):
                shutil.rmtree(run)
                folder_of_a_run(run, config, 100)

    monkeypatch.setattr(watch, "read_status", read_status)
    monkeypatch.setattr(time, "sleep", sleep)
    flags = [f"--workdir={one}", f"--workdir={two}", "--watch", f"--html={page}"]
    code, said = cli.main(["status", *flags]), capsys.readouterr()
    problem = "no such folder" if fails == "is gone" else "cannot be read ("
    assert f"{two}: {problem}" in said.out
    assert REFRESH in pages[0]
    assert REFRESH in pages[1]
    assert f"Cannot be read any more: {two}: {problem}" in pages[1]
    assert "2 runs: one, " in pages[1]
    several = "Thick: held-out text"  # the plots of one have another form
    assert [several in text for text in pages[:2]] == [True, False]
    assert "Curves of one" in pages[1]
    if fails == "is gone":  # both are, in the end
        assert (code, len(pages)) == (1, 2)
        assert f"error: {one}: no such folder" in said.err
        assert f"{one}: no such folder" in page.read_text()
    else:
        assert (code, len(pages)) == (0, 3)
        assert "Cannot be read" not in page.read_text()
    assert REFRESH not in page.read_text()


def test_a_run_that_cannot_be_read_is_in_the_json(config, tmp_path):
    run = read_status(folder_of_a_run(tmp_path / "run", config, 10))
    known, lost = json.loads(as_json(run, unread={"b": UserError("b: no such folder")}))
    assert known["step"] == 10
    assert not {"run", "logged"} & known.keys()
    assert lost == {"workdir": "b", "error": "b: no such folder"}


def test_the_table_of_watched_runs_stays_in_sight_on_a_terminal(
    config, tmp_path, capsys, monkeypatch
):
    """A terminal shows the end of what is printed, and a redirected output is read from its top."""
    one, two = (folder_of_a_run(tmp_path / name, config, 100) for name in "ab")
    flags = ["status", f"--workdir={one}", f"--workdir={two}", "--watch"]
    table, state = " device hours ", "step 100 of 100"
    for terminal in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal)
        assert cli.main(flags) == 0
        said = capsys.readouterr().out
        assert said.count(table) == 1
        assert (said.index(table) > said.rindex(state)) == terminal
