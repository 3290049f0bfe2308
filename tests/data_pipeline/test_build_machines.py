"""Stores built by several machines: --shard, --merge, --work, and kills at any time."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import prepared_dataset
import pytest
from gcs_emulator import Emulator
from row_files import Rows, write_arrow, write_csv, write_jsonl, write_parquet

from bert_jax import cli
from bert_jax.data_pipeline.sources import cutting
from bert_jax.data_pipeline.store_build import digests, units
from bert_jax.data_pipeline.store_build.shard_files import SUMMARY
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.storage.versions import HashedFile

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, ".", *LETTERS, *(f"##{c}" for c in LETTERS)])
DOCUMENTS = 600
SHARD_BYTES = 900


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((cutting, "RANGE_BYTES"), (units, "_UNIT_BYTES")):
        monkeypatch.setattr(module, name, SHARD_BYTES)


def write_lines(folder: Path, texts: list[str]) -> None:
    folder.mkdir()
    (folder / "a.txt").write_text("\n\n".join(texts))
    (folder / "b.txt").write_text("\n\n".join(f"b {c}." for c in LETTERS))


def write_rows(write: Callable[[Path, Rows], None], name: str) -> Callable[[Path, list[str]], None]:
    def write_both(folder: Path, texts: list[str]) -> None:
        folder.mkdir()
        write(folder / f"a.{name}", [{"text": text} for text in texts])
        write(folder / f"b.{name}", [{"text": f"b {c}."} for c in LETTERS])

    return write_both


def write_prepared(folder: Path, texts: list[str]) -> None:
    rows = [{"text": text} for text in texts]
    prepared_dataset.write(folder / "1.0.0", {"train": [rows[:7], rows[7:]]})


WRITERS: dict[str, Callable[[Path, list[str]], None]] = {
    "lines": write_lines,
    "jsonl": write_rows(write_jsonl, "jsonl"),
    "csv": write_rows(write_csv, "csv"),
    "parquet": write_rows(write_parquet, "parquet"),
    "arrow": write_rows(write_arrow, "arrow"),
    "tfds": write_prepared,
}
QUICK = ("lines", "parquet")
every_kind = pytest.mark.parametrize(
    "corpus",
    [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in WRITERS],
    indirect=True,
)


@pytest.fixture
def corpus(tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    """The flags of a corpus: one file of some ten shards and one of a single shard."""
    kind, folder = getattr(request, "param", "lines"), tmp_path / "text"
    texts = [f"doc {LETTERS[n % 26]}{LETTERS[n // 26]}.\nmore {n}." for n in range(DOCUMENTS)]
    WRITERS[kind](folder, texts)
    TOKENIZER.save(tmp_path / "tokenizer.json")
    return [f"--source={kind}:{folder}", f"--tokenizer={tmp_path}/tokenizer.json", "--workers=1"]


def build(corpus: list[str], out: Path, *flags: str) -> int:
    return cli.main(["data", "build", *corpus, f"--out={out}", *flags])


def contents(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


@pytest.fixture
def clean(corpus: list[str], tmp_path: Path) -> dict[str, str]:
    """The store of one process."""
    assert build(corpus, tmp_path / "clean") == 0
    return contents(tmp_path / "clean")


def error(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    return line


@every_kind
def test_seven_shards_in_two_folders_merge_to_the_same_bytes(
    corpus: list[str], clean: dict[str, str], tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for number in (5, 1, 7, 3, 3, 2, 6, 4):  # in any order, one of them twice
        work = one if number < 4 else two
        assert build(corpus, tmp_path / "store", f"--shard={number}/7", f"--work={work}") == 0
    if not corpus[0].startswith("--source=csv"):  # which is one range a file
        assert len(list(one.glob("shards/*"))) + len(list(two.glob("shards/*"))) > 10
    assert build(corpus, tmp_path / "store", "--merge", f"--work={one}", f"--work={two}") == 0
    assert contents(tmp_path / "store") == clean
    assert {path.name for path in tmp_path.iterdir()} >= {"one", "two"}
    assert not (tmp_path / ".store.building").exists()


@pytest.mark.slow
@pytest.mark.processes
@every_kind
def test_four_workers_give_the_same_bytes(
    corpus: list[str], clean: dict[str, str], tmp_path: Path
) -> None:
    assert build([*corpus[:2], "--workers=4"], tmp_path / "store") == 0
    assert contents(tmp_path / "store") == clean


def test_shards_are_kept_next_to_the_store_by_default(
    corpus: list[str], clean: dict[str, str], tmp_path: Path
) -> None:
    for number in (1, 2):
        assert build(corpus, tmp_path / "store", f"--shard={number}/2") == 0
    assert build(corpus, tmp_path / "store", "--merge") == 0
    assert contents(tmp_path / "store") == clean
    assert not (tmp_path / ".store.building").exists()
    assert build(corpus, tmp_path / "store", "--merge") == 0  # it is there already


def test_a_merge_names_the_shards_that_are_missing(
    corpus: list[str], clean: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    assert build(corpus, tmp_path / "store", "--merge") == 1
    assert ".store.building: no such folder; give the --work that" in error(capsys)
    work = tmp_path / "wrok"
    assert build(corpus, tmp_path / "store", "--merge", f"--work={work}") == 1
    assert f"{work}: no such folder; give the --work that --shard filled" in error(capsys)
    assert sorted(tmp_path.iterdir()) == before
    work.mkdir()
    assert build(corpus, tmp_path / "store", "--merge", f"--work={work}") == 1
    assert f"{work}: no shards there" in error(capsys)
    assert not [*work.iterdir()]
    assert sorted(tmp_path.iterdir()) == [*before, work]
    for number in (1, 3, 4):
        assert build(corpus, tmp_path / "store", f"--shard={number}/5") == 0
    capsys.readouterr()
    kept = contents(tmp_path / ".store.building")
    assert build(corpus, tmp_path / "store", "--shard=2/4") == 1
    assert "with --shard=…/5, not …/4; give --shard=I/5" in error(capsys)
    assert contents(tmp_path / ".store.building") == kept
    assert build(corpus, tmp_path / "store", "--merge") == 1
    line = error(capsys)
    assert "shards are missing, of --shard=2/5, 5/5; the first is of" in line
    assert f"{tmp_path}/text/a.txt from 9" in line
    assert build(corpus, tmp_path / "store") == 0  # without --merge they are built
    assert contents(tmp_path / "store") == clean


def test_a_build_with_other_settings_leaves_the_shards_of_others(
    corpus: list[str], clean: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(corpus, tmp_path / "store", "--shard=1/2") == 0
    kept = contents(tmp_path / ".store.building")
    capsys.readouterr()
    other = [f"{corpus[0]},lang=de", *corpus[1:]]
    assert build(other, tmp_path / "store") == 1
    assert ".store.building: its shards were built from other text or settings" in error(capsys)
    assert contents(tmp_path / ".store.building").items() >= kept.items()
    assert build(corpus, tmp_path / "store", "--shard=2/2") == 0
    assert build(corpus, tmp_path / "store", "--merge") == 0
    assert contents(tmp_path / "store") == clean


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--shard=17/16", "--shard=17/16: the first number must be between 1 and 16"),
        ("--shard=0/16", "--shard=0/16: the first number must be between 1 and 16"),
        ("--shard=3", "--shard=3: must be I/N, such as 17/96"),
        ("--shard=1/2 --merge", "--shard and --merge exclude each other"),
        ("--shard=1/2 --held_out_share=0.4", "--held_out_share is decided at the merge; give it"),
        ("--cased", "says it: leave it out"),
        ("--data_dir=nowhere", "--data_dir is for sources tfds:…, and there is none; leave it out"),
        ("--allow_partial", "--allow_partial is for sources hf:…, and there is none; leave it out"),
    ],
)
def test_flags_of_a_build_that_do_not_fit(
    corpus: list[str],
    tmp_path: Path,
    flag: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert build(corpus, tmp_path / "store", *flag.split()) == 2
    assert message in capsys.readouterr().err.splitlines()[0]
    assert not (tmp_path / ".store.building").exists()


def test_files_that_did_not_change_are_not_digested_again(
    corpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour_ago = time.time() - 3600
    for path in (tmp_path / "text").iterdir():
        os.utime(path, (hour_ago, hour_ago))
    time.sleep(0.05)  # more than a tick of the kernel's clock
    read: list[str] = []

    def hashed(path: Path) -> HashedFile:
        read.append(path.name)
        return original(path)

    original = digests.hashed
    monkeypatch.setattr(digests, "hashed", hashed)
    assert build(corpus, tmp_path / "store", "--shard=1/2") == 0
    assert sorted(read) == ["a.txt", "b.txt"]
    assert build(corpus, tmp_path / "store", "--shard=2/2") == 0
    assert len(read) == 2
    os.utime(tmp_path / "text/b.txt", (hour_ago, hour_ago + 1))
    assert build(corpus, tmp_path / "store", "--merge") == 0
    assert read[2:] == ["b.txt"]


def other_tokenizer(tmp_path: Path, corpus: list[str]) -> list[str]:
    Tokenizer.from_vocab([*SPECIAL_TOKENS, "a"]).save(tmp_path / "other.json")
    return [corpus[0], f"--tokenizer={tmp_path}/other.json", corpus[2]]


def other_text(tmp_path: Path, corpus: list[str]) -> list[str]:
    (tmp_path / "text/b.txt").write_text("Changed.\n\nText.\n")
    return corpus


def other_name(tmp_path: Path, corpus: list[str]) -> list[str]:
    return [f"{corpus[0]},name=other", *corpus[1:]]


def other_language(tmp_path: Path, corpus: list[str]) -> list[str]:
    return [f"{corpus[0]},lang=de", *corpus[1:]]


def another_file(tmp_path: Path, corpus: list[str]) -> list[str]:
    (tmp_path / "text/c.txt").write_text("More.\n\nText.\n")
    return corpus


def other_share(tmp_path: Path, corpus: list[str]) -> list[str]:
    return [*corpus, "--held_out_share=0.2"]


CHANGES = [
    (other_tokenizer, "the tokenizer"),
    (other_text, "text of source 'lines'"),
    (another_file, "files of source 'lines' (2, now 3)"),
    (other_name, "the names of the sources (lines, now other)"),
    (other_language, "language of source 'lines' (en, now de)"),
    (other_share, "the held_out_share (default, now 0.2)"),
]


@pytest.mark.parametrize(("change", "which"), CHANGES, ids=[c.__name__ for c, _ in CHANGES])
def test_what_has_changed_is_said(
    corpus: list[str],
    tmp_path: Path,
    change: Callable[[Path, list[str]], list[str]],
    which: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert build(corpus, tmp_path / "store") == 0
    assert build(corpus, tmp_path / "other", "--shard=1/2") == 0
    changed = change(tmp_path, corpus)
    capsys.readouterr()
    assert build(changed, tmp_path / "store") == 1
    assert which in error(capsys)
    if change is not other_share:  # which only a merge needs
        for flag in ("--shard=2/2", "--merge"):
            assert build(changed, tmp_path / "other", flag) == 1
            line = error(capsys)
            assert "shards were built from other text or settings" in line
            assert which in line


def test_a_store_is_built_in_a_local_folder(
    corpus: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert build(corpus, "gs://bucket/store") == 1  # type: ignore[arg-type]
    assert "gs://bucket/store: write to a local path, then copy it" in error(capsys)
    assert sorted(tmp_path.iterdir()) == before


def test_another_column_of_rows_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"a": f"Some words {n}.", "b": f"Other words {n}."} for n in range(9)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    Tokenizer.from_vocab([*SPECIAL_TOKENS, "a"]).save(tmp_path / "tokenizer.json")
    flags = [f"--tokenizer={tmp_path}/tokenizer.json", "--workers=1"]
    one, other = ([f"--source=jsonl:{tmp_path}/rows.jsonl,text={name}", *flags] for name in "ab")
    assert build(one, tmp_path / "store") == 0
    assert build(one, tmp_path / "shards", "--shard=1/1") == 0
    capsys.readouterr()
    for out, words in (("store", []), ("shards", ["--shard=1/1"]), ("shards", ["--merge"])):
        assert build(other, tmp_path / out, *words) == 1
        assert "text= of source 'jsonl' (a, now b)" in error(capsys)


def test_shards_in_a_bucket(
    corpus: list[str],
    clean: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with bucket(monkeypatch) as server:
        for number in (2, 1, 2):
            machine = tmp_path / f"machine{number}"
            flags = (f"--shard={number}/2", "--work=gs://bucket/work")
            assert build(corpus, machine / "store", *flags) == 0
            assert not list((machine / ".store.building/shards").iterdir())
        names = [name for name in server.names("bucket") if name.endswith("/tokens")]
        assert len(names) > 10
        damaged, lost = names[0], names[1].replace("tokens", SUMMARY)
        server.write("bucket", damaged, b"x" + server.read("bucket", damaged)[1:])
        server.delete("bucket", lost)
        capsys.readouterr()
        assert build(corpus, tmp_path / "store", "--merge", "--work=gs://bucket/work") == 1
        said = capsys.readouterr().err
        assert "2 of 1" in said
        for flags in (
            ["--shard=1/3", "--work=gs://bucket/work"],
            ["--merge", "--work=gs://bucket/wrok"],
        ):
            assert build(corpus, tmp_path / "new/store", *flags) == 1
            assert ("not …/3" if "wrok" not in flags[1] else "no shards there") in error(capsys)
        assert not (tmp_path / "new").exists()
        assert "shards are missing, of --shard=" in said
        assert "the checksum of tokens does not match" in said
        assert build(corpus, tmp_path / "store", "--work=gs://bucket/work") == 0
        assert contents(tmp_path / "store") == clean


@every_kind
def test_rows_in_a_bucket_give_the_same_arrays(
    corpus: list[str], clean: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    with bucket(monkeypatch) as server:
        upload(server, tmp_path / "text")
        source = corpus[0].replace(str(tmp_path), "gs://bucket")
        assert build([source, *corpus[1:]], tmp_path / "store") == 0
        assert arrays(contents(tmp_path / "store")) == arrays(clean)
        before = server.count("GET", "download")
        assert build([source, *corpus[1:]], tmp_path / "store") == 0  # it is there already
        is_copied = any(f"--source={kind}:" in source for kind in ("arrow", "tfds"))
        assert not is_copied or server.count("GET", "download") == before


def test_text_in_a_bucket_gives_the_same_arrays(
    corpus: list[str], clean: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bucket(monkeypatch) as server:
        upload(server, tmp_path / "text")
        server.write("bucket", "text/.hidden", b"x")
        server.write("bucket", "text/a.csv", b"x")
        server.write("bucket", "text/empty.txt", b"")
        flags = ["--source=lines:gs://bucket/text", *corpus[1:]]
        assert build(flags, tmp_path / "store") == 0
    assert arrays(contents(tmp_path / "store")) == arrays(clean)
    left_out = json.loads((tmp_path / "store/manifest.json").read_text())["sources"][0]["left_out"]
    assert {reason: entry["first"] for reason, entry in left_out.items()} == {
        "hidden": [".hidden"],
        "empty": ["empty.txt"],
        "of another kind (.csv)": ["a.csv"],
    }


def test_buckets_without_permission(
    corpus: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = ["--source=lines:gs://secret/text", *corpus[1:]]
    with bucket(monkeypatch) as server:
        server.faults.denied = frozenset({"secret"})
        for flags in (
            [*text, f"--out={tmp_path}/a"],
            [*corpus, f"--out={tmp_path}/b", "--work=gs://secret/work", "--shard=1/2"],
            [*corpus, f"--out={tmp_path}/c", "--work=gs://secret/work", "--merge"],
        ):
            assert cli.main(["data", "build", *flags]) == 1
            said = error(capsys)
            assert "gs://secret/" in said
            assert "(no permission); give this machine's account access" in said


def upload(server: Emulator, folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            name = f"{folder.name}/{path.relative_to(folder).as_posix()}"
            server.write("bucket", name, path.read_bytes())


def arrays(store: dict[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in store.items() if name.endswith(".npy")}


def bucket(monkeypatch: pytest.MonkeyPatch) -> Emulator:
    import fsspec.config

    monkeypatch.setitem(fsspec.config.conf, "gcs", {"token": "anon"})
    emulator = Emulator("bucket")
    for name, value in emulator.env.items():
        monkeypatch.setenv(name, value)
    return emulator


COMMAND = """
import sys
from bert_jax import cli
from bert_jax.data_pipeline.store_build import digests, units
from bert_jax.data_pipeline.sources import cutting

