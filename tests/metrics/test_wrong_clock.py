"""A wall clock that jumps: deadlines, signs of life and accounts go by one that does not."""

import signal
from pathlib import Path

import pytest
from processes import Job, assert_same_bits, newest_step

from bert_jax.exit_codes import STOPPED
from bert_jax.metrics import goodput, run_records
from bert_jax.workdir.layout import Workdir

pytestmark = pytest.mark.processes

PROGRAM = (str(Path(__file__).parents[1] / "support" / "clock_process.py"),)


@pytest.mark.nightly
def test_four_processes_with_four_wrong_clocks(disturbed, undisturbed, tmp_path):
    """Nobody is taken for lost or hanging, all stop in time when asked, and no bit differs."""
    workdir = tmp_path / "run"
    with Job(disturbed, workdir, tmp_path, processes=4, program=PROGRAM) as job:
        job.wait_for(lambda: newest_step(workdir) >= 3, "a step")
        job.send(signal.SIGTERM, 2)
        codes = job.codes()
        assert codes in ([STOPPED] * 4, [0] * 4), job.said()  # 0: it was done before
    with Job(disturbed, workdir, tmp_path, processes=4, program=PROGRAM) as job:
        assert job.codes() == [0] * 4, job.said()
    assert_same_bits(undisturbed, workdir)
    account = goodput.account(list(run_records.records(Workdir.open(workdir).metrics)))
    assert goodput.render(account)
