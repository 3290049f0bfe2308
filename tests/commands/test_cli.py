"""The command line: what a user types, what comes back, and the line for each mistake."""

import dataclasses
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from corpus import small_store
from etils import epath
from nightly import others_nightly
from signals import with_signals
from tiny_words import TINY

import bert_jax
from bert_jax import cli, errors, exit_codes
from bert_jax.commands.command import parse
from bert_jax.metrics.run_records import read_records


@pytest.fixture
def say(capsys):
    """Runs a command line in this process; gives its exit code, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        code = cli.main(list(words))
        out, err = capsys.readouterr()
        return code, out, err

    return run


def one_line(err: str) -> str:
    """The last line of standard error, which says what went wrong; no traceback before it."""
    assert "Traceback" not in err
    *_, line = err.splitlines()
    return line


def text_folder(path: Path, *documents: str) -> Path:
    """A folder of one plain-text file per document."""
    path.mkdir()
    for i, text in enumerate(documents):
        (path / f"{i}.txt").write_text(text)
    return path


PROSE = "The cat sat on the mat. It was warm there. The dog did not mind at all. " * 6


def build(say, tmp_path: Path, source: str, *more: str) -> tuple[int, str, str]:
    """`data build` with a vocabulary of letters and a few words."""
    vocab = tmp_path / "vocab.txt"
    if not vocab.exists():
        letters = "abcdefghijklmnopqrstuvwxyz."
        entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
        vocab.write_text("\n".join([*entries, *(f"##{c}" for c in letters)]) + "\n")
    return say("data", "build", f"--source={source}", f"--tokenizer={vocab}",
               f"--out={tmp_path / 'store'}", "--workers=1", *more)  # fmt: skip


def test_help_names_every_verb_and_an_example(say):
    code, out, _ = say("--help")
    assert code == 0
    for verb in cli.COMMANDS:
        assert verb in out
        code, text, _ = say(*verb.split(), "--help")
        assert code == 0
        assert f"bert-jax {verb}" in text.split("Example:")[1]
        assert "repeat this option" not in text
        assert "FieldReference" not in text


def test_the_version_is_that_of_the_package(say):
    code, out, _ = say("--version")
    assert (code, out) == (exit_codes.DONE, f"bert-jax {bert_jax.__version__}\n")
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", bert_jax.__version__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bert_jax.nothing


@pytest.mark.processes
@pytest.mark.parametrize("words", ["--help", "pretrain --help", "completion bash", "data verify"])
def test_a_reader_that_stops_reading_is_no_error(words, tmp_path):
    command = [sys.executable, "-m", "bert_jax", *words.split()]
    if words == "data verify":
        command += [f"--store={small_store(tmp_path / 'store').path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == exit_codes.DONE
    assert b"Traceback" not in err


@pytest.mark.parametrize("group", ["data", "convert", "launch", "launch sky"])
def test_the_first_word_of_a_verb_lists_those_that_begin_with_it(group, say):
    code, out, _ = say(*group.split(), "--help")
    assert code == 0
    mine = [verb for verb in cli.COMMANDS if verb.startswith(f"{group} ")]
    assert [line.split("  ")[1] for line in out.splitlines() if line.startswith("  ")] == mine
    assert say(*group.split())[:2] == (exit_codes.USAGE, out)


def test_a_long_name_of_a_flag_ends_before_its_help(say):
    assert "  --negatives_per_pair number of" in say("search", "--help")[1]


def test_the_default_config_is_named(say):
    assert "overrides a value (default base)" in say("data", "inspect", "--help")[1]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["pretrain"], "--config=… is missing"),
        (["data", "build"], "usage: --source=… is missing"),
        (["pretrain", "--process_id=\udcff\x1b[2J"], "--process_id=\ufffd\ufffd[2J"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_code_2(words, line, say):
    code, _, err = say(*words)
    assert code == exit_codes.USAGE
    assert line in one_line(err)


def test_a_name_too_long_for_a_file_is_one_line(say, tmp_path):
    code, _, err = say("pretrain", f"--config={'a' * 3000}", f"--workdir={tmp_path}")
    assert code == exit_codes.FAILED
    assert "aaa: File name too long" in one_line(err)


def test_an_empty_folder(say, tmp_path):
    folder = text_folder(tmp_path / "text")
    code, _, err = build(say, tmp_path, f"books:{folder}")
    assert code == exit_codes.FAILED
    assert str(folder) in one_line(err)


@pytest.mark.parametrize("out", ["", "nowhere/tokenizer.json"])
def test_a_tokenizer_that_cannot_be_written_is_not_trained(out, say, tmp_path, monkeypatch):
    monkeypatch.setattr("bert_jax.data_pipeline.store_build.vocabulary.train_tokenizer", None)
    folder = text_folder(tmp_path / "text", PROSE)
    code, _, err = say("data", "tokenizer", f"--source=books:{folder}", f"--out={tmp_path / out}")
    assert code == exit_codes.FAILED
    assert str(tmp_path / out) in one_line(err)


def test_training_a_tokenizer_shows_how_far_it_is(say, tmp_path):
    folder = text_folder(tmp_path / "text", PROSE)
    out = tmp_path / "tokenizer.json"
    code, _, err = say(
        "data", "tokenizer", f"--source=books:{folder}", f"--out={out}", "--vocab_size=100"
    )
    assert code == 0
    assert "100%" in err
    assert one_line(err) == "training 100 entries"


@pytest.mark.parametrize("value", ["books:~/novels", "books:~/novels,name=x", "books:~"])
def test_the_home_folder_may_be_written_short(value, say, tmp_path, monkeypatch):
    """Shells do not expand ~ after --source=books: or --store=."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = re.sub(r"^books:|,.*", "", value).replace("~", str(tmp_path / "home"))
    code, _, err = build(say, tmp_path, value)
    assert (code, one_line(err)) == (1, f"error: {path}: no such file or folder; check the path")
    code, _, err = say("data", "verify", "--store=~/store")
    assert f"{tmp_path}/home/store: not a token store" in one_line(err)
    code, _, err = say("fill", "--model=~x", "~/a [MASK]")
    assert "~x" in one_line(err)


