"""Completion with Tab, in the shells that are installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from bert_jax import cli
from bert_jax.commands.completion import script
from bert_jax.exit_codes import DONE, USAGE

pytestmark = pytest.mark.processes
ASK = {
    "bash": """\
source {script}; COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}; _bert_jax
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    "fish": "source {script}; complete -C {line!r}\n",
    "zsh": """\
compdef() {{ : }}
compadd() {{ while [[ $1 != -- ]]; do shift; done; print -l -- "${{(@M)@[2,-1]:#$~start*}}" }}
compset() {{ start=${{current#*=}} }}
source {script} 2> /dev/null; line={line!r}; words=("${{(@s: :)line}}"); CURRENT=$#words
start=${{(b)words[CURRENT]}}; _bert_jax
""",
}
STARTS = {
    "bert-jax comp": ["compile", "completion"],
    "bert-jax data b": ["batch", "build"],
    "bert-jax pretrain --workd": ["--workdir="],
    "bert-jax pretrain --config=tin": ["tiny"],
    "bert-jax pretrain --config=tiny --config.phases[0].st": ["--config.phases[0].steps="],
    "bert-jax launch local run --processes=2 pre": ["pretrain"],
    "bert-jax launch local run pretrain --strict": ["--strict_restore"],
    "bert-jax data tokenizer --model=u": ["unigram"],
    "bert-jax completion z": ["zsh"],
}


@pytest.mark.parametrize("shell", ASK)
def test_tab_completes(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(script(shell, cli.COMMANDS))
    for line, expected in STARTS.items():
        text = ASK[shell].format(script=path, line=line)
        done = subprocess.run(
            [shell, "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        words = {word.partition("\t")[0] for word in done.stdout.split("\n") if word.strip()}
        if shell == "fish":  # completes the flag and its value together
            words = {word.removeprefix(line.split()[-1].partition("=")[0] + "=") for word in words}
            words = {word or line.split()[-1].partition("=")[0] + "=" for word in words}
        assert sorted(words) == expected, f"{line}: {done.stderr}"


def test_every_command_and_flag_is_in_the_script(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["completion", "bash"]) == DONE
    out = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert f"'{name}') following=" in out
    assert "--config.optimizer.learning_rate=" in out
    assert "--config=wiki_books_small" in out


@pytest.mark.parametrize("words", [[], ["tcsh"], ["bash", "zsh"]])
def test_another_shell_is_one_line(words: list[str], capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["completion", *words]) == USAGE
    assert "completion takes one shell" in capsys.readouterr().err
