"""The folder of a demo: one for each text; the folder of another one is refused at once."""

import dataclasses
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bert_jax.checkpoint.catalog import MARKER
from bert_jax.config.config_files import load
from bert_jax.demo import pipeline as demo
from bert_jax.errors import UserError
from bert_jax.runtime.program import program

CONFIG = load("demo")


@pytest.fixture
def books(tmp_path: Path) -> Path:
    (tmp_path / "my books").mkdir()
    (tmp_path / "my books/a.txt").write_text("Some text.\n")
    return tmp_path / "my books"


@pytest.mark.parametrize(
    ("data", "folder"),
    [
        (None, "demo_run"),
        ("/data/books", "demo_run_books"),
        ("/data/books/", "demo_run_books"),
        ("war.txt", "demo_run_war"),
        ("lines:notes/war.txt", "demo_run_war"),
        ("hf:org/wiki", "demo_run_wiki"),
    ],
)
def test_each_text_has_its_own_folder(data: str | None, folder: str) -> None:
    assert demo.default_workdir(demo.source_of(data)) == Path(folder)


def test_a_folder_gives_its_full_name(tmp_path: Path) -> None:
    (tmp_path / "books.v2").mkdir()
    source = demo.source_of(str(tmp_path / "books.v2"))
    assert demo.default_workdir(source) == Path("demo_run_books.v2")


def test_the_same_demo_resumes(books: Path, tmp_path: Path) -> None:
    for _ in range(2):
        demo._claim(tmp_path / "new/demo", demo.source_of(str(books)), CONFIG)
    assert [path.name for path in (tmp_path / "new/demo").iterdir()] == ["demo.json"]


def change_text(workdir: Path, books: Path) -> None:
    (books / "b.txt").write_text("More text.\n")


def other_text(workdir: Path, books: Path) -> None:
    books.rename(books.with_name("b"))
    books.mkdir()
    demo._claim(workdir.with_name("other"), demo.source_of(str(books.with_name("b"))), CONFIG)
    (workdir / "demo.json").write_bytes((workdir.with_name("other") / "demo.json").read_bytes())
    (books / "a.txt").write_text("Some text.\n")


def other_settings(workdir: Path, books: Path) -> None:
    changed = dataclasses.replace(CONFIG, seed=7)
    (workdir / "demo.json").unlink()
    demo._claim(workdir, demo.source_of(str(books)), changed)


def other_kind(workdir: Path, books: Path) -> None:
    (workdir / "demo.json").unlink()
    demo._claim(workdir, demo.source_of(f"lines:{books}"), CONFIG)


def earlier_version(workdir: Path, books: Path) -> None:
    (workdir / "demo.json").rename(workdir / "tokenizer.json")


def damaged(workdir: Path, books: Path) -> None:
    (workdir / "demo.json").write_text("[")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (change_text, "holds the demo of .*my books, which has changed since"),
        (other_text, "holds the demo of other text, .*/b;"),
        (other_kind, "holds the demo of other text, lines:.*my books;"),
        (other_settings, "holds a demo with other settings, of another version of bert-jax"),
        (earlier_version, "holds files, but no demo of this version of bert-jax"),
        (damaged, "holds files, but no demo of this version of bert-jax"),
    ],
)
def test_another_demo_is_refused_in_one_line(change, reason, books, tmp_path) -> None:
    workdir = tmp_path / "demo"
    demo._claim(workdir, demo.source_of(str(books)), CONFIG)
    change(workdir, books)
    before = sorted(workdir.iterdir())
    with pytest.raises(UserError, match=reason) as caught:
        demo._claim(workdir, demo.source_of(str(books)), CONFIG)
    command = f"{program()} demo --data='books:{books}' --workdir={workdir}_2"
    assert str(caught.value).endswith(f"give another folder: {command}")
    assert "\n" not in str(caught.value)
    assert sorted(workdir.iterdir()) == before


def test_python_s_own_text_needs_no_flag(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=rf"demo --workdir={tmp_path}_2$"):
        demo._claim(tmp_path, demo.source_of(None), CONFIG)


def test_options_of_a_source_are_a_part_of_its_demo(tmp_path: Path) -> None:
    (tmp_path / "j.jsonl").write_text('{"body": "One.", "title": "Two."}\n')
    typed = f"jsonl:{tmp_path}/j.jsonl,text=body,lang=de"
    demo._claim(tmp_path / "demo", demo.source_of(typed), CONFIG)
    demo._claim(tmp_path / "demo", demo.source_of(typed), CONFIG)
    other = f"jsonl:{tmp_path}/j.jsonl,text=title"
    with pytest.raises(UserError, match="holds the demo of other text, jsonl") as caught:
        demo._claim(tmp_path / "demo", demo.source_of(other), CONFIG)
    held, again = re.findall(r"jsonl:\S+", str(caught.value))
    assert demo.source_of(held.rstrip(";")) == demo.source_of(typed)
    assert demo.source_of(again) == demo.source_of(other)


def test_a_pattern_has_the_folder_above_it(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").write_text("Some text.\n")
    source = demo.source_of(f"{tmp_path}/notes/*.txt")
    assert demo.default_workdir(source) == Path("demo_run_notes")


def test_a_trained_demo_is_refused_for_other_steps(books: Path, tmp_path: Path) -> None:
    run = tmp_path / "demo/run"
    for step in (2, 4):
        (run / f"checkpoints/{step}").mkdir(parents=True)
        (run / f"checkpoints/{step}" / MARKER).touch()
    recorded = {"phases": [{"steps": 4}]}
    source = demo.source_of(str(books))

    def check(steps: int) -> None:
        description = {"run_id": "a", "config": recorded, "data": {}, "versions": {}}
        (run / "config.json").write_text(json.dumps(description))
        demo._check_steps(tmp_path / "demo", source, steps)

    check(4)
    for steps in (3, 5):
        wanted = f"4 of 4 steps, and cannot be for {steps}; give --steps=4, or give another folder"
        with pytest.raises(UserError, match=wanted) as caught:
            check(steps)
        assert str(caught.value).endswith(f"--steps={steps} --workdir={tmp_path}/demo_2")
    recorded["phases"][0]["steps"] = 9
    check(7)  # it goes on
    demo._check_steps(tmp_path / "new", source, 7)


def test_a_store_without_pairs_of_documents_is_said_to_be_too_small(books: Path) -> None:
    def store(train: int, held_out: int) -> Any:
        parts = [SimpleNamespace(document_lengths=[1] * number) for number in (train, held_out)]
        return SimpleNamespace(train=parts[0], held_out=parts[1])

    source = demo.source_of(str(books))
    demo._check_documents(store(2, 2), source)
    for documents in ((1, 0), (2, 1)):
        with pytest.raises(UserError, match=r"documents? with text, but the demo needs four"):
            demo._check_documents(store(*documents), source)


def test_missing_text_creates_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        demo._claim(tmp_path / "demo", demo.source_of(str(tmp_path / "absent")), CONFIG)
    assert not (tmp_path / "demo").exists()


def test_an_unknown_kind_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="source kind 'lins' is unknown; did you mean lines"):
        demo.source_of(f"lins:{tmp_path}")


def test_the_program_is_named_as_it_can_be_typed(tmp_path: Path, monkeypatch) -> None:
    script = tmp_path / "env/bin/bert-jax"
    monkeypatch.setattr(sys, "executable", str(script.with_name("python")))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    assert program() == f"{script.with_name('python')} -m bert_jax"
    script.parent.mkdir(parents=True)
    script.touch(0o755)
    assert program() == "./env/bin/bert-jax"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert program() == str(script)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    assert program() == "bert-jax"