@pytest.mark.parametrize("path", ["text/books", "gs://bucket/books"])
def test_a_path_without_its_kind(path, say, tmp_path):
    code, _, err = build(say, tmp_path, path)
    assert code == exit_codes.FAILED
    assert f"write KIND:PATH, for example books:{path}" in one_line(err)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/a.jsonl").write_text('{"text": "Hello."}\n')
    code, _, err = build(say, tmp_path, f"{tmp_path}/rows")
    assert f"write KIND:PATH, for example jsonl:{tmp_path}/rows" in one_line(err)


def test_a_run_is_not_an_export(say, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.json").write_text("{}")
    code, _, err = say("fill", f"--model={tmp_path}", "The [MASK].")
    assert code == exit_codes.FAILED
    assert f"export it first: bert-jax convert export --workdir={tmp_path}" in one_line(err)


@pytest.mark.processes
def test_the_package_runs_as_a_module(say):
    words = [sys.executable, "-m", "bert_jax", "--help"]
    assert subprocess.check_output(words, text=True) == say("--help")[1]


def test_a_source_that_yields_nothing(say, tmp_path):
    folder = text_folder(tmp_path / "text", " \n \n")
    code, _, err = build(say, tmp_path, f"books:{folder}")
    assert code == exit_codes.FAILED
    assert "books" in one_line(err)


def test_a_file_that_is_not_utf8(say, tmp_path):
    folder = text_folder(tmp_path / "text", PROSE)
    (folder / "bad.txt").write_bytes(PROSE.encode() + b"caf\xe9 and more\n")
    code, _, err = build(say, tmp_path, f"books:{folder}")
    assert code == exit_codes.FAILED
    assert "bad.txt" in one_line(err)
    assert "UTF-8" in err


def test_a_vocabulary_without_mask(say, tmp_path):
    folder = text_folder(tmp_path / "text", PROSE)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\n")
    code, _, err = build(say, tmp_path, f"books:{folder}")
    assert code == exit_codes.FAILED
    assert "[MASK]" in one_line(err)


@pytest.mark.parametrize("documents", [1, 2])
def test_too_few_documents_for_next_sentences(documents, say, tmp_path):
    folder = text_folder(tmp_path / "text", *[f"{PROSE} Number {i}." for i in range(documents)])
    code, _, _ = build(say, tmp_path, f"books:{folder}")
    assert code == exit_codes.DONE
    config = [word for word in TINY if "vocab_size" not in word]
    code, _, err = say(
        "pretrain", *config, "--config.model.vocab_size=59",
        f"--config.data.store={tmp_path / 'store'}", f"--workdir={tmp_path / 'run'}",
    )  # fmt: skip
    assert code == exit_codes.FAILED
    assert "document" in one_line(err)
    assert "books" in err


def test_a_store_whose_hash_does_not_match(say, tmp_path):
    store = small_store(tmp_path / "store")
    tokens = store.path / "train" / "tokens.npy"
    data = bytearray(tokens.read_bytes())
    data[-3] ^= 1
    tokens.write_bytes(data)
    code, _, err = say(
        "pretrain", *TINY, f"--config.data.store={store.path}", f"--workdir={tmp_path / 'run'}"
    )
    assert code == exit_codes.FAILED
    assert "tokens.npy" in one_line(err)
    assert "sha256" in err


def test_a_flag_may_be_written_with_hyphens(capsys):
    assert cli.main(["pretrain", "--strict-restore", "--cpu-devices=none"]) == exit_codes.USAGE
    assert "flag --cpu_devices" in one_line(capsys.readouterr().err)


def test_what_follows_two_hyphens_is_text(say):
    texts = ["--well-known x", "--a=~/b", "--config=none", "--module=none.py", "-h", "--help"]
    name = "fill"
    _, found = parse(name, cli.COMMANDS[name], ["--model=m", "--top-k=1", "--", *texts])
    assert found == texts
    code, _, err = say(name, "--model=nowhere", "--", "--help")
    assert code == exit_codes.FAILED
    assert "nowhere" in one_line(err)


def test_a_model_larger_than_the_machine_is_refused_before_it_is_made(say, tmp_path):
    store = small_store(tmp_path / "store")
    sizes = ("hidden_size", "intermediate_size")
    code, _, err = say(
        "pretrain", *TINY, *(f"--config.model.{size}={2**17}" for size in sizes),
        f"--config.data.store={store.path}", f"--workdir={tmp_path / 'run'}",
    )  # fmt: skip
    assert code == exit_codes.FAILED
    assert "parameters and optimizer state need" in one_line(err)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["status", "--workdir=run", "--html={}"], "page"),
        (["data", "inspect", "--store=store", "--html={}"], "page"),
        (["compile", "--config=tiny", "--topology=v5e-16", "--html={}"], "page"),
        (["data", "batch", "--workdir=run", "--step=0", "--out={}"], "batch"),
    ],
)
def test_what_others_wrote_is_not_written_over(words, kind, say, tmp_path):
    foreign = tmp_path / "notes"
    foreign.write_text("<!doctype html>mine")
    for path, said in (
        (foreign, f"exists and is not a {kind} of bert-jax; choose another name"),
        (Path("/dev/null"), "a device, a pipe or a socket; choose another name"),
        (tmp_path, "a folder; give the name of a file"),
        (tmp_path / "no/file", "no such folder"),
    ):
        code, _, err = say(*(word.format(path) for word in words))
        assert code == exit_codes.FAILED
        assert said in one_line(err)
    assert foreign.read_text() == "<!doctype html>mine"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (OSError(28, "No space left on device", "a/b"), 45, "error: a/b: No space left on device;"),
        (OSError(28, "No space left on device"), 45, "error: No space left on device;"),
        (PermissionError(13, "Permission denied", "a/b"), 1, "error: a/b: Permission denied"),
        (OSError(36, "File name too long", "a" * 3000), 1, f"error: {'a' * 60}…{'a' * 60}: File"),
        (MemoryError("Unable to\nallocate"), 1, "error: out of memory (Unable to allocate)"),
        (
            type("JaxRuntimeError", (RuntimeError,), {})("RESOURCE_EXHAUSTED: Out of memory"),
            1,
            "error: out of memory (RESOURCE_EXHAUSTED: Out of memory); use a smaller batch or "
            "model, more micro_batches (--config.phases[0].micro_batches=2), or",
        ),
        (errors.UserError("a \x1b[31mname"), 1, "error: a \ufffd[31mname"),
    ],
)
def test_what_the_machine_lacks_is_one_line(error, code, line, say, monkeypatch):
    def fail(*_):
        raise error

    broken = dataclasses.replace(cli.COMMANDS["data verify"], run=fail)
    monkeypatch.setitem(cli.COMMANDS, "data verify", broken)
    assert say("data", "verify", "--store=x")[0] == code
    _, _, err = say("data", "verify", "--store=x")
    assert err.startswith(line)
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", others_nightly([signal.SIGTERM, signal.SIGHUP], keep=[signal.SIGTERM])
)
@pytest.mark.processes
def test_stopping_and_going_on_by_signal(number, tmp_path):
    """Saved, code 42; the same command finishes. All the while nobody reads what it prints, and
    the disk under its errors is full."""
    store = small_store(tmp_path / "store")
    words = [w for w in TINY if "steps" not in w] + ["--config.phases[0].steps=100000"]
    command = [
        sys.executable, "-c", "import sys; from bert_jax.cli import main; sys.exit(main())",
        "pretrain", *words, f"--config.data.store={store.path}", f"--workdir={tmp_path / 'run'}",
    ]  # fmt: skip
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(with_signals(command), stdout=subprocess.PIPE, stderr=full)
    process.stdout.close()
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 300
    while not (metrics.exists() and '"kind": "train"' in metrics.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(number)
    assert process.wait(timeout=120) == exit_codes.STOPPED
    (step,) = [int(p.name) for p in (tmp_path / "run" / "checkpoints").iterdir()]
    final = ["--config.phases[0].steps=" + str(step + 10) if "steps" in w else w for w in command]
    assert subprocess.run(final, check=False, timeout=300).returncode == exit_codes.DONE
    assert read_records(epath.Path(metrics), "train")[-1]["step"] == step + 10


def test_a_link_to_a_run_is_the_same_run(say, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    code, _, err = say("status", f"--workdir={tmp_path}/run", f"--workdir={tmp_path}/link")
    assert code == exit_codes.FAILED
    assert "link: the same as --workdir=" in one_line(err)