if __name__ == "__main__":
    units._UNIT_BYTES = cutting.RANGE_BYTES = 30_000
    code = cli.main(["data", "build", *sys.argv[1:]])
    assert "jax" not in sys.modules
    sys.exit(code)
"""


def finished(flags: list[str], folder: Path, after: float) -> bool:
    """Runs the command in a session of its own and kills all of it after a time in seconds; returns
    whether it was done."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "build.py", *flags],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=after)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return False
    assert process.returncode == 0, said
    return True


@pytest.mark.processes
def test_a_build_imports_no_jax(corpus: list[str], tmp_path: Path) -> None:
    """Its processes have no use for it. What finds a tokenizer on the hub is imported, too."""
    (tmp_path / "build.py").write_text(COMMAND)
    assert finished([*corpus[:2], f"--out={tmp_path}/store"], tmp_path, after=300)


@pytest.mark.slow
@pytest.mark.processes
def test_machines_that_are_killed_and_start_again_give_the_same_bytes(
    corpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"doc {LETTERS[n % 26]}{LETTERS[n // 26 % 26]}.\nmore {n}." for n in range(30_000)]
    (tmp_path / "text/a.txt").write_text("\n\n".join(texts))
    for module, name in ((cutting, "RANGE_BYTES"), (units, "_UNIT_BYTES")):
        monkeypatch.setattr(module, name, 30_000)
    assert build(corpus, tmp_path / "clean") == 0
    (tmp_path / "build.py").write_text(COMMAND)
    flags = [*corpus[:2], "--workers=2", f"--out={tmp_path}/store"]
    kills = 0
    for step in (["--shard=2/3"], ["--shard=1/3"], ["--shard=3/3"], ["--merge"]):
        after = 0.4  # less than the command's imports take
        while not finished([*flags, *step], tmp_path, after):
            kills += 1
            after *= 1.3
    assert kills >= 4
    assert contents(tmp_path / "store") == contents(tmp_path / "clean")
