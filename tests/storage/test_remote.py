"""Stores and runs in a bucket: a loopback emulator with real clients and processes."""

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from corpus import SPECIAL, WORDS, small_config, small_store
from gcs_emulator import Emulator, emulated
from runs import read_records
from stores import StoredDocument, write_store

from bert_jax.checkpoint import catalog
from bert_jax.checkpoint import manager as checkpoint
from bert_jax.cli import main
from bert_jax.config.config_files import load
from bert_jax.config.schema import Config
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.data_pipeline.store import manifest as manifest_file
from bert_jax.data_pipeline.store import staging
from bert_jax.data_pipeline.store.digests import BLOCK
from bert_jax.data_pipeline.store.manifest import manifest_digest, read_manifest
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import StorageError, UserError
from bert_jax.metrics import jsonl
from bert_jax.metrics.jsonl import EventLog, read_lines
from bert_jax.reporting import status
from bert_jax.storage import remote, retry
from bert_jax.training import claim
from bert_jax.workdir import description as workdir
from bert_jax.workdir.layout import Workdir

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("gcsfs"), reason="needs gcsfs: pip install 'bert-jax[gcs]'"
)

URL = "gs://bucket/data/store"
LIMIT = 240.0  # seconds that anything here may take before the test fails
OPEN = (
    "import sys; from bert_jax.data_pipeline.store.store import open_store; open_store(sys.argv[1])"
)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    """A store with one file of two blocks."""
    rng = np.random.default_rng(0)
    words = rng.integers(len(SPECIAL), len(SPECIAL) + WORDS, BLOCK // 2 + 1000).tolist()
    sentences = [words[i : i + 100_000] for i in range(0, len(words), 100_000)]
    return write_store(
        tmp_path_factory.mktemp("store") / "store",
        tokenizer=Tokenizer.from_vocab(
            [*SPECIAL, *(f"w{i}" for i in range(WORDS))], lowercase=True
        ),
        train=[StoredDocument(sentences), StoredDocument([[7, 8], [9]])],
        held_out=[StoredDocument([[5, 6], [7]]), StoredDocument([[8], [9]])],
        sources=("wiki",),
    )


@pytest.fixture
def server(monkeypatch) -> Iterator[Emulator]:
    """An empty bucket named "bucket", used by this process and its subprocesses."""

    with emulated(monkeypatch, "bucket") as emulator:
        yield emulator


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    """An empty cache folder for the test."""
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_pauses(monkeypatch) -> None:
    monkeypatch.setattr(retry, "sleep", lambda seconds: None)


def upload(server: Emulator, folder: Path, to: str = "data/store") -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            server.write("bucket", f"{to}/{file.relative_to(folder)}", file.read_bytes())


def same_files(one: Path, other: Path) -> bool:
    files = [file.relative_to(one) for file in one.rglob("*") if file.is_file()]
    return all((one / f).read_bytes() == (other / f).read_bytes() for f in files)


def wait_for(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"waited too long: {what}"
        time.sleep(0.02)


def python(*arguments: str, **options) -> subprocess.Popen:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *arguments], **pipes, text=True, **options)


def finished(process: subprocess.Popen) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    return process.returncode, out, err


# The store.


@pytest.mark.slow
def test_a_store_in_a_bucket_opens_like_the_one_it_was_copied_from(server, cache, store):
    upload(server, store.path)
    staged = open_store(URL)
    assert staged.path == cache / "stores" / store.manifest["digest"]
    assert same_files(store.path, staged.path)
    assert staged.train.digest == store.train.digest
    requests = server.count("GET", "npy")
    open_store(URL)
    assert server.count("GET", "npy") == requests  # it stays in the cache


@pytest.mark.slow
def test_a_store_arrives_whole_over_a_bad_connection(server, cache, store, no_pauses):
    upload(server, store.path)
    faults = server.faults
    faults.fail_every, faults.reset_every, faults.truncate_every, faults.flip_every = 7, 8, 5, 3
    assert same_files(store.path, open_store(URL).path)


