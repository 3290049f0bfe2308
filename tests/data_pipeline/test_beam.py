"""`data build --runner=beam`: the same store from a pipeline of Apache Beam.

BERT_JAX_BEAM names a folder with Beam, which `make .venv/beam` installs: Beam needs older releases
of some packages than the other tests.
"""

import dataclasses
import json
import os
import pickle
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gcs_emulator import Emulator
from rows import without_users_rows
from users_modules import SUBTITLES, write

from bert_jax import cli
from bert_jax.data_pipeline.sources import cutting, find, parse_source
from bert_jax.data_pipeline.store_build import beam, units
from bert_jax.data_pipeline.store_build.digests import FileDigests
from bert_jax.data_pipeline.store_build.shard import build_shard
from bert_jax.data_pipeline.store_build.shard_files import Unit
from bert_jax.data_pipeline.store_build.worker_package import write_package
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.storage.digest import file_digest

PACKAGES = os.environ.get("BERT_JAX_BEAM", "")
HERE = Path(__file__).parents[2]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, ".", *LETTERS, *(f"##{c}" for c in LETTERS)])
SHARD_BYTES = 6_000
TWO_PROCESSES = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
COMMAND = f"""
import sys
from bert_jax import cli
from bert_jax.data_pipeline.store_build import units
from bert_jax.data_pipeline.sources import cutting

if __name__ == "__main__":
    units._UNIT_BYTES = cutting.RANGE_BYTES = {SHARD_BYTES}
    code = cli.main(["data", "build", *sys.argv[1:]])
    assert "jax" not in sys.modules
    sys.exit(code)
"""

needs_beam = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.skipif(
        not (Path(PACKAGES) / "apache_beam").is_dir(),
        reason="BERT_JAX_BEAM names no folder with Apache Beam",
    ),
]


