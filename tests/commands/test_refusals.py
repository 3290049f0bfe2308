"""What is wrong with a command: one line, before anything is asked, started or created.

The lines are in goldens/refusals.
"""

import shlex
import shutil
import signal
from string import Template

import pytest
import refusals
from signals import dispositions

from bert_jax import cli, exit_codes

NAMES = {
    "IMAGE": f"example.org/bert@sha256:{'1' * 64}",
    "POD": "--workdir=gs://bucket/b1 --config.data.store=gs://bucket/store "
    "--config.model.vocab_size=99",
}


@pytest.mark.processes
@pytest.mark.parametrize("name", ["ablate", "compile", "finetune", "launch", "others", "pretrain"])
def test_a_command_that_cannot_be_is_one_line(name, capsys, monkeypatch, tmp_path):
    """With no program but git, and no GPU compiler: nothing is asked for, started or created."""
    programs, here = tmp_path / "bin", tmp_path / "here"
    programs.mkdir()
    here.mkdir()
    (programs / "git").symlink_to(shutil.which("git"))
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("BERT_JAX_GPU_COMPILER", raising=False)
    monkeypatch.chdir(here)

    def answer(typed: str) -> str:
        with dispositions(lambda _: signal.SIG_DFL):  # an ignored signal is a line, too
            code = cli.main(shlex.split(Template(typed).substitute(NAMES)))
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1), typed
        assert code == (exit_codes.USAGE if err.startswith("usage: ") else exit_codes.FAILED)
        assert not list(here.iterdir()), typed
        return err.rstrip("\n")

    refusals.check(name, answer)
