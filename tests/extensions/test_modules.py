"""`--module=PATH`: rows of a user's own file, in every command, known by name and digest."""

import json
import re
from pathlib import Path

import pytest
from corpus import small_store
from numba.core.errors import TypingError
from rows import with_row, without_users_rows
from users_modules import THIRDS, command, error, write

from bert_jax import cli
from bert_jax.data_pipeline import sources
from bert_jax.data_pipeline.masking.masking_settings import MODES
from bert_jax.errors import UserError
from bert_jax.extensions import registry
from bert_jax.finetune.tasks import task_kinds as tasks
from bert_jax.storage.digest import file_digest

CONFIG = """
from bert_jax.configs.tiny import get_config as tiny

def get_config():
    config = tiny()
    config.data.store = "store"
    config.data.masking = "every_third"
    config.model.hidden_size, config.model.intermediate_size = 32, 64
    config.model.max_position_embeddings = 32
    phase = config.phases[0]
    phase.steps, phase.batch_size, phase.seq_length, phase.max_predictions = 2, 8, 32, 5
    return config
"""
MARK = """
with open("executed", "a") as file:
    file.write("x")
"""
ALL = ("data tokenizer", "data build", "data inspect", "data export-examples", "data batch",
       "pretrain", "evaluate", "status", "convert export", "convert verify", "fill", "finetune",
       "predict", "embed", "search", "look attention", "look neighbours", "look senses",
       "compile", "ablate run", "ablate report", "demo")  # fmt: skip
