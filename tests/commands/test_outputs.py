"""No command writes over what it did not write, into a device, or into what it reads.

The flags that name outputs and inputs are those of the parsers, so that a new one is tried, too.
"""

import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from absl import flags
from gcs_emulator import Emulator, emulated

from bert_jax import cli, exit_codes
from bert_jax.commands import paths
from bert_jax.commands.command import define_flags
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.errors import StorageError, UserError
from bert_jax.storage.outputs import OutputKind, check_output, write_output

MINE = b"mine, and of nobody else"
BACKENDS = ("tpu", "gke", "slurm", "sky")  # that write the files of a job


@functools.cache
def parsed(verb: str) -> flags.FlagValues:
    values = flags.FlagValues()
    define_flags(cli.COMMANDS[verb], values, [])
    return values


OUTPUTS = [(verb, flag) for verb in cli.COMMANDS for flag in paths.outputs_of(parsed(verb))]


def a_file(folder: Path) -> Path:
    (folder / "notes").write_bytes(MINE)
    return folder / "notes"


def a_folder(folder: Path) -> Path:
    # Names that our own folders have, too.
    for name in ("settings.json", "results.json", "run.sh", "config.json", "README.md"):
        (folder / "thesis").mkdir(exist_ok=True)
        (folder / "thesis" / name).write_bytes(MINE)
    return folder / "thesis"


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def a_device(folder: Path) -> Path:
    return Path("/dev/null")


