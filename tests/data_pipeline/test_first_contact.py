"""The first contact with a bucket: a machine without network learns it soon."""

import socket
from collections.abc import Iterator

import pytest
from corpus import SPECIAL
from etils.epath import backend
from gcs_emulator import Emulator, emulated

from bert_jax.cli import main
from bert_jax.data_pipeline.storage import files, retry
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

first_contact = pytest.importorskip("bert_jax.data_pipeline.storage.first_contact")  # of gcsfs


@pytest.fixture
def server(monkeypatch) -> Iterator[Emulator]:
    """An empty bucket named "bucket"; no pauses between attempts."""

    monkeypatch.setattr(retry, "sleep", lambda seconds: None)
    with emulated(monkeypatch, "bucket") as emulator:
        yield emulator


@pytest.mark.parametrize("code", [socket.EAI_NONAME, socket.EAI_AGAIN])
def test_a_host_that_cannot_be_looked_up_ends_a_command_after_three_look_ups(
    server, monkeypatch, capsys, tmp_path, code
):
    calls = []
    Tokenizer.from_vocab([*SPECIAL]).save(tmp_path / "tokenizer.json")
    out = [f"--tokenizer={tmp_path}/tokenizer.json", f"--out={tmp_path}/store"]

    def fail(host, *arguments, **options):
        calls.append(host)
        raise socket.gaierror(code, "Name or service not known")

    for command in (
        ["data", "verify", "--store=gs://bucket/store"],
        ["data", "build", "--source=lines:gs://bucket/text", *out],
        ["status", "--workdir=gs://bucket/run"],
        ["pretrain", "--config=tiny", f"--config.data.store={tmp_path}", "--workdir=gs://bucket/a"],
    ):
        with monkeypatch.context() as patch:
            patch.setattr(first_contact, "_found", set())
            first_contact.Client.clear_instance_cache()
            backend.fsspec_backend._get_filesystem.cache_clear()
            patch.setattr(socket, "getaddrinfo", fail)
            calls.clear()
            assert main(command) == 1, command
        assert len(calls) == first_contact.LOOK_UPS.attempts == 3, command
        lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
        assert [line for line in lines if "cannot be looked up (Name or service not" in line], lines
    assert not server.requests


def test_a_host_that_was_found_is_not_looked_up_again(server, monkeypatch):
    server.write("bucket", "a", b"text")
    assert files.size_of("gs://bucket/a") == 4
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("looked up again"))
    first_contact.check_host({})