def test_a_manifest_that_arrives_damaged_is_read_again(server, cache, store, monkeypatch):
    upload(server, store.path)
    damaged = [b"{}", b"z" + (store.path / "manifest.json").read_bytes()[1:]]

    def manifest_bytes(path: str) -> bytes:
        data = original(path)
        return damaged.pop() if damaged and path == URL else data

    original = manifest_file.manifest_bytes
    monkeypatch.setattr(manifest_file, "manifest_bytes", manifest_bytes)
    assert same_files(store.path, open_store(URL).path)
    assert not damaged


def test_what_is_there_and_right_is_not_copied_again(server, cache, store):
    upload(server, store.path)
    folder = open_store(URL).path
    (folder / "manifest.json").unlink()  # as a copy that was interrupted leaves it
    tokens = folder / "train/tokens.npy"
    data = bytearray(tokens.read_bytes())
    data[BLOCK + 5] ^= 1
    tokens.write_bytes(data)
    (folder / "held_out/tokens.npy").unlink()
    before = server.count("GET", "download")
    assert same_files(store.path, open_store(URL).path)
    assert server.count("GET", "download") - before == 3  # the manifest and two blocks


def test_a_copy_that_was_damaged_later_is_mended(server, cache, store):
    upload(server, store.path)
    tokens = open_store(URL).path / "train/tokens.npy"
    data = bytearray(tokens.read_bytes())
    data[-1] ^= 1
    tokens.write_bytes(data)
    assert same_files(store.path, open_store(URL).path)


@pytest.mark.slow
@pytest.mark.processes
def test_a_copy_that_was_killed_goes_on(server, cache, store):
    upload(server, store.path)
    server.faults.latency = 0.5
    process = python("-c", OPEN, URL)
    wait_for(lambda: server.count("GET", ".npy"), "the first file is asked for")
    process.kill()
    finished(process)
    server.faults.latency = 0
    assert not list((cache / "stores").glob("*/manifest.json"))
    assert same_files(store.path, open_store(URL).path)


@pytest.mark.slow
@pytest.mark.processes
def test_processes_of_one_machine_copy_once(server, cache, store):
    upload(server, store.path)
    server.faults.latency = 1.5  # the others must have started while one copies
    processes = [python("-c", OPEN, URL) for _ in range(3)]
    ended = [finished(process) for process in processes]
    assert [code for code, _, _ in ended] == [0, 0, 0], ended
    blocks = sum(len(entry["blocks"]) for entry in store.manifest["files"].values())
    assert server.count("GET", "download") == 3 + blocks  # three manifests
    assert sum("waiting for another process that copies it" in err for _, _, err in ended) == 2


def test_another_store_under_the_same_name_is_another_copy(server, cache, store):
    upload(server, store.path)
    first = open_store(URL).path
    manifest = read_manifest(store.path)
    manifest["build_digest"] = "another"
    manifest["digest"] = manifest_digest(manifest)
    server.write("bucket", "data/store/manifest.json", json.dumps(manifest).encode())
    assert open_store(URL).path != first


def test_bytes_that_are_not_the_stores_are_named(server, cache, store, no_pauses):
    upload(server, store.path)
    data = bytearray(server.read("bucket", "data/store/train/tokens.npy"))
    data[BLOCK] ^= 1
    server.write("bucket", "data/store/train/tokens.npy", bytes(data))
    with pytest.raises(UserError, match=r"train/tokens\.npy: bytes 4,194,304 to .*checksums-only"):
        open_store(URL)


def test_a_manifest_cannot_name_files_elsewhere(server, cache, store):
    manifest = read_manifest(store.path)
    manifest["files"]["../../../outside"] = manifest["files"]["tokenizer.json"]
    manifest["digest"] = manifest_digest(manifest)
    server.write("bucket", "data/store/manifest.json", json.dumps(manifest).encode())
    with pytest.raises(UserError, match=r"\.\./\.\./\.\./outside.*must be only the names"):
        open_store(URL)


