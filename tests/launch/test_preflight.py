"""Tests of the checks before a job is created."""

import importlib.util
import re
import shutil

import pytest
from corpus import small_store
from gcs_emulator import emulated

from bert_jax.data_pipeline.store.manifest import read_manifest
from bert_jax.errors import UserError
from bert_jax.launch.preflight import (
    Check,
    CheckFailedError,
    folder_check,
    inputs_check,
    private_file,
    run_checks,
    store_check,
)
from bert_jax.storage.remote import put


def failing(line: str) -> Check:
    def probe() -> str:
        raise CheckFailedError(line, "do this")

    return Check(line, probe)


def test_all_checks_run_and_all_failures_are_said():
    said: list[str] = []
    checks = [failing("a"), Check("b", lambda: "is there"), failing("c")]
    with pytest.raises(UserError, match=r"^2 checks failed before anything was created: a, c$"):
        run_checks(checks, said.append)
    assert said == ["b: is there", "a: FAILED: a; do this", "c: FAILED: c; do this"]


def test_one_failure_is_the_error():
    with pytest.raises(UserError, match=r"^a: a; do this$"):
        run_checks([failing("a"), Check("b", lambda: "")], lambda line: None)


def test_a_folder_can_be_written_to(tmp_path):
    assert folder_check("workdir", str(tmp_path / "new")).probe().endswith("can be written")
    assert not list((tmp_path / "new").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/run: cannot be written .*; give a folder of yours"):
        folder_check("workdir", str(tmp_path / "file" / "run")).probe()


@pytest.mark.skipif(not importlib.util.find_spec("gcsfs"), reason="needs gcsfs")
def test_a_bucket_can_be_written_to(monkeypatch):
    from bert_jax.storage import retry

    monkeypatch.setattr(retry, "sleep", lambda seconds: None)
    with emulated(monkeypatch, "bucket") as server:
        check = folder_check("workdir", "gs://bucket/run/launch/b1")
        check.probe()
        assert server.names("bucket") == []
        server.faults.refuse_writes = 403
        with pytest.raises(UserError, match=r"launch/b1: cannot be written \(no permission"):
            check.probe()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return small_store(tmp_path_factory.mktemp("store") / "store").path


def test_a_store_has_all_of_its_files(store, tmp_path):
    copy = shutil.copytree(store, tmp_path / "store")
    found = store_check(str(copy), read_manifest).probe()
    assert re.fullmatch(f"{copy} has all of its [0-9]+ files", found)
    (copy / "train/tokens.npy").write_bytes(b"short")
    (copy / "tokenizer.json").unlink()
    with pytest.raises(CheckFailedError, match="missing or incomplete; copy the store again") as e:
        store_check(str(copy), read_manifest).probe()
    assert "train/tokens.npy" in str(e.value)
    assert "tokenizer.json" in str(e.value)
    with pytest.raises(UserError, match="not a token store"):
        store_check(str(tmp_path / "other"), read_manifest).probe()


@pytest.mark.skipif(not importlib.util.find_spec("gcsfs"), reason="needs gcsfs")
def test_a_store_of_which_a_part_was_uploaded_is_completed_in_its_place(store, monkeypatch):
    """`gcloud storage cp --recursive` would copy it into the folder that is there."""
    with emulated(monkeypatch, "bucket"):
        put("gs://bucket/store/manifest.json", (store / "manifest.json").read_bytes())
        flags = "--recursive --no-ignore-symlinks"
        copy = f"copy the store again: gcloud storage rsync {flags} STORE gs://bucket/store$"
        with pytest.raises(CheckFailedError, match=copy):
            store_check("gs://bucket/store", read_manifest).probe()


def test_all_inputs_must_be_there(tmp_path):
    there = {"config.task.data": str(tmp_path)}
    assert inputs_check(there).probe() == f"{tmp_path} there"
    missing = there | {"config.init": f"{tmp_path}/run", "config.task.held_out": ""}
    line = f"config.init={tmp_path}/run, config.task.held_out=: not there; give a path that this "
    with pytest.raises(CheckFailedError, match=re.escape(line)):
        inputs_check(missing).probe()


@pytest.mark.skipif(not importlib.util.find_spec("gcsfs"), reason="needs gcsfs")
def test_inputs_may_be_in_a_bucket(monkeypatch):
    with emulated(monkeypatch, "bucket"):
        put("gs://bucket/task/train.tsv", b"a")
        assert inputs_check({"config.task.data": "gs://bucket/task"}).probe()
        with pytest.raises(CheckFailedError, match="data=gs://bucket/other: not there"):
            inputs_check({"config.task.data": "gs://bucket/other"}).probe()


def test_a_secret_is_its_owners_alone(tmp_path):
    secret = tmp_path / "secret"
    with pytest.raises(UserError, match=r"secret: .*; write the value to this file"):
        private_file("secret", str(secret)).probe()
    secret.touch(mode=0o644)
    with pytest.raises(CheckFailedError, match=f"others may read it; chmod 600 {secret}"):
        private_file("secret", str(secret)).probe()
    secret.chmod(0o600)
    assert private_file("secret", str(secret)).probe() == str(secret)
