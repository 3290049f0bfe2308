"""What nobody who supplies data, text or settings can do; see docs/security.md."""

import ast
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from absl import flags
from corpus import small_store
from every_file import for_every
from store_corruptions import HEADERS, Touch
from test_project import MODULES, ROOT, SOURCES, imports_of, name_of, tree_of

from bert_jax import cli, exit_codes
from bert_jax.commands.command import define_flags
from bert_jax.config.config_files import load
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.data_pipeline.store.manifest import ARRAYS
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.errors import UserError

SECRETS = {"BERT_JAX_TEST_SECRET": "hunter2-bert-jax", "HF_TOKEN": "hf_0123456789abcdefghij"}
LIMIT = 300  # seconds; only ever waited out by a broken test
UNPICKLERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
RUN_TEXT = {"eval", "exec", "compile", "__import__"}
# Functions of modules that run a text as a program, or read objects.
FORBIDDEN = {
    "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "pandas.read_pickle",
    "subprocess.getoutput", "subprocess.getstatusoutput", "numpy.lib.format.read_array",
    "zipfile.ZipFile", "shutil.unpack_archive",
}  # fmt: skip
# Machine code that numba pickled, from a folder that nobody else can write to.
UNPICKLES = {"data_pipeline/random/numba_jit.py"}
# A --config file of values, with a loader that makes nothing but plain values; one file is written.
USES_YAML = {"bert_jax/config/values_file.py", "launch/sky/task.py"}
# Copies members of known names out of a zip, by their base names; reads arrays; writes zips.
ZIPS = {
    "bert_jax/convert/model_folders.py", "bert_jax/finetune/tasks/leaderboard.py",
    "bert_jax/storage/npz_file.py", "launch/tpu/archive.py",
}  # fmt: skip
# Only a --config file is run: it is a program, and says so.
RUNS_FILES = {"bert_jax/config/config_files.py"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store") / "store")


def calls_of(path: Path) -> Iterator[tuple[str, dict[str, object], int]]:
    """Every call in a file: the dotted name, keyword arguments that are constants, the line."""
    tree = tree_of(path)
    names = {"np": "numpy"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        first, dot, rest = ast.unparse(node.func).partition(".")
        constant = {
            k.arg: getattr(k.value, "value", "computed") for k in node.keywords if k.arg is not None
        }
        yield f"{names.get(first, first)}{dot}{rest}", constant, node.lineno


def breaches(path: Path) -> list[str]:
    """What in a file could unpickle, run a text, or unpack an archive anywhere."""
    unpicklers = set() if name_of(path) in UNPICKLES else UNPICKLERS
    unpicklers = unpicklers - {"yaml"} if name_of(path) in USES_YAML else unpicklers
    forbidden = FORBIDDEN - {"zipfile.ZipFile"} if name_of(path) in ZIPS else FORBIDDEN
    found = [f"imports {m}" for m in imports_of(path) if m.split(".")[0] in unpicklers]
    for name, keywords, line in calls_of(path):
        last = name.rpartition(".")[2]
        if (
            name in RUN_TEXT
            or name in forbidden
            or (name == "torch.load" and keywords.get("weights_only") is not True)
            or keywords.get("allow_pickle", False) is not False
            or (
                last.startswith("savez") and "allow_pickle" in keywords
            )  # an array, before NumPy 2.2
            or keywords.get("shell", False) is not False
            or (last == "extractall" and keywords.get("filter") != "data")
            or (last == "extract" and keywords.get("filter", "data") != "data")
            or (name.startswith("runpy.") and name_of(path) not in RUNS_FILES)
        ):
            found.append(f"line {line}: {name}")
    return found


@for_every(MODULES)
def test_no_module_unpickles_runs_texts_or_shells(path: Path) -> None:
    assert breaches(path) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "def f():\n    from marshal import loads", "eval(x)", "exec('1')",
        "import numpy as np\nnp.load(f, allow_pickle=True)", "np.load(f, allow_pickle=yes)",
        "import numpy as np\nnp.savez(f, allow_pickle=False)",
        "import os\nos.system(x)", "from os import system\nsystem(x)", "import yaml",
        "subprocess.run(x, shell=True)", "tar.extractall(d)", "tar.extract(m, filter='tar')",
        "shutil.unpack_archive(f)", "torch.load(f)", "torch.load(f, weights_only=w)",
        "import zipfile\nzipfile.ZipFile(f)", "import runpy\nrunpy.run_path(f)",
    ],
)  # fmt: skip
def test_the_rule_sees(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_project.ROOT", tmp_path)
    (tmp_path / "module.py").write_text(text)
    assert breaches(tmp_path / "module.py")


@for_every(SOURCES)
def test_archives_are_unpacked_with_a_filter(path: Path) -> None:
    """Also by tests and benchmarks: no member of an archive may leave the folder it goes to."""
    unpacking = ("extract", "extractall", "unpack_archive")
    text = path.read_text(encoding="utf-8")
    if not any(name in text for name in unpacking):  # most files: their trees would take seconds
        return
    for name, keywords, line in calls_of(path):
        if name.rpartition(".")[2] in unpacking:
            assert keywords.get("filter") == "data", f"{name_of(path)}:{line}: {name}"


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("verify", [True, False])
def test_an_array_of_objects_is_not_unpickled(
    array: str, verify: bool, store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERT_JAX_TEST_UNPICKLED", str(tmp_path / "unpickled"))
    file = shutil.copytree(store.path, tmp_path / "store") / "train" / f"{array}.npy"
    size = file.stat().st_size
    np.save(file, np.array([Touch()], object), allow_pickle=True)
    with file.open("ab") as stream:  # so that its size is right
        stream.write(bytes(max(0, size - file.stat().st_size)))
    with pytest.raises(UserError, match=re.escape(str(file))):
        open_store(tmp_path / "store", verify=verify)
    assert not (tmp_path / "unpickled").exists()


CODE = "__import__('os').system('touch ran')"
TEXTS = [CODE, f"({CODE},)", f"[{CODE} for _ in (1,)]", f"@{CODE}", "${" + CODE + "}"]


@pytest.mark.parametrize("key", flatten(to_dict(load("tiny"))))
def test_text_of_the_command_line_is_never_run(key, store, tmp_path, monkeypatch, capsys) -> None:
    """For a value of every type there is. Where text is a good value, what it names is missing."""
    monkeypatch.chdir(tmp_path)
    words = ["--config=tiny", "--workdir=run"]
    if key != "data.store":
        words.append(f"--config.data.store={store.path}")
    if key != "model.vocab_size":
        words.append(f"--config.model.vocab_size={store.vocab_size}")
    for text in TEXTS:
        code = cli.main(["pretrain", *words, f"--config.{key}={text}"])
        assert code in (exit_codes.USAGE, exit_codes.FAILED), f"{key}={text}"
        err = capsys.readouterr().err
        assert err.count("\n") == 1, err
        assert err.startswith("usage: " if code == exit_codes.USAGE else "error: ")
    assert [path.name for path in tmp_path.iterdir()] in ([], ["run"])
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("flag", ["--config", "--config.phases", "--config.phases[{}].steps"])
def test_nor_are_names(flag, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    word = f"{flag.format(CODE)}={CODE}"
    words = ["--workdir=run", "--config=tiny", word] if flag != "--config" else [word]
    assert cli.main(["pretrain", *words]) == exit_codes.FAILED
    assert capsys.readouterr().err.startswith("error: ")
    assert not list(tmp_path.iterdir())


def test_headers_that_are_programs_are_among_the_damage() -> None:
    """`test_store_corruption` opens them."""
    assert any(b"__import__" in header for header in HEADERS)


def test_no_flag_takes_a_secret() -> None:
    """The words of a command line can be read by everybody on its machine."""
    secret = re.compile(r"token$|password|passwd|secret|api_?key|credential")
    for name, verb in cli.COMMANDS.items():
        values = flags.FlagValues()
        define_flags(verb, values, [])
        assert not [flag for flag in values if secret.search(flag)], name


def words_of_descendants(pid: int) -> set[bytes]:
    """The command line of every process below one; empty of one that has ended."""
    found = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in map(int, children.read_text().split()):
                found.add(Path(f"/proc/{child}/cmdline").read_bytes())
                found |= words_of_descendants(child)
        except OSError:  # it has just ended
            continue
    return found


def run_with_secrets(words: list[str], folder: Path) -> tuple[str, set[bytes]]:
    """What a verb prints, run with secrets in its environment, and its processes' words."""
    out = folder / "printed"
    with out.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "bert_jax", *words],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **SECRETS},
        )
        below: set[bytes] = set()
        try:
            deadline = time.monotonic() + LIMIT
            while process.poll() is None and time.monotonic() < deadline:
                below |= words_of_descendants(process.pid)
                time.sleep(0.02)
            assert process.poll() == 0, out.read_text()
        finally:
            process.kill()
            process.wait()
    return out.read_text(), below