def test_a_disk_without_room_is_said_before_anything_is_copied(server, cache, store, monkeypatch):
    upload(server, store.path)
    nothing = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(staging.shutil, "disk_usage", lambda path: nothing)
    with pytest.raises(UserError, match=r"GB are free; free some space.*BERT_JAX_CACHE"):
        open_store(URL)
    assert not server.count("GET", "npy")


@pytest.mark.parametrize("name", ["thesis.tex", "train/notes.txt", "train/tokens.npy"])
def test_a_cache_folder_with_files_of_others_is_refused_untouched(server, cache, store, name):
    upload(server, store.path)
    folder = cache / "stores" / store.manifest["digest"]
    (folder / "train").mkdir(parents=True)
    theirs = cache / "theirs"
    theirs.write_text("years of work")
    if name.endswith(".npy"):
        (folder / name).symlink_to(theirs)  # would be written through
    else:
        (folder / name).write_text("years of work")
    with pytest.raises(UserError, match=rf"{name}: not a file of a token store.*BERT_JAX_CACHE"):
        open_store(URL)
    assert theirs.read_text() == (folder / name).read_text() == "years of work"


@pytest.mark.processes
def test_a_disk_that_fills_up_is_one_line(server, cache, store):
    upload(server, store.path)
    limited = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({BLOCK}, {BLOCK}))\n"
        "sys.dont_write_bytecode = True\n"  # Python would keep a module's cut-off bytecode
        "from bert_jax.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    code, _, err = finished(python("-c", limited, "data", "verify", f"--store={URL}"))
    assert code == 1
    assert "cannot be written (File too large); free some space" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("store_url", "says"),
    [
        ("gs://nowhere/store", "not a token store (no such bucket, or no manifest.json)"),
        ("gs://bucket/nothing", "not a token store (no such bucket, or no manifest.json)"),
        ("gs://secret/store", "cannot be read (no permission)"),
        ("ftp9://bucket/store", "unknown protocol ftp9://"),
        ("s3://bucket/store", "unknown protocol s3://; use gs://… or a local path"),
        ("hf://org/store", "not read from the hub; download it, and give its path"),
    ],
)
@pytest.mark.parametrize("verb", ["verify", "inspect"])
def test_what_is_wrong_with_a_store_is_one_line(store_url, says, verb, server, cache, capsys):
    server.faults.denied = frozenset({"secret"})
    assert main(["data", verb, f"--store={store_url}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.removeprefix("error: ").removeprefix("--store=").startswith(store_url)
    assert says in line


@pytest.mark.processes
def test_what_the_client_says_itself_is_not_shown(server, cache):
    server.faults.fail_every, server.faults.fail_status = 1, 401
    code, _, err = finished(python("-m", "bert_jax", "data", "verify", f"--store={URL}"))
    assert code == 1
    (line,) = err.splitlines()
    assert line.startswith(f"error: {URL}: cannot be read (no permission)")


def test_verify_and_inspect_take_a_store_in_a_bucket(server, cache, tmp_path, capsys):
    upload(server, small_store(tmp_path / "small").path)
    assert main(["data", "verify", f"--store={URL}"]) == 0
    assert f"{URL}: no errors found, copied to {cache}" in capsys.readouterr().out
    assert main(["data", "inspect", f"--store={URL}", "--examples=1"]) == 0


@pytest.mark.processes
def test_without_the_client_it_says_what_to_install(server, cache):
    code = (
        "import sys; sys.modules['gcsfs'] = None; from bert_jax.cli import main; main(sys.argv[1:])"
    )
    for verb in (["data", "verify", f"--store={URL}"], ["status", "--workdir=gs://bucket/run"]):
        _, _, err = finished(python("-c", code, *verb))
        (line,) = err.splitlines()
        assert line.endswith("which is not installed; pip install 'bert-jax[gcs]'")


# The folder of a run.


def test_what_others_write_is_seen_at_once(server):
    checkpoints = Workdir.open("gs://bucket/run").checkpoints
    assert str(checkpoints) == "gs://bucket/run/checkpoints"
    server.write("bucket", "run/checkpoints/1/commit_success.txt", b"x")
    assert catalog.complete_steps(checkpoints) == [1]
    server.write("bucket", "run/checkpoints/2/commit_success.txt", b"x")
    assert catalog.complete_steps(checkpoints) == [1, 2]
    server.delete("bucket", "run/checkpoints/1/commit_success.txt")
    assert catalog.complete_steps(checkpoints) == [2]


def test_the_description_of_a_run_is_written_over_a_bad_connection(server, no_pauses):
    run = Workdir.open("gs://bucket/run")
    claim.check_free(run)
    server.faults.fail_every, server.faults.fail_status = 3, 507  # the client alone gives up
    description = {"config": {"phases": []}, "data": {}}
    for _ in range(2):  # two requests each
        claim.update_config_json(run, description, resuming_at=None)
    server.faults.fail_every = 0
    assert server.names("bucket", "run") == ["run/config.json"]
    assert workdir.read_description(run) == description


def test_a_folder_is_moved_whole_and_never_seems_complete_in_between(server, no_pauses):
    names = ["a/b", "commit_success.txt", "z"]
    for name in names:
        server.write("bucket", f"run/checkpoints/1/{name}", name.encode())
    source, target = "gs://bucket/run/checkpoints/1", "gs://bucket/run/quarantine/1"
    server.faults.refuse_writes = 403
    with pytest.raises(OSError, match="Forbidden"):
        remote.move_folder(source, target, first="commit_success.txt")
    server.faults.refuse_writes, server.faults.reset_every = 0, 8
    remote.move_folder(source, target, first="commit_success.txt")
    moves = [path for method, path in server.requests if "moveTo" in path]
    assert moves[0].endswith("/1/commit_success.txt/moveTo/o/run/quarantine/1/commit_success.txt")
    assert server.names("bucket") == [f"run/quarantine/1/{name}" for name in names]
    assert server.read("bucket", "run/quarantine/1/a/b") == b"a/b"


@pytest.mark.parametrize("status", [403, 507])
def test_a_bucket_that_takes_nothing_ends_a_run_in_one_line(server, no_pauses, status):
    server.faults.refuse_writes = status
    errors = {403: (UserError, "no permission"), 507: (StorageError, "writes are refused")}
    error, says = errors[status]
    with pytest.raises(error, match=rf"config\.json: cannot be written \({says}"):
        claim.update_config_json(Workdir.open("gs://bucket/run"), {}, resuming_at=None)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("gs://nowhere/run", "cannot be used as a workdir (no such bucket or object)"),
        ("gs://secret/run", "cannot be used as a workdir (no permission); give this machine's"),
    ],
)
def test_a_workdir_that_cannot_be_is_one_line(where, says, server):
    server.faults.denied = frozenset({"secret"})
    with pytest.raises(UserError) as error:
        claim.check_free(Workdir.open(where))
    (line,) = str(error.value).splitlines()
    assert says in line


