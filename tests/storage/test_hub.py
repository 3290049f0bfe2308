"""Repositories on the hub: names, commits, what goes wrong; against a hub on loopback."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import huggingface_hub
import pytest
from hub_server import Hub, commit_of, go_offline, serve, use_endpoint

from bert_jax.errors import UserError
from bert_jax.storage import hub
from bert_jax.storage.remote import open_path

FILES = {"config.json": b"{}", "vocab.txt": b"a b c", "model.safetensors": bytes(range(256)) * 400}
NAME = hub.parse_model("hf:org/bert")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with a model, `org/bert`, and an empty cache."""
    with serve(Hub({"org/bert": {"main": FILES, "v1": FILES}})) as server:
        use_endpoint(monkeypatch, server.endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", f"{tmp_path}/cache")
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", f"{tmp_path}/token")
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the client's attempts
        yield server


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hf:a/b", ("a/b", "", "train", "")),
        ("hf:a/b/20231101.simple", ("a/b", "20231101.simple", "train", "")),
        ("hf:a/b:test", ("a/b", "", "test", "")),
        ("hf:a/b/c:test@v1", ("a/b", "c", "test", "v1")),
        ("hf:a/b@refs/convert/parquet", ("a/b", "", "train", "refs/convert/parquet")),
    ],
)
def test_the_grammar_of_datasets(text: str, parts: tuple[str, ...]) -> None:
    name = hub.parse_dataset(text)
    assert (name.repository, name.config, name.split, name.revision) == parts
    assert hub.parse_dataset(str(name)) == name


@pytest.mark.parametrize("text", ["hf:", "hf:a/b/c", "hf:a/b:test", "hf:a/b@", "hf:/b", "a/b"])
def test_what_is_no_name_of_a_model(text: str) -> None:
    with pytest.raises(UserError, match="not a model's name; write hf:OWNER/NAME"):
        hub.parse_model(text)


def test_a_name_means_one_commit_until_it_is_forgotten(server: Hub) -> None:
    assert hub.commit_of(NAME) == commit_of("main")
    assert hub.recorded([NAME]) == {"models/org/bert": commit_of("main")}
    server.move("org/bert", "main", FILES | {"vocab.txt": b"d"})
    assert (hub.fetch(NAME, ["vocab.txt"]) / "vocab.txt").read_bytes() == b"a b c"
    hub.forget()
    assert (hub.fetch(NAME, ["vocab.txt"]) / "vocab.txt").read_bytes() == b"d"
    hub.use({"models/org/bert": commit_of("main")})  # as a run has recorded it
    assert hub.fetch(NAME, ["vocab.txt"]).name == commit_of("main")
    pinned = hub.parse_model(f"hf:org/bert@{commit_of('main')}")
    assert (hub.commit_of(pinned), hub.recorded([pinned])) == (commit_of("main"), {})


def test_files_are_listed_over_pages_and_fetched_by_a_redirect(server: Hub) -> None:
    server.page = 1
    assert hub.files_of(NAME) == sorted(FILES)
    folder = hub.fetch(NAME, ["*.safetensors"])
    assert [path.name for path in folder.glob("*.safetensors")] == ["model.safetensors"]
    assert any(asked.startswith("GET /lfs/") for asked in server.asked)


def test_a_transfer_that_breaks_off_goes_on_where_it_was(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1024)
    server.cut.append("model.safetensors")
    with suppress(UserError):  # the client resumes; releases before 1 when asked again
        hub.fetch(NAME, ["*.safetensors"])
    folder = hub.fetch(NAME, ["*.safetensors"])
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert server.asked[-1].endswith(f" bytes={len(FILES['model.safetensors']) // 2}-")