def holds_a_secret(data: bytes) -> bool:
    return any(secret.encode() in data for secret in SECRETS.values())


@pytest.mark.slow
@pytest.mark.processes
def test_secrets_of_the_environment_go_nowhere(store: TokenStore, tmp_path: Path) -> None:
    run = tmp_path / "run"
    printed, _ = run_with_secrets(
        [
            "pretrain", "--config=tiny", f"--workdir={run}", f"--config.data.store={store.path}",
            f"--config.model.vocab_size={store.vocab_size}", "--config.model.hidden_size=16",
            "--config.model.intermediate_size=16", "--config.model.num_hidden_layers=1",
            "--config.model.num_attention_heads=1", "--config.phases[0].seq_length=32",
            "--config.phases[0].max_predictions=5", "--config.phases[0].batch_size=4",
            "--config.phases[0].steps=2", "--config.log_every_steps=1",
            "--config.checkpoint.every_steps=1", "--config.evaluation.batches=1",
        ],
        tmp_path,
    )  # fmt: skip
    files = [path for path in run.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"config.json", "metrics.jsonl", "metadata", "tokenizer.json"} <= names
    assert "loss" in printed
    assert not holds_a_secret(printed.encode())
    assert [str(path) for path in files if holds_a_secret(path.read_bytes())] == []


@pytest.mark.processes
def test_words_of_started_processes_hold_no_secret(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "other")]  # two sources, so two workers
    for folder in folders:
        folder.mkdir()
        for number in range(4):
            (folder / f"{number}.txt").write_text(f"A sentence, {folder.name} {number}.\n" * 50)
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.,"])
        + "\n"
    )
    printed, below = run_with_secrets(
        [
            "data", "build", *(f"--source=books:{folder},name={folder.name}" for folder in folders),
            f"--tokenizer={tmp_path}/vocab.txt",
            f"--out={tmp_path}/store", "--workers=2", "--held_out_share=0.1",
        ],
        tmp_path,
    )  # fmt: skip
    assert any(b"spawn_main" in words for words in below), "no worker was seen"
    assert not holds_a_secret(printed.encode())
    assert [words for words in below if holds_a_secret(words)] == []
    files = (path for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert not [path for path in files if holds_a_secret(path.read_bytes())]


def test_the_rules_look_at_every_package() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in MODULES} == {
        "bert_jax", "configs", "data_pipeline", "launch",
    }  # fmt: skip