# Records.


def test_a_bucket_of_others_is_refused_before_anything_in_it_changes(server):
    for name in ("5.removed/array", "7.unfinished", "3/array"):
        server.write("bucket", f"run/checkpoints/{name}", b"theirs")
    before = server.names("bucket")
    with pytest.raises(UserError, match=r"run: holds checkpoints, but no config\.json of a"):
        claim.check_free(Workdir.open("gs://bucket/run"))
    assert server.names("bucket") == before
    server.write("bucket", "empty/", b"")  # as the console makes a folder
    claim.check_free(Workdir.open("gs://bucket/empty"))
    claim.check_free(Workdir.open("gs://bucket/absent"))


def records(path: str) -> list[str]:
    return [line for line in read_lines(path) if line]


def test_records_in_a_bucket_are_read_in_order_over_starts_and_parts(server, monkeypatch):
    monkeypatch.setattr(jsonl, "_PART_BYTES", 40)
    monkeypatch.setattr(jsonl, "_MIN_DELAY", 0.01)
    lines = [f'{{"step": {step}}}' for step in range(12)]
    for start in (0, 6):
        log = EventLog("gs://bucket/run/metrics.jsonl")
        for line in lines[start : start + 6]:
            log.append(line)
            wait_for(
                lambda line=line: records("gs://bucket/run/metrics.jsonl")[-1:] == [line], line
            )
        log.close()
    assert records("gs://bucket/run/metrics.jsonl") == lines
    assert len(server.names("bucket", "run/metrics-")) == 4


