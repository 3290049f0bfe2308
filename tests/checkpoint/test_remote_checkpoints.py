"""Tests of checkpoints in a bucket: damage, denied access, bad connections, processes."""

import dataclasses
import errno
import functools
import importlib.util
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import checkpoint_places
import jax
import numpy as np
import pytest
from checkpoint_places import save
from corpus import small_store
from gcs_emulator import Emulator, Faults
from processes import LIMIT, Job, assert_same_bits, deep_config
from processes import run as run_job
from runs import all_steps, complete_steps, list_quarantined
from saving_process import STEPS, keeping, over

from bert_jax.checkpoint import catalog
from bert_jax.checkpoint import manager as checkpoint
from bert_jax.checkpoint.manager import RunCheckpoints
from bert_jax.config.schema import Config
from bert_jax.errors import StorageError
from bert_jax.metrics import run_records
from bert_jax.storage import remote, retry
from bert_jax.workdir.layout import Workdir

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("gcsfs"), reason="needs gcsfs: pip install 'bert-jax[gcs]'"
)

RUN = "gs://bucket/run"
ABSTRACT = over(jax.devices()[:1])[1]
restored = functools.partial(checkpoint_places.restored, RUN)
SECRET = "ya29.not-to-be-seen-anywhere"


def three_saves(count: int = 9) -> None:
    checkpoints = RunCheckpoints(Workdir.open(RUN), keeping(count))
    for step in STEPS:
        save(checkpoints, step)


def objects(server: Emulator, part: str) -> list[str]:
    return [name for name in server.names("bucket") if part in name]


def quarantined() -> list[str]:
    return [one.folder for one in list_quarantined(RUN)]


# What is kept, and what is used.


def test_what_is_saved_is_restored_and_what_is_too_many_removed(server):
    three_saves(2)
    assert all_steps(RUN) == complete_steps(RUN) == [7, 12]
    assert not objects(server, "unfinished")
    assert not objects(server, "checkpoints/3")
    assert restored() == 12


# A storage that does not serve.


def test_what_is_refused_for_a_moment_is_read_all_the_same(server, monkeypatch, capsys):
    three_saves()
    server.faults.fail_names, server.faults.fail_status = "12/params", 507
    server.faults.fail_every = 1
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        server.faults.fail_every = 0 if len(waits) == 2 else 1

    monkeypatch.setattr(retry, "sleep", wait)
    assert restored() == 12
    assert quarantined() == []
    assert len(waits) == 2
    assert capsys.readouterr().err.count("attempt") == 2


def test_a_bucket_that_may_not_be_listed_is_no_empty_folder(server):
    """Otherwise the run would start from scratch and overwrite them."""
    three_saves()
    server.faults.denied = frozenset({"bucket"})
    for look in (
        all_steps,
        complete_steps,
        list_quarantined,
        lambda run: catalog.health(Workdir.open(run).checkpoints),
        lambda run: catalog.list_checkpoints(Workdir.open(run).checkpoints),
    ):
        with pytest.raises(StorageError, match=r"cannot be read \(no permission\)"):
            look(RUN)
    with pytest.raises(StorageError, match="cannot be read"):
        RunCheckpoints(Workdir.open(RUN), keeping(9))
    server.faults.denied = frozenset()
    assert restored() == 12


def test_a_bucket_that_is_full_for_a_while_is_waited_for(server, monkeypatch, capsys):
    """The bucket is full after some objects, which cannot be removed at first either."""
    checkpoints = RunCheckpoints(Workdir.open(RUN), keeping(9, attempts=3))
    save(checkpoints, 3)
    server.faults.refuse_names = "7/commit_success.txt"

    def heal(seconds: float) -> None:
        server.faults = server.faults if seconds < 2 else Faults()

    remove = checkpoint.orbax_io.remove
    refusing = iter([True])

    def refuse(folder: object) -> None:
        if next(refusing, False):
            raise OSError("Forbidden: no deletes")
        remove(folder)

    monkeypatch.setattr(checkpoint.orbax_io, "remove", refuse)
    monkeypatch.setattr(retry, "sleep", heal)
    save(checkpoints, 7)
    assert capsys.readouterr().err.count("cannot be written (no permission)") == 2
    assert restored() == 7
    assert not objects(server, "unfinished")


def test_errors_are_told_apart():
    """Errors that say nothing about the stored data, and which of them may be transient."""
    import aiohttp
    import requests
    from gcsfs.retry import ChecksumError, HttpError

    passing = [
        HttpError({"code": 503, "message": "x"}),
        requests.exceptions.ProxyError(),  # what gcsfs makes of 502
        aiohttp.ClientError("gone"),
        ChecksumError("not what was sent"),
        TimeoutError(),
        ConnectionResetError(errno.ECONNRESET, "reset"),
        OSError(errno.EIO, "Input/output error"),
        ValueError("Error reading: ABORTED: All 5 retry attempts failed: no [curl_code='52']"),
        ValueError("UNAVAILABLE: x [http_response_code='503']"),
    ]
    lasting = [
        OSError("Forbidden: https://host/b/bucket/o\nno access"),
        HttpError({"code": 401, "message": "Invalid Credentials"}),
        PermissionError(errno.EACCES, "Permission denied"),
        ValueError("PERMISSION_DENIED: x [http_response_code='403']"),
        MemoryError(),
    ]
    damaged = [
        FileNotFoundError("gs://bucket/x"),
        NotADirectoryError(errno.ENOTDIR, "Not a directory"),
        ValueError("DATA_LOSS: crc32c mismatch"),
        ValueError("NOT_FOUND: no such key [http_response_code='404']"),
        KeyError("x"),
    ]
    assert all(remote.is_unreachable(error) and remote.is_retryable(error) for error in passing)
    assert all(remote.is_unreachable(error) for error in lasting)
    assert not any(remote.is_retryable(error) for error in lasting)
    assert not any(remote.is_unreachable(error) for error in damaged)