NONE = ("completion", "data verify", "convert import", "convert push", "doctor")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has a store, a config, and the module that the config needs."""
    small_store(tmp_path / "store")
    write(tmp_path, "conf.py", CONFIG.lstrip())
    write(
        tmp_path,
        "thirds.py",
        THIRDS + MARK,
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def executed(folder: Path) -> int:
    file = folder / "executed"
    return len(file.read_text()) if file.exists() else 0


def needed(path: Path) -> str:
    return f"made with --module={path.name} (sha256 {file_digest(path)[:12]}…), which defines kind"


PRETRAIN = ("pretrain", "--config=conf.py", "--workdir=run")


def test_every_command_that_needs_rows_takes_modules():
    taken = {name for name, verb in cli.COMMANDS.items() if verb.takes_modules}
    assert taken == {*ALL}
    others = cli.COMMANDS.keys() - taken
    assert others - {*NONE} == {name for name in others if name.startswith("launch ")}


@pytest.mark.slow
def test_a_run_knows_its_module(folder: Path, capsys: pytest.CaptureFixture[str]):
    module = folder / "thirds.py"
    assert "config.data.masking='every_third'; valid: " in error(capsys, *PRETRAIN)
    assert command(capsys, *PRETRAIN, "--module=thirds.py")[0] == 0
    (row,) = json.loads((folder / "run/config.json").read_text())["modules"]
    assert row == {
        "key": "data.masking",
        "what": "kind of masking",
        "row": "every_third",
        "module": "thirds.py",
        "sha256": file_digest(module),
    }

    others = {
        "evaluate": ("evaluate", "--workdir=run"),
        "export": ("convert", "export", "--workdir=run", "--out=out"),
        "status": ("status", "--workdir=run"),
        "batch": ("data", "batch", "--workdir=run", "--step=1"),
        "resume": PRETRAIN,
        "launch": ("launch", "local", "run", "--processes=2", *PRETRAIN),
    }
    # What the workdir names is executed nowhere, not even if it is there.
    (folder / "run/thirds.py").write_bytes(module.read_bytes())
    before = executed(folder)
    for words in others.values():
        line = error(capsys, *words)
        assert f"{needed(module)} of masking 'every_third'; give it" in line, words
    assert executed(folder) == before

    del others["launch"]  # its processes say the same
    (folder / "run/thirds.py").unlink()
    (folder / "new").mkdir()
    changed = write(folder / "new", "thirds.py", THIRDS + "\n# changed\n")
    for words in others.values():
        line = error(capsys, *words, f"--module={changed}")
        assert needed(module) in line
        assert f"not with {changed} ({file_digest(changed)[:12]}…); put the old file back" in line

    (folder / "moved").mkdir()
    moved = module.rename(folder / "moved/other_name.py")
    for name, words in others.items():
        code, said = command(capsys, *words, "--module", moved)
        assert code == 0, (name, said)
    (row,) = json.loads((folder / "run/config.json").read_text())["modules"]
    assert row["module"] == "other_name.py"


@pytest.mark.slow
def test_a_run_without_a_checkpoint_may_change_its_module(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    module = folder / "thirds.py"
    words = (*PRETRAIN, "--module=thirds.py")
    module.write_text(module.read_text().replace("taken = 0", "taken = nothing"))
    with pytest.raises(TypingError):
        command(capsys, *words)
    assert (folder / "run/config.json").exists()
    module.write_text(module.read_text().replace("taken = nothing", "taken = 0"))
    assert command(capsys, *words)[0] == 0


@pytest.mark.slow
def test_a_config_file_may_be_the_module(folder: Path, capsys: pytest.CaptureFixture[str]):
    mine = write(folder, "mine.py", THIRDS + CONFIG)
    assert command(capsys, "pretrain", "--config=mine.py", "--workdir=run")[0] == 0
    assert f"{needed(mine)} of masking" in error(capsys, "evaluate", "--workdir=run")
    assert command(capsys, "evaluate", "--workdir=run", "--module=mine.py")[0] == 0
    assert command(capsys, "pretrain", "--config=mine.py", "--workdir=run")[0] == 0


@pytest.mark.slow
def test_a_module_may_be_the_config_file(folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder, "mine.py", THIRDS + CONFIG)
    words = ("data", "inspect", "--store=store", "--config=mine.py", "--module=mine.py")
    assert command(capsys, *words)[0] == 0


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("none.py", None, "no such file"),
        ("rows.txt", "x = 1\n", "give a .py file"),
        ("bad.py", "x = 1\ndef f(:\n", "line 2: SyntaxError: invalid syntax"),
        ("bad.py", "import json\n\njson.loads('[')\n", "line 3: JSONDecodeError: Expecting value"),
        ("bad.py", "import nowhere\n", "line 1: ModuleNotFoundError: No module named 'nowhere'"),
        ("bad.py", "raise SystemExit\n", "line 1: SystemExit"),
        ("bad.py", "\0", "null bytes"),
        (
            "bad.py",
            THIRDS.replace('"every_third"', '"span"'),
            "kind of masking 'span' exists; give yours another name",
        ),
    ],
    ids=["absent", "no Python", "syntax", "library", "import", "exit", "NUL", "taken"],
)
def test_a_broken_module_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, text: str | None, line: str
):
    if text is not None:
        write(folder, name, text)
    said = error(capsys, "data", "inspect", "--store=store", f"--module={name}")
    assert said.startswith(f"--module={name}: ")
    assert line in said


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ("data_pipeline.masking.masking_settings.MODES", "data_pipeline.masking.mode.Mode"),
        ("data_pipeline.sources.KINDS", "data_pipeline.sources.kind.Kind"),
        ("config.optimizers.OPTIMIZERS", "optimizers.optimizer.Optimizer"),
        ("finetune.tasks.task_kinds.KINDS", "finetune.tasks.kind.TaskKind"),
    ],
)
@pytest.mark.parametrize(
    ("row", "kind"),
    [("print", "builtin_function_or_method"), ("None", "NoneType"), ("dict", "the class dict")],
)
def test_a_row_of_another_class_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], table: str, wanted: str, row: str, kind: str
):
    module, _, name = table.rpartition(".")
    write(folder, "bad.py", f"from bert_jax.{module} import {name}\n\n{name}.add('mine', {row})\n")
    said = error(capsys, "data", "inspect", "--store=store", "--module=bad.py")
    assert re.fullmatch(
        f"--module=bad.py: [a-z ]+ 'mine': add an instance of bert_jax.{wanted}, not {kind}", said
    )


def test_a_folder_is_no_module(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "package.py").mkdir()
    said = error(capsys, "data", "inspect", "--store=store", "--module=package.py")
    assert said == "--module=package.py: no such file"


def test_two_modules_cannot_add_one_name(folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder, "again.py", THIRDS)
    words = ("data", "inspect", "--store=store", "--module=thirds.py", "--module=again.py")
    said = error(capsys, *words)
    assert said == (
        f"--module=again.py: kind of masking 'every_third' exists in {folder}/thirds.py; give "
        "yours another name"
    )


def test_what_a_config_file_adds_wrongly_is_said_of_the_file(folder: Path, capsys):
    write(folder, "own.py", THIRDS + CONFIG)
    said = error(capsys, "pretrain", "--module=thirds.py", "--config=own.py", "--workdir=run")
    assert said.startswith(f"own.py: kind of masking 'every_third' exists in {folder}/thirds.py;")


def test_every_module_that_a_run_needs_is_named():
    row = {"what": "kind", "module": "a.py", "sha256": "1" * 64, "key": "data.masking"}
    rows = [row | {"row": "one"}, row | {"row": "two", "module": "b.py"}]
    of = "--module={} (sha256 111111111111…), which defines kind '{}'"
    named = f"{of.format('a.py', 'one')}, and {of.format('b.py', 'two')}; give them again"
    with pytest.raises(UserError) as raised:
        registry.check_rows(rows)
    assert str(raised.value) == f"this run was made with {named}"


def test_one_file_in_two_places_is_one_module(folder: Path, capsys: pytest.CaptureFixture[str]):
    """As in a bundle, where a config file and --module may bring it both."""
    write(folder, "again.py", (folder / "thirds.py").read_text())
    words = ("data", "inspect", "--store=store", "--module=thirds.py", "--module=again.py")
    assert command(capsys, *words)[0] == 0


def test_a_name_that_could_not_be_typed_is_refused():
    with without_users_rows():
        for name in ("a/b", "a@1", "a,b", "a:b", "", 7):
            with pytest.raises(UserError, match="give a name of letters, digits and '_' only"):
                MODES.add(name, MODES["token"])
        for table, name in ((tasks.KINDS, "sst2"), (sources.KINDS, "documents")):
            with pytest.raises(UserError, match=f"{name!r} exists; give yours another name"):
                table.add(name, next(iter(table.values())))


def test_help_and_choices_have_the_row(folder: Path, capsys: pytest.CaptureFixture[str]):
    for word in ("--module=thirds.py", "-module=thirds.py"):
        code, said = command(capsys, "evaluate", word, "--help")
        assert code == 0
        assert "with_replacement, every_third (default" in said


def test_a_module_of_python_is_recorded_too(folder: Path):
    """As `with_row` adds it: a row of a file that was imported."""
    with with_row(MODES, "every_third", MODES["token"]):
        (row,) = registry.used_rows({"data.masking": "every_third", "optimizer.name": "x"})
        assert registry.used_rows({"phases[1].masking": "every_third"}) == [row]
        assert (row["module"], row["row"]) == ("rows.py", "every_third")
        registry.check_rows([row])
    with pytest.raises(Exception, match=r"--module=rows\.py .*; give it"):
        registry.check_rows([row])


def test_a_row_of_a_session_has_no_file():
    with without_users_rows():
        exec("MODES.add('typed', MODES['token'])", {"MODES": MODES})
        (row,) = registry.used_rows({"data.masking": "typed"})
        assert (row["module"], row["sha256"]) == ("", "")
        registry.check_rows([row])
        exec("MODES.add('typed', MODES['span'])", {"MODES": MODES})  # typed again
    with pytest.raises(Exception, match="made with Python, which defines kind of masking 'typed'"):
        registry.check_rows([row])
