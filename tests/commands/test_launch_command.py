"""`bert-jax launch local run`: what a user may get wrong."""

import pytest

from bert_jax import cli, errors


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("pretrain", "usage: --processes=… is missing"),
        ("--processes=0 pretrain", "usage: flag --processes=0: 0 is not a positive integer"),
        (
            "--processes=2",
            "usage: launch local run needs a command after its flags, such as pretrain",
        ),
        (
            "--processes=2 pretrian",
            "usage: launch local run starts pretrain, not 'pretrian'; did you mean pretrain?",
        ),
        ("--processes=2 status", "usage: launch local run starts pretrain, not 'status'"),
        ("--processes=2 data build", "usage: launch local run starts pretrain, not 'data'"),
        (
            "--processes=2 pretrain --config=tiny --coordinator=here:1 --workdir=run",
            "usage: --coordinator is set by launch local run for each process; remove it",
        ),
        (
            "--processes 2 pretrain --process_id 1",
            "usage: --process_id is set by launch local run for each process; remove it",
        ),
        (
            "--processes=2 --max_failure=1 pretrain",
            "usage: unknown flag --max_failure; did ",
        ),
        ("--processes=2 pretrain --config=tiny", "usage: --workdir=… is missing"),
        (
            "--processes=2 pretrain --workdri=run",
            "usage: unknown flag --workdri; did ",
        ),
    ],
)
def test_a_command_that_cannot_be_started_is_one_line(capsys, words, line):
    """Also what is wrong with the command's own flags is said once, not by each process."""
    assert cli.main(["launch", "local", "run", *words.split()]) == errors.USAGE
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(line)


def test_what_is_wrong_with_the_config_is_said_before_anything_is_started(capsys):
    words = ["--processes=2", "pretrain", "--config=tiny", "--config.deadlines.grce=1"]
    assert cli.main(["launch", "local", "run", *words, "--workdir=run"]) == errors.FAILED
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: unknown key --config.deadlines.grce; did you mean deadlines.grace?\n"
