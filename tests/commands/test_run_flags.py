"""The flags of the commands that train a model."""

from pathlib import Path

import pytest

from bert_jax import cli
from bert_jax.commands.command import define


def test_fine_tuning_has_the_flags_of_pretraining() -> None:
    """All but the budget: the steps of a task follow from its epochs."""
    pretrain, finetune = (
        set(define(cli.COMMANDS[name], [])[0]) for name in ("pretrain", "finetune")
    )
    assert pretrain - finetune == {"time_budget"}
    assert finetune - pretrain == {"seeds"}


@pytest.mark.parametrize(
    ("flag", "message", "code"),
    [
        (
            "--time_limit=10s",
            "--time_limit=10s: give more than config.deadlines.grace, the 25 s",
            2,
        ),
        ("--time_limit=soon", "time_limit", 2),
        ("--profile=9", "profile", 2),
        ("--num_processes=2", "--coordinator", 1),
    ],
)
def test_a_wrong_flag_is_one_line_before_anything_starts(
    flag: str, message: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["finetune", "--config.task.name=rte", f"--workdir={tmp_path / 'run'}", flag]
    assert cli.main(words) == code
    said = capsys.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) <= 2  # the message, and where help is
    assert not (tmp_path / "run").exists()
