"""The first contact with a bucket: a machine without network learns it soon."""

import socket
from collections.abc import Iterator

import pytest
from corpus import SPECIAL
from etils.epath import backend
from gcs_emulator import Emulator, emulated

from bert_jax.cli import main
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.exit_codes import FAILED, USAGE
from bert_jax.storage import read_files, retry

first_contact = pytest.importorskip("bert_jax.storage.first_contact")  # of gcsfs


@pytest.fixture
def server(monkeypatch) -> Iterator[Emulator]:
    """An empty bucket named "bucket"; no pauses between attempts."""

    monkeypatch.setattr(retry, "sleep", lambda seconds: None)
    with emulated(monkeypatch, "bucket") as emulator:
        yield emulator


def without_network(patch: pytest.MonkeyPatch, code: int = socket.EAI_NONAME) -> list[str]:
    """No host has an address from here on; returns a list of the look-ups."""
    calls: list[str] = []

    def fail(host, *arguments, **options):
        calls.append(host)
        raise socket.gaierror(code, "Name or service not known")

    patch.setattr(first_contact, "_found", set())
    first_contact.Client.clear_instance_cache()
    backend.fsspec_backend._get_filesystem.cache_clear()
    patch.setattr(socket, "getaddrinfo", fail)
    return calls


@pytest.mark.parametrize("code", [socket.EAI_NONAME, socket.EAI_AGAIN])
def test_a_host_that_cannot_be_looked_up_ends_a_command_after_three_look_ups(
    server, monkeypatch, capsys, tmp_path, code
):
    Tokenizer.from_vocab([*SPECIAL]).save(tmp_path / "tokenizer.json")
    out = [f"--tokenizer={tmp_path}/tokenizer.json", f"--out={tmp_path}/store"]
    for command in (
        ["data", "verify", "--store=gs://bucket/store"],
        ["data", "build", "--source=lines:gs://bucket/text", *out],
        ["status", "--workdir=gs://bucket/run"],
        ["pretrain", "--config=tiny", f"--config.data.store={tmp_path}", "--workdir=gs://bucket/a"],
    ):
        with monkeypatch.context() as patch:
            calls = without_network(patch, code)
            assert main(command) == 1, command
        assert len(calls) == first_contact.LOOK_UPS.attempts == 3, command
        lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
        assert [line for line in lines if "cannot be looked up (Name or service not" in line], lines
    assert not server.requests


def test_a_host_that_was_found_is_not_looked_up_again(server, monkeypatch):
    server.write("bucket", "a", b"text")
    assert read_files.size_of("gs://bucket/a") == 4
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("looked up again"))
    first_contact.check_host({})


def test_what_is_wrong_here_is_said_before_a_bucket_is_looked_up(
    server, monkeypatch, capsys, tmp_path
):
    (tmp_path / "a.txt").write_text("A line.\n")
    (tmp_path / "notes").write_text("mine")
    Tokenizer.from_vocab([*SPECIAL]).save(tmp_path / "tokenizer.json")
    right = {"source": f"lines:{tmp_path}/a.txt,lines=1", "work": "gs://bucket/work"}
    right |= {"tokenizer": f"{tmp_path}/tokenizer.json", "out": f"{tmp_path}/store"}
    calls = without_network(monkeypatch)
    for wrong, message in (
        ({"source": ""}, "--source=… is missing"),
        ({"source": f"lines:{tmp_path}/a.txt,lines=1,lang=xx1"}, "xx1"),
        ({"source": f"lines:{tmp_path}/b.txt,lines=1"}, f"{tmp_path}/b.txt"),
        ({"shard": "3"}, "--shard=3"),
        ({"shard": "1/2", "merge": "true"}, "--shard and --merge exclude each other"),
        ({"tokenizer": f"{tmp_path}/no.json"}, f"{tmp_path}/no.json"),
        ({"out": f"{tmp_path}/notes"}, f"{tmp_path}/notes: a file"),
        ({"out": "gs://bucket/store"}, "gs://bucket/store: write to a local path"),
    ):
        flags = [f"--{name}={value}" for name, value in (right | wrong).items() if value]
        assert main(["data", "build", *flags]) in (FAILED, USAGE)
        assert message in capsys.readouterr().err
        assert not calls, wrong
    assert main(["data", "build", *(f"--{name}={value}" for name, value in right.items())]) == 1
    assert "cannot be looked up" in capsys.readouterr().err
    assert calls
    assert not (tmp_path / ".store.building").exists()