def offline(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    go_offline(monkeypatch)


def gone(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    use_endpoint(monkeypatch, "http://127.0.0.1:1")


def gated(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    server.gated.add("org/bert")


def other_token(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    server.token = "hf_right"
    monkeypatch.setenv("HF_TOKEN", "hf_wrong_and_secret")


def refusing(status: int):
    def refuse(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        server.refused["."] = status

    return refuse


def cutting(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    server.cut.extend(["model.safetensors"] * 20)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (offline, "is not in the cache, and HF_HUB_OFFLINE is set; unset it to download it"),
        (gone, "cannot be downloaded and is not in the cache ("),
        (gated, "gated; accept its terms on its page, then run `hf auth login` or set HF_TOKEN"),
        (other_token, "the hub refuses the token (401); set HF_TOKEN to a valid one"),
        (refusing(401), "the hub asks for a token (401); run `hf auth login` or set HF_TOKEN"),
        (refusing(403), "no permission (403); give HF_TOKEN of an account that may read it"),
        (refusing(404), "(404"),
        (refusing(429), "the hub asks to wait (429, too many requests); try again later"),
        (refusing(503), "cannot be downloaded and is not in the cache ("),
        (cutting, "cannot be downloaded and is not in the cache ("),
    ],
)
def test_what_the_hub_or_the_network_refuses_is_one_line(
    fault, message: str, server: Hub, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    fault(server, monkeypatch)
    with pytest.raises(UserError) as refused:
        hub.fetch(NAME, ["*"])
    said = str(refused.value)
    assert said.startswith("hf:org/bert: ")
    assert message in said
    assert "\n" not in said
    assert "more information" not in said
    assert not any(secret in said + caplog.text for secret in ("hunter2", "hf_wrong"))


def test_a_token_that_no_header_can_have_is_not_shown(
    server: Hub, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_sécret")
    with pytest.raises(UserError, match=r"^hf:org/bert: the token has characters") as refused:
        hub.fetch(NAME, ["*"])
    assert "cret" not in str(refused.value) + caplog.text
    assert not server.requests


@pytest.mark.parametrize("token", ["hf_short", "hf_" + "aB3" * 12, "of-another.form/1"])
@pytest.mark.parametrize("padding", [1, 170, 190, 196])
def test_messages_of_the_client_have_no_part_of_a_token(
    token: str, padding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    said = hub.line(ValueError(f"{'x' * padding} {token} and hf_{'cD4' * 11}; hf_hub_download"))
    assert said == f"{'x' * padding} … and …; hf_hub_download"[:200]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_cache_that_cannot_be_written_is_named(
    number: int, server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "/cache/blobs/x.incomplete")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", fail)
    with pytest.raises(UserError) as refused:
        hub.fetch(NAME, ["config.json"])
    said = f"hf:org/bert: cannot be stored (/cache/blobs/x.incomplete: {os.strerror(number)})"
    assert str(refused.value).startswith(said)
    assert "HF_HOME" in str(refused.value)


@pytest.mark.parametrize(
    ("address", "revision"),
    [
        ("https://huggingface.co/org/bert", ""),
        ("https://hf.co/datasets/org/bert/tree/main", ""),
        ("hf://org/bert", ""),
        ("hf://datasets/org/bert@main/train.parquet", ""),
        ("https://huggingface.co/org/bert/tree/chck_10M", "@chck_10M"),
        ("https://huggingface.co/org/bert/blob/v1.0/config.json", "@v1.0"),
        ("https://huggingface.co/org/bert/discussions/3", ""),
        ("hf://org/bert@step-24/config.json", "@step-24"),
        ("https://hf.co/datasets/org/bert/tree/refs%2Fconvert%2Fparquet", ""),
    ],
)
def test_an_address_of_the_hub_is_answered_with_the_name(address: str, revision: str) -> None:
    with pytest.raises(UserError, match=rf"a model's name; did you mean hf:org/bert{revision}\?$"):
        hub.parse_model(f"hf:{address.removeprefix('hf:')}")
    with pytest.raises(UserError, match=rf"on the Hugging Face hub it is hf:org/bert{revision}$"):
        open_path(address)


@pytest.mark.parametrize(
    ("name", "message"),
    [("hf:org/none", "no such model; check the name"), ("hf:org/bert@v2", "no such revision")],
)
def test_what_is_not_there(name: str, message: str, server: Hub) -> None:
    with pytest.raises(UserError, match=f"{name}: {message}"):
        hub.commit_of(hub.parse_model(name))


def test_what_the_cache_has_needs_no_network(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = hub.fetch(NAME, ["*"])
    keeps_list = hasattr(huggingface_hub, "get_cached_repo_tree")
    for fault in (gone, offline):
        hub.forget()
        fault(server, monkeypatch)
        assert hub.fetch(NAME, ["*"]) == folder
        if keeps_list:
            assert hub.files_of(NAME) == sorted(FILES)
        else:
            with pytest.raises(UserError, match="cache"):
                hub.files_of(NAME)


FETCH = """
import sys
from bert_jax.storage import hub
print(hub.fetch(hub.parse_model("hf:org/bert"), ["*"]))
"""


@pytest.mark.slow
@pytest.mark.processes
def test_two_processes_fetch_the_same_files_at_once(server: Hub, tmp_path: Path) -> None:
    env = {"HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path / "home"), "PATH": ""}
    env |= {"PYTHONPATH": ":".join(sys.path), "HF_HUB_DISABLE_XET": "1", "HOME": str(tmp_path)}
    words = [sys.executable, "-c", FETCH]
    started = [
        subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    folders = {process.communicate(timeout=120)[0].strip() for process in started}
    assert [process.returncode for process in started] == [0, 0]
    (folder,) = folders
    assert (Path(folder) / "model.safetensors").read_bytes() == FILES["model.safetensors"]
