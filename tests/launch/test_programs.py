"""Questions to clusters that do not answer for a while."""

import pytest
from launch_jobs import job

from bert_jax.data_pipeline.errors import UserError
from bert_jax.launch import programs
from bert_jax.launch.backends import slurm
from bert_jax.launch.backends.gke import Gke
from bert_jax.launch.log_file import LogFile
from bert_jax.launch.programs import ProgramError

AWAY = ProgramError(["squeue"], 1, "slurm_load_jobs error: Unable to contact slurm controller\n")


def in_turn(*results):
    """A function that returns or raises these, one at each call."""
    left = iter(results)

    def ask(*of):
        result = next(left)
        if isinstance(result, Exception):
            raise result
        return result

    return ask


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(programs.time, "sleep", lambda seconds: None)


def test_a_question_is_asked_until_there_is_an_answer(capsys):
    other = ProgramError(["squeue"], 1, "Connection refused\n")
    assert programs.answer(in_turn(AWAY, AWAY, other, 7), 1.0) == 7
    assert capsys.readouterr().out.splitlines() == [
        "launch | no answer (slurm_load_jobs error: Unable to contact slurm controller); asking "
        "again",
        "launch | no answer (Connection refused); asking again",
    ]
    with pytest.raises(UserError, match="another job has this name"):
        programs.answer(in_turn(AWAY, UserError("another job has this name")), 1.0)


def test_a_launcher_outlives_a_controller_that_does_not_answer(monkeypatch, tmp_path):
    monkeypatch.setattr(slurm, "find", in_turn(AWAY, None))
    monkeypatch.setattr(slurm, "exit_code", lambda job, number: 42)
    assert slurm._watch(job(workdir=str(tmp_path)), "7", LogFile(tmp_path / "log")) == 42


def test_a_launcher_outlives_a_cluster_that_does_not_answer(monkeypatch):
    find = in_turn(AWAY, None)
    monkeypatch.setattr(Gke, "_find", lambda self, job: find())
    assert Gke(image="")._watch(job("v6e-16"), is_new=True) == 42