def test_what_a_client_says_of_its_credentials_is_not_said_again():
    said = remote.reason(
        ValueError(f"Max retries exceeded with url: /info?access_token={SECRET} (Bearer {SECRET})")
    )
    assert said == "Max retries exceeded with url: /info?… (Bearer …)"


# Real processes.


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    config = deep_config(small_store(tmp_path_factory.mktemp("store") / "store"))
    saving = dataclasses.replace(config.checkpoint, write_attempts=3)
    return dataclasses.replace(config, checkpoint=saving)


@pytest.fixture(scope="module")
def reference(config, tmp_path_factory) -> Path:
    """An undisturbed run on the local disk."""
    folder = tmp_path_factory.mktemp("reference")
    run_job(config, folder / "run", folder, processes=1)
    return folder / "run"


def in_lines(said: str) -> None:
    for noise in ("Traceback", "Unclosed", "was never retrieved", "out of retries"):
        assert noise not in said, said


def status_of(folder: str) -> dict:
    command = [sys.executable, "-m", "bert_jax", "status", f"--workdir={folder}", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
    in_lines(done.stderr)
    return json.loads(done.stdout)


@pytest.mark.nightly
@pytest.mark.parametrize("status", [403, 507])
@pytest.mark.processes
def test_storage_that_refuses_ends_all_processes_and_a_restart_has_the_same_bits(
    status, server, config, reference, tmp_path
):
    with Job(config, RUN, tmp_path, processes=2) as job:
        job.wait_for(lambda: 2 in complete_steps(RUN), "a checkpoint")
        server.faults.refuse_writes = status
        assert job.codes() == [45, 45]
        first, second = (process.said() for process in job.processes)
    in_lines(first + second)
    assert "attempt 1 of 3, the next in 1 s" in first
    assert "attempt 2 of 3, the next in 2 s" in first
    for said in (first, second):
        assert "cannot be written after 3 attempts" in said
        assert "the newest checkpoint is step " in said
    server.faults.refuse_writes = 0
    there = complete_steps(RUN)
    assert there
    found = status_of(RUN)
    assert found["restart_from"] == there[-1]
    run_job(config, RUN, tmp_path, processes=2)
    assert_same_bits(RUN, reference)
    assert set(there) < set(complete_steps(RUN))


@pytest.mark.nightly
@pytest.mark.processes
def test_a_kill_while_saving_then_an_outage_then_damage_end_in_the_same_bits(
    server, config, reference, tmp_path
):
    server.faults.latency = 0.02
    with Job(config, RUN, tmp_path, processes=2) as job:
        job.wait_for(lambda: objects(server, "checkpoints/4.unfinished"), "a save")
        job.send(signal.SIGKILL, 0)
        assert job.codes() == [-signal.SIGKILL, 43]
    with Job(config, RUN, tmp_path, processes=2) as job:
        job.wait_for(lambda: 4 in complete_steps(RUN), "a checkpoint")
        server.faults.down = True
        time.sleep(4)  # as long as it lasts: the run meanwhile gets to its next save
        server.faults.down = False
        assert job.codes() == [0, 0]
        in_lines(job.said())
    assert_same_bits(RUN, reference)
    for name in objects(server, "checkpoints/8/params/"):
        if "/d/" in name:
            data = server.read("bucket", name)
            server.write("bucket", name, data[: len(data) // 2] + b"?" + data[len(data) // 2 + 1 :])
    with Job(config, RUN, tmp_path, processes=2) as job:
        assert job.codes() == [0, 0]
        assert job.said().count("/8: damaged: ") == 1
        in_lines(job.said())
    assert_same_bits(RUN, reference)
    found = status_of(RUN)
    assert [one["folder"] for one in found["quarantined"]] == ["8"]
    assert (found["restart_from"], found["finished"]) == (8, True)


@pytest.mark.nightly
@pytest.mark.processes
def test_records_that_are_refused_end_no_run_and_no_secret_is_written(
    server, config, reference, tmp_path, monkeypatch
):
    """Credentials are in the environment and in requests, and nowhere else."""
    server.faults.refuse_names = "run/metrics"
    (tmp_path / "key.json").write_text(json.dumps({"private_key": SECRET}))
    env = {
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": SECRET,
        "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "key.json"),
    }
    with Job(config, RUN, tmp_path, processes=2, env=env) as job:
        job.wait_for(lambda: complete_steps(RUN), "a checkpoint")
        lines = [Path(f"/proc/{p.popen.pid}/cmdline").read_bytes() for p in job.processes]
        assert job.codes() == [0, 0]
        said = job.said()
    in_lines(said)
    assert "metrics.jsonl: cannot be written (no permission)" in said
    assert list(run_records.records(Workdir.open(RUN).metrics)) == []
    assert server.tokens[f"Bearer {SECRET}"] == {"tensorstore"}  # gcsfs asks Google for one first
    written = [name.encode() + server.read("bucket", name) for name in server.names("bucket")]
    assert not [data for data in [*written, *lines, said.encode()] if SECRET.encode() in data]
    assert checkpoint.find_steps(Workdir.open(RUN)) == [8]
    for x, y in zip(
        jax.tree.leaves(checkpoint.load_params(Workdir.open(RUN))[0]),
        jax.tree.leaves(checkpoint.load_params(Workdir.open(reference))[0]),
        strict=True,
    ):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
