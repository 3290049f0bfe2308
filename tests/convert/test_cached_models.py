"""Models of the hub where it does not answer, of which the cache may have a part.

transformers downloads file by file: nothing in its cache then says which others there are.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import Hub, go_offline, serve, use_endpoint
from huggingface_hub import hf_hub_download

from bert_jax.convert.hub_model import download
from bert_jax.errors import UserError

NAME = "hf:org/vectors"
FILES = ("config.json", "modules.json", "tokenizer.json", "model.safetensors")
UNNOTICED = "such as modules.json of a sentence encoder, go unnoticed"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    files = dict.fromkeys(FILES, b"{}")
    with serve(Hub({"org/vectors": {"main": files}})) as server:
        use_endpoint(monkeypatch, server.endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", f"{tmp_path}/cache")
        yield server


def test_a_model_without_its_weights_is_not_in_the_cache(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf_hub_download("org/vectors", "config.json")
    go_offline(monkeypatch)
    where = f"^{NAME}/model.safetensors: is not in the cache, and HF_HUB_OFFLINE is set; unset it"
    with pytest.raises(UserError, match=where):
        download(NAME)
    assert {path.name for path in download(NAME, weights=False).iterdir()} == {"config.json"}


def test_with_its_weights_it_is_taken_with_a_warning(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for file in FILES:
        if file != "modules.json":
            hf_hub_download("org/vectors", file)
    go_offline(monkeypatch)
    folder = download(NAME)
    assert {path.name for path in folder.iterdir()} == {*FILES} - {"modules.json"}
    assert f"{NAME}, list of its files: is not in the cache" in caplog.text
    assert UNNOTICED in caplog.text


def test_nothing_is_said_of_a_model_that_was_downloaded_whole(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    download(NAME)
    go_offline(monkeypatch)
    assert {path.name for path in download(NAME).iterdir()} == {*FILES}
    assert not caplog.text