def with_beam(test: Any) -> Any:
    for mark in needs_beam:
        test = mark(test)
    return test


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The flags of a corpus of some ten shards."""
    for module, name in ((cutting, "RANGE_BYTES"), (units, "_UNIT_BYTES")):
        monkeypatch.setattr(module, name, SHARD_BYTES)
    rows = [{"text": f"doc {LETTERS[n % 26]}{LETTERS[n // 26 % 26]}.\nmore."} for n in range(2_000)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    TOKENIZER.save(tmp_path / "tokenizer.json")
    (tmp_path / "build.py").write_text(COMMAND)
    return [f"--source=jsonl:{tmp_path}/rows.jsonl", f"--tokenizer={tmp_path}/tokenizer.json"]


def start(folder: Path, *flags: str, **env: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "build.py", *flags],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{PACKAGES}:{HERE}", **env},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def built(folder: Path, *flags: str, **env: str) -> tuple[int, str]:
    """Runs the command; returns its exit code and the line of its error, or all that it said."""
    process = start(folder, *flags, **env)
    _, said = process.communicate(timeout=300)
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    return process.returncode, errors[0] if len(errors) == 1 else said


def clean(corpus: list[str], folder: Path) -> dict[str, str]:
    """The store of one process."""
    assert cli.main(["data", "build", *corpus, f"--out={folder}/clean", "--workers=1"]) == 0
    return contents(folder / "clean")


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): file_digest(path) for path in files}


def arrays(store: dict[str, str]) -> dict[str, str]:
    """Without the manifest, which has the digest that the bucket keeps of a file."""
    return {name: digest for name, digest in store.items() if name.endswith(".npy")}


@with_beam
def test_the_store_has_the_same_bytes(corpus: list[str], tmp_path: Path) -> None:
    flags = [*corpus, "--out=store", "--dedup=near", "--runner=beam", "--"]  # a relative path
    code, said = built(tmp_path, *flags, "--runner=DirectRunner", *TWO_PROCESSES)
    assert code == 0, said
    assert "Traceback" not in said
    assert contents(tmp_path / "store") == clean([*corpus, "--dedup=near"], tmp_path)
    assert not (tmp_path / ".store.building").exists()


@with_beam
def test_workers_have_the_module_of_a_user(corpus: list[str], tmp_path: Path) -> None:
    write(tmp_path, "subtitles.py", SUBTITLES)
    (tmp_path / "said").mkdir()
    for number in range(12):
        (tmp_path / f"said/{number}.srt").write_text("1\nab c.\n" * 400 + f"{LETTERS[number]}.\n")
    flags = [f"--source=subtitles:{tmp_path}/said", corpus[1], "--module=subtitles.py"]
    code, said = built(tmp_path, *flags, "--out=store", "--runner=beam", "--", *TWO_PROCESSES)
    assert code == 0, said
    with without_users_rows():
        flags[2] = f"--module={tmp_path}/subtitles.py"
        assert contents(tmp_path / "store") == clean(flags, tmp_path)


@with_beam
def test_a_pipeline_that_is_killed_resumes_to_the_same_bytes(
    corpus: list[str], tmp_path: Path
) -> None:
    flags = [*corpus, "--out=store", "--work=work", "--runner=beam", "--", *TWO_PROCESSES]
    wait, kills = random.Random(1), 0
    after = 1.0  # less than the command's imports take
    while True:
        process = start(tmp_path, *flags)
        try:
            _, said = process.communicate(timeout=after)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            kills += 1
            after *= wait.uniform(1.1, 1.6)
            continue
        assert process.returncode == 0, said
        break
    assert kills >= 2
    assert contents(tmp_path / "store") == clean(corpus, tmp_path)
    assert not [path.name for path in (tmp_path / "work").glob("failure-*")]
    code, line = built(tmp_path, f"{corpus[0]},lang=de", corpus[1], "--out=other", *flags[3:])
    assert code == 1
    assert "other text or settings: language of source 'jsonl'" in line


@with_beam
def test_text_and_shards_in_a_bucket(corpus: list[str], tmp_path: Path) -> None:
    with Emulator("bucket") as server:
        server.write("bucket", "rows.jsonl", (tmp_path / "rows.jsonl").read_bytes())
        env = {**server.env, "FSSPEC_GCS_TOKEN": "anon"}
        source = "--source=jsonl:gs://bucket/rows.jsonl"
        flags = [source, corpus[1], "--out=store", "--work=gs://bucket/work", "--runner=beam"]
        code, said = built(tmp_path, *flags, **env)
        assert code == 0, said
        names = server.names("bucket")
    shards = [name for name in names if name.endswith("/summary.json")]
    assert len(shards) > 5
    assert not [name for name in names if "failure" in name]
    assert arrays(contents(tmp_path / "store")) == arrays(clean(corpus, tmp_path))


@with_beam
def test_what_a_worker_cannot_read_is_one_line_and_the_other_shards_stay(
    corpus: list[str], tmp_path: Path
) -> None:
    rows = (tmp_path / "rows.jsonl").read_text()
    (tmp_path / "rows.jsonl").write_text(rows + '{"text": 5}\n')
    code, line = built(tmp_path, *corpus, "--out=store", "--runner=beam", "--", *TWO_PROCESSES)
    assert code == 1
    assert "rows.jsonl" in line
    assert ":2001: " in line
    assert len(list((tmp_path / ".store.building/shards").iterdir())) > 5
    assert not list((tmp_path / ".store.building").glob("failure-*"))


BAD = {
    "--runner=DirektRunner": "DirektRunner: unknown to Beam; did you mean DirectRunner?",
    "--direct_num_worker=2": "no option of a Beam pipeline; did you mean --direct_num_workers?",
    "--direct_num_workers=x": "argument --direct_num_workers: invalid int value: 'x'",
    "--runner=DataflowRunner": "workers of Dataflow cannot write there; add --work=gs://",
}


@with_beam
def test_options_of_a_pipeline_are_checked_before_the_text_is_read(
    corpus: list[str], tmp_path: Path
) -> None:
    flags = [*corpus, "--out=store", "--runner=beam"]
    cases = [[*flags, "--", option] for option in BAD]
    cases.append([*flags, "--work=gs://bucket/work", "--", "--runner=DataflowRunner"])
    (tmp_path / "build.py").write_text(  # in one process: importing Beam takes seconds
        f"from bert_jax import cli\n"
        f"print([cli.main(['data', 'build', *words]) for words in {cases!r}])\n"
    )
    process = start(tmp_path)
    _, said = process.communicate(timeout=300)
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    local = f"source 'jsonl': workers of Dataflow cannot read {tmp_path}/rows.jsonl; copy it to"
    for line, message in zip(errors, [*BAD.values(), local], strict=True):
        assert message in line
    assert process.returncode == 0
    assert not (tmp_path / ".store.building").exists()


def test_beam_that_is_not_installed(
    corpus: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    assert cli.main(["data", "build", *corpus, f"--out={tmp_path}/store", "--runner=beam"]) == 1
    assert "not installed; pip install 'bert-jax[beam]'" in capsys.readouterr().err
    assert not (tmp_path / ".store.building").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--runner=beam", "--shard=1/2"], "--shard and --runner=beam exclude each other"),
        (["--runner=beam", "--workers=2"], "--workers and --runner=beam exclude each other"),
        (["--runner=beam", "--merge"], "--merge and --runner=beam exclude each other"),
        (["--", "--runner=DirectRunner"], "only --runner=beam has options of its own, after --"),
        (["--runner=bean"], "--runner"),
    ],
)
def test_flags_that_exclude_each_other(
    corpus: list[str],
    tmp_path: Path,
    flags: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["data", "build", *corpus, f"--out={tmp_path}/store", *flags]) == 2
    assert message in capsys.readouterr().err


def units_of(corpus: list[str], folder: Path) -> list[Unit]:
    source = parse_source(corpus[0].removeprefix("--source="))
    digests = FileDigests(folder)
    return units.plan_units([source], [find(source)], TOKENIZER, folder, digests).units


def test_a_worker_with_another_library_builds_nothing(corpus: list[str], tmp_path: Path) -> None:
    unit, *_ = units_of(corpus, tmp_path)
    versions = {"jsonl": {**units.versions_of(unit), "tokenizers": "0.1"}}
    beam._build(unit, versions, f"{tmp_path}/failure.txt")
    assert not unit.shard.exists()
    said = (tmp_path / "failure.txt").read_text()
    here = units.versions_of(unit)["tokenizers"]
    assert (
        f"the tokenizers of a worker ({here}) is not that of the machine that started it (0.1)"
        in said
    )


@pytest.mark.slow
@pytest.mark.processes
def test_the_package_of_workers_builds_shards_without_jax(
    corpus: list[str], tmp_path: Path
) -> None:
    unit, *_ = units_of(corpus, tmp_path)
    archive = write_package(tmp_path, [unit])
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, f"--target={tmp_path}/packages", archive], check=True, timeout=120)
    (tmp_path / "worker.py").write_text(
        "import pickle, sys\n"
        "import bert_jax\n"
        "from bert_jax.data_pipeline.store_build import beam, units\n"
        "unit = pickle.loads(sys.stdin.buffer.read())\n"
        "versions = {unit.source.name: units.versions_of(unit)}\n"
        "beam._build(unit, versions, 'failure.txt')\n"
        "assert not {'jax', 'flax', 'numba'} & set(sys.modules)\n"
        "print(bert_jax.__file__)\n"
    )
    done = subprocess.run(
        [sys.executable, "worker.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}/packages"},
        input=pickle.dumps(unit),
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().startswith(f"{tmp_path}/packages/")
    here = dataclasses.replace(unit, shard=tmp_path / "here" / unit.shard.name)
    build_shard(here, lambda count: None)
    assert contents(unit.shard) == contents(here.shard)
    metadata = next((tmp_path / "packages").glob("bert_jax_worker-*/METADATA")).read_text()
    assert "Requires-Dist: tokenizers==" in metadata
    assert "jax" not in metadata.replace("bert-jax", "")