def test_records_wait_for_a_bucket_that_refuses_them(server, monkeypatch, capsys):
    monkeypatch.setattr(jsonl, "_MIN_DELAY", 0.01)
    server.faults.refuse_writes = 403
    log = EventLog("gs://bucket/run/metrics.jsonl")
    for step in range(5):
        log.append(str(step))
        wait_for(lambda step=step: server.count("POST") > step, "a write is tried")
    server.faults.refuse_writes = 0
    log.append("5")
    log.close()
    assert records("gs://bucket/run/metrics.jsonl") == list("012345")
    refused, well = capsys.readouterr().err.splitlines()
    assert "cannot be written (no permission); training continues" in refused
    assert "writes succeed again" in well


@pytest.mark.slow
def test_a_bucket_that_is_away_does_not_hold_up_the_end(server, monkeypatch, capsys):
    monkeypatch.setattr(jsonl, "_CLOSE_TIMEOUT", 0.2)
    server.faults.down = True
    log = EventLog("gs://bucket/run/metrics.jsonl")
    log.append("0")
    log.close()
    assert "1 records could not be written" in capsys.readouterr().err
    (writer,) = [thread for thread in threading.enumerate() if thread.name == "event-log"]
    server.faults.down = False
    # It is still writing and would write into the bucket of a later test, since the client looks
    # up the server's address for every request.
    writer.join(LIMIT)
    assert records("gs://bucket/run/metrics.jsonl") == ["0"]


# A run.


@pytest.mark.slow
@pytest.mark.processes
def test_a_run_in_a_bucket_is_killed_and_goes_on_to_the_same_bits(server, cache, tmp_path):
    """Store and workdir in the bucket, 1 of 50 requests fails, SIGKILL after a save."""
    store = small_store(tmp_path / "store")
    upload(server, store.path)
    config = small_config(store)
    folder = "gs://bucket/run"

    def command(folder: object) -> tuple[str, ...]:
        return (
            *("-m", "bert_jax", "pretrain", "--config=tiny", f"--workdir={folder}"),
            *("--cpu_devices=2", f"--config.data.store={URL}", "--config.checkpoint.every_steps=4"),
            *(f"--config.{key}={value}" for key, value in changed(config)),
        )

    code, _, err = finished(python(*command(tmp_path / "local")))
    assert code == 0, err
    server.faults.fail_every = 50
    process = python(*command(folder))
    wait_for(lambda: catalog.complete_steps(Workdir.open(folder).checkpoints), "a save")
    process.kill()
    code, _, err = finished(process)
    assert code == -signal.SIGKILL, err
    code, _, err = finished(python(*command(folder)))
    assert code == 0, err
    server.faults.fail_every = 0
    there, _ = checkpoint.load_params(Workdir.open(folder))
    here, _ = checkpoint.load_params(Workdir.open(tmp_path / "local"))
    for one, other in zip(jax.tree.leaves(there), jax.tree.leaves(here), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    assert [record["step"] for record in read_records(folder, "train")] == [4, 8, 12]
    assert server.names("bucket", "run/tensorboard/")
    assert status.read_status(folder).finished


def changed(config: Config) -> Iterator[tuple[str, object]]:
    """The changes of `small_config` to the config "tiny", as flags."""
    before, after = flatten(to_dict(load("tiny"))), flatten(to_dict(config))
    for key, value in after.items():
        if value != before[key] and key != "data.store":
            yield key, value
