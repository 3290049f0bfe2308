"""Files of an export that change: before they are read, or before an export replaces them."""

import dataclasses
import os
from pathlib import Path

import pytest
from exported import base_config, random_params

from bert_jax.convert import weight_files
from bert_jax.convert.reader import read_folder
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card


def flip_in_time(file: Path) -> None:
    """Changes a bit in place; the size and the time of modification stay."""
    before, data = file.stat(), bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def chmod(file: Path) -> None:
    file.chmod(0o640)


@pytest.mark.parametrize("change", [flip_in_time, chmod])
def test_weights_are_those_that_were_checked(
    change, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = dataclasses.replace(base_config(), vocab_size=tokenizer.vocab_size, **sizes)
    export(random_params(config), config, tokenizer, tmp_path / "out", card=Card())
    load = weight_files._load_safetensors

    def changing(file: Path) -> object:
        change(file)
        return load(file)

    monkeypatch.setattr(weight_files, "_load_safetensors", changing)
    if change is chmod:
        assert read_folder(tmp_path / "out").tensors
        return
    with pytest.raises(UserError, match=r"model\.safetensors: changed while it was in use"):
        read_folder(tmp_path / "out")


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "vocab.txt", "1_Dense/own.txt", "", None]
)
def test_an_export_that_was_changed_is_not_replaced(name, tokenizer, tmp_path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = dataclasses.replace(base_config(), vocab_size=tokenizer.vocab_size, **sizes)
    out, params = tmp_path / "out", random_params(config)
    export(params, config, tokenizer, out, card=Card())
    export(params, config, tokenizer, out, card=Card())  # nothing was changed
    if name is None:  # as the message for a changed folder says
        (out / "SHA256SUMS").unlink()
    elif not name:  # one that an export may have, but this one has not
        (out / "added_tokens.json").write_text("{}")
    else:
        (out / name).parent.mkdir(exist_ok=True)
        data = (out / name).read_bytes() if (out / name).exists() else b"a"
        (out / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    before = {path: path.is_file() and path.read_bytes() for path in out.rglob("*")}
    problem = f"{name or 'added_tokens.json'}: was edited" if name is not None else "is not an exp"
    with pytest.raises(UserError, match=problem):
        export(params, config, tokenizer, out, card=Card())
    assert {path: path.is_file() and path.read_bytes() for path in out.rglob("*")} == before
