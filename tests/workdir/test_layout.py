"""The names of a run's files and folders."""

import ast
import dataclasses
from pathlib import Path

import pytest
from every_file import for_every

import bert_jax
from bert_jax.workdir.layout import MAY_PRECEDE_CONFIG, Workdir

ROOMS = ("workdir", "checkpoint", "distributed", "metrics", "reporting", "training")
SOURCES = [
    path for room in ROOMS for path in sorted((Path(bert_jax.__file__).parent / room).glob("*.py"))
]
NAMES = {part.name for part in dataclasses.astuple(Workdir.open("run"))} - {"run"}


@for_every(SOURCES)
def test_they_stand_in_the_layout_alone(path: Path) -> None:
    if path.name != "layout.py":
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
        assert not texts & NAMES, f"take it from a Workdir: {texts & NAMES}"


def test_a_workdir_is_what_older_versions_wrote() -> None:
    assert sorted(NAMES) == [
        *(".lock", "checkpoints", "config.json", "evaluations.jsonl", "metrics.jsonl", "profile"),
        *("quarantine", "teacher_outputs.npz", "tensorboard", "tokenizer.json", "word_start.npz"),
    ]


def test_its_text_is_the_path_as_given_and_its_checkpoints_need_no_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workdir = Workdir.open("run")
    assert (str(workdir), str(workdir.metrics)) == ("run", "run/metrics.jsonl")
    assert str(workdir.checkpoints) == str(tmp_path.resolve() / "run" / "checkpoints")


@pytest.mark.parametrize("part", ["config_json", "metrics", "checkpoints", "quarantine"])
def test_a_folder_with_part_of_a_run_is_not_free(part: str) -> None:
    workdir = Workdir.open("run")
    assert MAY_PRECEDE_CONFIG.fullmatch(workdir.lock.name)
    assert not MAY_PRECEDE_CONFIG.fullmatch(getattr(workdir, part).name)
