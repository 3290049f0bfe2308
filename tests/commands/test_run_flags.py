"""The flags of the commands that train a model."""

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
from processes import config_file
from small_task import task_config, write_task

import bert_jax
from bert_jax import cli, exit_codes
from bert_jax.commands.command import define, parse
from bert_jax.commands.run_flags import run_options
from bert_jax.errors import UserError
from bert_jax.training.options import DEFAULTS, RunOptions
from bert_jax.training.profiling import Steps

# The word of a flag for each option, and its value; a new option needs a row here.
OPTIONS: dict[str, tuple[str, Any]] = {
    "strict_restore": ("--strict_restore", True),
    "adopt": ("--adopt", True),
    "profile": ("--profile=1:3", Steps(1, 3)),
    "wandb": ("--wandb=project", "project"),
    "time_budget": ("--time_budget=90s", 90.0),
}
WITHOUT_FLAG = {"stop_after"}


@pytest.mark.parametrize("name", ["pretrain", "finetune"])
@pytest.mark.parametrize("option", [field.name for field in dataclasses.fields(RunOptions)])
def test_an_option_has_its_flag_in_every_command_that_trains(name: str, option: str) -> None:
    if option in WITHOUT_FLAG or (name, option) == ("finetune", "time_budget"):
        assert option not in define(cli.COMMANDS[name], [])[0]
        return
    word, value = OPTIONS[option]
    values, _ = parse(name, cli.COMMANDS[name], ["--config=tiny", "--workdir=run", word])
    assert run_options(values) == dataclasses.replace(DEFAULTS, **{option: value})


@pytest.mark.parametrize("name", ["pretrain", "finetune"])
def test_the_options_reach_the_training_loop(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All in one object: one of them shows it."""

    def refuse(project: str | None) -> None:
        raise UserError(f"asked for {project}")

    monkeypatch.setattr("bert_jax.training.loop.check_installed", refuse)
    config = config_file(task_config(write_task(tmp_path / "task")), tmp_path / "config.py")
    words = [name, f"--config={config}", f"--workdir={tmp_path / 'run'}", "--wandb=project"]
    assert cli.main(words) == exit_codes.FAILED
    assert capsys.readouterr().err == "error: asked for project\n"


def test_python_has_the_options_of_the_command() -> None:
    assert set(OPTIONS) <= set(inspect.signature(bert_jax.pretrain).parameters)


def test_fine_tuning_has_the_flags_of_pretraining() -> None:
    """All but the budget: the steps of a task follow from its epochs."""
    pretrain, finetune = (
        set(define(cli.COMMANDS[name], [])[0]) for name in ("pretrain", "finetune")
    )
    assert pretrain - finetune == {"time_budget"}
    assert finetune - pretrain == {"seeds", "weights"}