def link(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    def linked(folder: Path) -> Path:
        (folder / "link").symlink_to(make(folder))
        return folder / "link"

    return linked


OTHERS = [a_file, a_folder, a_pipe, a_device]
HOSTILE = {make.__name__: make for make in OTHERS}
HOSTILE |= {f"a link to {make.__name__}": link(make) for make in OTHERS}


def tree(folder: Path) -> dict[str, object]:
    """Everything below a folder: bytes, targets of links, kinds of what is neither."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = path.read_bytes() if path.is_file() else path.stat().st_mode
    return found


def refused(words: list[str], path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that refuses a path."""
    code = cli.main(words)
    said = capsys.readouterr().err
    assert code == exit_codes.FAILED, (words, code, said)
    (line,) = said.splitlines()
    assert line.startswith((f"error: {path}: ", f"error: {path.resolve()}: ")), (words, said)
    return line


def test_every_flag_of_a_path_to_write_is_known() -> None:
    """Those of today, by hand: a flag that is defined otherwise is missing from the parsers."""
    launchers = [(f"launch {name} run", "out") for name in BACKENDS]
    assert sorted(OUTPUTS) == sorted([
        ("ablate run", "workdir"), ("compile", "html"), ("convert export", "out"),
        ("convert import", "out"), ("data batch", "out"), ("data build", "out"),
        ("data build", "work"), ("data export-examples", "out"), ("data inspect", "html"),
        ("data tokenizer", "out"), ("demo", "workdir"), ("embed", "out"),
        ("evaluate", "per_example"), ("finetune", "workdir"),
        ("look attention", "out"), ("look neighbours", "out"), ("look senses", "out"),
        ("predict", "nbest"),
        ("predict", "null_odds"), ("predict", "out"), ("pretrain", "workdir"),
        ("search", "hard_negatives"), ("status", "html"), *launchers,
    ])  # fmt: skip
    named = {"out", "html", "workdir", "store", "model", "input", "tokenizer", "from"}
    for verb in cli.COMMANDS:
        values = parsed(verb)
        algorithm = {"model"} if verb == "data tokenizer" else set()
        for flag in named.intersection(values) - algorithm:
            assert values[flag] in paths._outputs or values[flag] in paths._inputs, (verb, flag)


@pytest.mark.parametrize(("verb", "flag"), OUTPUTS)
def test_what_others_have_is_refused_untouched(verb, flag, tmp_path, capsys) -> None:
    for number, make in enumerate(HOSTILE.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = make(folder)
        before = tree(folder)
        more = ["--seeds=2"] if verb == "finetune" and number % 2 else []
        refused([*verb.split(), f"--{flag}={path}", *more], path, capsys)
        assert tree(folder) == before


def inputs(verb: str, path: str) -> Iterator[list[str]]:
    """The words by which a command reads a path, one by one."""
    values = parsed(verb)
    for name in values:
        # A module is a file of Python, which has no mark of ours: it is never replaced.
        if values[name] in paths._inputs and name not in ("data_dir", "module"):
            yield [f"--{name}={'books:' if name in ('source', 'data') else ''}{path}"]
    if "config" in values:
        config, keys = "tiny", ("data.store", "init", "task.data", "task.held_out")
        if verb == "ablate run":
            config, keys = "ablations/nsp", ("store",)
        for key in keys:
            yield [f"--config={config}", f"--config.{key}={path}"]


@pytest.mark.parametrize(("verb", "flag"), OUTPUTS)
def test_nothing_is_written_into_an_input_nor_over_it(verb, flag, tmp_path, capsys) -> None:
    source = tmp_path / "text"
    (source / "sub").mkdir(parents=True)
    (source / "a.txt").touch()  # empty, so that it is free otherwise
    (tmp_path / "link").symlink_to(source)
    before = tree(tmp_path)
    seen = 0
    for words in inputs(verb, str(source)):
        for path in (source / "new", source / "sub", source / "sub/new", tmp_path / "link/new"):
            line = refused([*verb.split(), *words, f"--{flag}={path}"], path, capsys)
            is_there = path == source / "sub"
            assert f"is in the input {source}" in line or (is_there and "is a folder" in line)
        for path in (source, tmp_path / "link", tmp_path):
            refused([*verb.split(), *words, f"--{flag}={path}"], path, capsys)
        seen += 1
    for words in inputs(verb, str(source / "a.txt")):
        refused([*verb.split(), *words, f"--{flag}={source / 'a.txt'}"], source / "a.txt", capsys)
    assert seen or verb in {f"launch {name} run" for name in BACKENDS}
    assert tree(tmp_path) == before


def test_text_that_wildcards_name_is_an_input_and_its_neighbours_are_not(tmp_path, capsys) -> None:
    for name in ("part1", "part2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("A line.\n")
    words = ["data", "tokenizer", f"--source=lines:{tmp_path}/part*,lines=1", "--vocab_size=100"]
    line = refused([*words, f"--out={tmp_path}/part2/t.json"], tmp_path / "part2/t.json", capsys)
    assert "is in the input" in line
    assert cli.main([*words, f"--out={tmp_path}/t.json"]) == exit_codes.DONE


@pytest.mark.parametrize("name", ["gs://b/page/", "page/", "no/page/"])
def test_a_name_that_ends_with_a_slash_is_no_file(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"^{name}: names a folder; give the name of a file"):
        check_output(name, OutputKind("page", None), offline=True)
    check_output("folder/", OutputKind("export", None, is_folder=True))


def test_two_outputs_are_two_files(tmp_path, capsys) -> None:
    same = tmp_path / "sub/../a.json"
    (tmp_path / "sub").mkdir()
    line = refused(["predict", f"--out={tmp_path}/a.json", f"--nbest={same}"], same, capsys)
    assert "overlaps the output" in line


def test_only_a_format_without_a_mark_has_overwrite() -> None:
    with_overwrite = {verb for verb in cli.COMMANDS if "overwrite" in parsed(verb)}
    assert with_overwrite == {"data tokenizer", "embed", "predict", "search"}


UNMARKED = OutputKind("table", None)


def test_overwrite_replaces_a_file_and_nothing_else(tmp_path) -> None:
    notes, folder = a_file(tmp_path), a_folder(tmp_path)
    with pytest.raises(UserError, match="says who wrote it"):
        write_output(notes, b"new", UNMARKED)
    write_output(notes, MINE, UNMARKED)  # nothing would be lost
    (tmp_path / "link").symlink_to(notes)
    write_output(tmp_path / "link", b"new", UNMARKED, overwrite=True)
    assert (notes.read_bytes(), (tmp_path / "link").is_symlink()) == (b"new", True)
    for path in (folder, a_pipe(tmp_path), Path("/dev/null")):
        with pytest.raises(UserError):
            write_output(path, b"new", UNMARKED, overwrite=True)
    with pytest.raises(UserError, match="is the input"):
        write_output(notes, b"new", UNMARKED, inputs=[tmp_path / "link"], overwrite=True)
    os.link(notes, tmp_path / "second")
    with pytest.raises(UserError, match="is the input"):
        write_output(tmp_path / "second", b"", UNMARKED, inputs=[notes], overwrite=True)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    with emulated(monkeypatch, "bucket") as emulator:
        yield emulator


def test_an_object_of_others_in_a_bucket_is_kept(server: Emulator, capsys) -> None:
    page = "status", "--workdir=nowhere", "--html=gs://bucket/{}"
    marked = OutputKind("page", lambda path: path.read_bytes().startswith(b"ours"))
    for name, data in (("a", MINE), ("b", b""), ("c", b"ours"), ("d/e", MINE)):
        server.write("bucket", name, data)
    at = "gs://bucket/{}".format
    with pytest.raises(UserError, match="exists and is not a page of bert-jax"):
        write_output(at("a"), b"new", marked)
    assert cli.main([word.format("a") for word in page]) == exit_codes.FAILED
    assert "gs://bucket/a: exists and is not a page of bert-jax" in capsys.readouterr().err
    for name in ("b", "c", "new"):
        write_output(at(name), b"new", marked)
        assert server.read("bucket", name) == b"new"
    assert server.read("bucket", "a") == MINE
    folder = OutputKind("run", lambda path: False, is_folder=True)
    with pytest.raises(UserError, match="exists and is not a run of bert-jax"):
        check_output(at("d"), folder)
    check_output(at("nothing"), folder)
    with pytest.raises(UserError, match="is in the input"):
        check_output(at("d/f"), folder, inputs=[at("d/")])
    check_output(at("d2"), folder, inputs=[at("d")])


def test_a_working_folder_of_others_in_a_bucket_is_kept(server: Emulator, tmp_path, capsys) -> None:
    (tmp_path / "a.txt").write_text("A line.\n")
    Tokenizer.from_vocab([*SPECIAL_TOKENS, "a"]).save(tmp_path / "tokenizer.json")
    words = ["data", "build", f"--source=lines:{tmp_path}/a.txt,lines=1", "--work=gs://bucket/w"]
    words += [f"--tokenizer={tmp_path}/tokenizer.json", f"--out={tmp_path}/store", "--shard=1/1"]
    for name, data in (("settings.json", b'{"theirs": 1}'), ("thesis.txt", MINE)):
        server.write("bucket", f"w/{name}", data)
        assert cli.main(words) == exit_codes.FAILED
        assert "gs://bucket/w: exists and is not a working folder" in capsys.readouterr().err
        assert server.read("bucket", f"w/{name}") == data
        server.delete("bucket", f"w/{name}")


def test_a_disk_that_takes_nothing_is_one_line(tmp_path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bert_jax.storage.atomic.write_bytes", full)
    with pytest.raises(StorageError, match=r"a: cannot be written \(No space left on device\)"):
        write_output(tmp_path / "a", b"new", UNMARKED)


READERS = [
    (verb, flag, name)
    for verb, flag in OUTPUTS
    for name in parsed(verb)
    if parsed(verb)[name] in paths._inputs and name in ("workdir", "model", "from", "init")
]


@pytest.mark.parametrize(("verb", "flag", "name"), READERS)
def test_nothing_is_written_into_what_a_run_has_read(verb, flag, name, tmp_path, capsys) -> None:
    (tmp_path / "run").mkdir()
    for key in ("store", "init", "data"):
        (tmp_path / key).mkdir()
    config = {"data": {"store": f"{tmp_path}/store"}, "init": f"{tmp_path}/init@5"}
    config["task"] = {"data": f"{tmp_path}/data"}
    (tmp_path / "run/config.json").write_text(json.dumps({"config": config}))
    before = tree(tmp_path)
    for key in ("store", "init", "data"):
        path = tmp_path / key / "new"
        line = refused(
            [*verb.split(), f"--{name}={tmp_path}/run", f"--{flag}={path}"], path, capsys
        )
        assert f"is in the input {tmp_path}/{key}" in line
    assert tree(tmp_path) == before


@pytest.mark.parametrize("out", ["store/new", "store", "run"])
def test_a_rendered_job_is_apart_from_what_it_reads_and_writes(out, tmp_path, capsys) -> None:
    (tmp_path / "store").mkdir()
    job = ["launch", "slurm", "run", "--name=b1", "--nodes=1", "--dry_run"]
    trainer = ["pretrain", "--config=tiny", f"--config.data.store={tmp_path}/store"]
    path = tmp_path / out
    refused([*job, f"--out={path}", *trainer, f"--workdir={tmp_path}/run"], path, capsys)
    if out != "run":
        refused([*job, *trainer, f"--workdir={path}"], path, capsys)
    assert list(tree(tmp_path)) == ["store"]


@pytest.mark.parametrize("name", [".", "..", "./", "sub/..", "", "sub/sub/.."])
@pytest.mark.parametrize(
    "verb", ["data build", "data export-examples", "convert export", "convert import"]
)
def test_a_folder_that_appears_by_a_rename_has_a_name(
    verb, name, tmp_path, monkeypatch, capsys
) -> None:
    (tmp_path / "here/sub/sub").mkdir(parents=True)
    (tmp_path / "text.txt").write_text("A line.\n")
    monkeypatch.chdir(tmp_path / "here/sub" if name == ".." else tmp_path / "here")
    before, path = tree(tmp_path), name or tmp_path / "here"
    assert cli.main([*verb.split(), f"--out={path}"]) == exit_codes.FAILED
    assert f"error: {path}: this folder would be replaced" in capsys.readouterr().err
    assert tree(tmp_path) == before
