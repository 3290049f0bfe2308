"""Programs that are too old, and clusters that do not answer or whose job has just ended."""

import json

import pytest
from launch_jobs import job
from launched import is_there, until

from bert_jax.errors import UserError
from bert_jax.launch import programs
from bert_jax.launch.gke import checks as gke_checks
from bert_jax.launch.gke.backend import Gke
from bert_jax.launch.gke.kubectl import Kubectl
from bert_jax.launch.preflight import CheckFailedError
from bert_jax.launch.programs import ProgramError
from bert_jax.launch.slurm import backend as slurm
from bert_jax.launch.slurm.backend import Slurm
from bert_jax.launch.slurm.log_file import LogFile
from bert_jax.launch.slurm.queue import QueuedJob, comment, find
from bert_jax.launch.tpu.queued_resources import api_error
from bert_jax.launch.tpu.reconcile import is_transient

AWAY = ProgramError(["squeue"], 1, "slurm_load_jobs error: Unable to contact slurm controller\n")


def in_turn(*results):
    """A function that returns or raises these, one at each call."""
    left = iter(results)

    def ask(*of, **options):
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


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING"])
def test_a_slurm_job_that_ends_while_it_is_stopped_has_ended(monkeypatch, tmp_path, capsys, state):
    """scancel then fails: there is no such job."""
    found = QueuedJob("7", state, "", {"grace": "-100"})
    monkeypatch.setattr(slurm, "find", in_turn(found, None))
    gone = ProgramError(["scancel"], 1, "scancel: error: Kill job error on job id 7: Invalid job\n")
    monkeypatch.setattr(programs, "call", in_turn(gone))
    of = job(workdir=str(tmp_path))
    (tmp_path / "launch/b1").mkdir(parents=True)
    Slurm().stop(of)
    assert capsys.readouterr().out.splitlines()[-1] == ("launch | b1: has ended; no node is in use")


def test_a_job_is_stopped_though_its_cluster_does_not_answer_for_a_while(monkeypatch, tmp_path):
    found = QueuedJob("7", "COMPLETING", "", {"grace": "25"})
    monkeypatch.setattr(slurm, "find", in_turn(found, AWAY, None))
    (tmp_path / "launch/b1").mkdir(parents=True)
    Slurm().stop(job(workdir=str(tmp_path)))
    monkeypatch.setattr(Gke, "_find", lambda self, job: {})
    monkeypatch.setattr(Kubectl, "change", lambda self, *words: "")
    monkeypatch.setattr(Gke, "_pods", in_turn([{}], AWAY, []))
    Gke(image="").stop(job("v6e-16"))


@pytest.mark.parametrize(
    "state", ["RESV_DEL_HOLD", "RESIZING", "STAGE_OUT", "COMPLETING", "OF_LATER"]
)
def test_a_slurm_job_in_a_rare_state_is_there(monkeypatch, state):
    of = job(workdir="/shared/run")
    line = f"7|{state}||{comment(of, job='x', grace=40)}\n"
    monkeypatch.setattr(programs, "call", in_turn(line))
    assert find(of).state == state


@pytest.mark.parametrize("state", ["COMPLETED", "NODE_FAIL", "BOOT_FAIL", "REVOKED"])
def test_a_slurm_job_that_has_ended_is_not_there(monkeypatch, state):
    of = job(workdir="/shared/run")
    line = f"7|{state}||{comment(of, job='x', grace=40)}\n"
    monkeypatch.setattr(programs, "call", in_turn(line))
    assert find(of) is None


def test_a_slurm_job_of_a_hidden_partition_is_there(monkeypatch):
    line = f"7|RUNNING||{comment(of := job(workdir='/shared/run'), job='x', grace=40)}\n"
    monkeypatch.setattr(programs, "call", lambda words: line if "--all" in words else "")
    assert find(of).number == "7"


def test_a_slurm_job_that_never_was_is_not_said_to_be_removed(monkeypatch, tmp_path):
    monkeypatch.setattr(slurm, "find", in_turn(None, None))
    with pytest.raises(UserError, match=f"--name=b1: no such job in {tmp_path}; check both"):
        Slurm().delete(job(workdir=str(tmp_path)))


def test_a_slurm_that_is_too_old_is_one_line(monkeypatch):
    monkeypatch.setattr(programs, "call", lambda words: "slurm 19.05.8\n")
    with pytest.raises(CheckFailedError, match=r"^slurm 19\.05\.8 is too old; ask for 20\.11 or"):
        slurm.check_sbatch()


def test_a_kubectl_that_is_too_old_is_one_line(monkeypatch):
    version = {"clientVersion": {"gitVersion": "v1.20.2"}, "serverVersion": {"gitVersion": "v1.34"}}
    monkeypatch.setattr(Kubectl, "read", lambda self, *words: json.dumps(version))
    with pytest.raises(CheckFailedError, match=r"^kubectl v1\.20\.2 is too old; install 1\.27 or"):
        gke_checks.check_kubectl(Kubectl())


def test_what_a_user_may_not_look_at_is_not_known(monkeypatch):
    refused = 'Error from server (Forbidden): serviceaccounts "t" is forbidden\n'

    def call(words, **options):
        raise ProgramError(words, 1, refused)

    monkeypatch.setattr(programs, "call", call)
    backend = Gke(image="i", service_account="t", queue="q")
    checks = backend.checks(job("v6e-16", env_from=(("KEY", "s/key"),)))
    said = {check.name: check.probe() for check in checks[2:]}
    assert list(said) == ["nodes", "secret KEY", "service account", "queue"]
    for line in said.values():
        assert line.startswith("not known (Error from server (Forbidden): serviceaccounts")


@pytest.mark.processes
@pytest.mark.parametrize("name", ["SQUEUE_STATES", "SCANCEL_PARTITION", "SLURM_CLUSTERS"])
def test_variables_do_not_hide_a_job_from_slurms_programs(monkeypatch, name):
    """`delete` would remove the folder of one that runs."""
    monkeypatch.setenv(name, "other")
    assert programs.call(["sh", "-c", f"echo ${{{name}-none}}"]) == "none\n"


@pytest.mark.processes
def test_a_program_that_hangs_is_ended_with_what_it_started(tmp_path):
    """gcloud is a script whose Python holds the pipes."""
    words = ["sh", "-c", f"sleep 600 & echo $! > {tmp_path / 'child'}; wait"]
    with pytest.raises(ProgramError, match=r"sh -c: timed out after 1 s"):
        programs.call(words, limit=1.0)
    child = int((tmp_path / "child").read_text())
    until(lambda: not is_there(child))  # at once, on a machine that is not busy
    error = api_error(ProgramError(["gcloud"], -9, "timed out after 300 s"))
    assert is_transient(error.code, str(error)), "the launcher asks again"
