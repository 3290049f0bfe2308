"""Token types of a pair: those that transformers gives the model, in a folder and in an export."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from exported import random_params
from small import model_config

from bert_jax import cli
from bert_jax.convert.reader import read_folder
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.exit_codes import DONE
from bert_jax.finetune.tasks.encoding import encode
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

LINES = [line for name in dir(str) for line in str(getattr(str, name).__doc__).splitlines()]
TYPED = ["input_ids", "token_type_ids", "attention_mask"]
UNTYPED = ["input_ids", "attention_mask"]
SETTINGS = [
    ({}, True),
    ({"model_input_names": UNTYPED}, False),
    ({"model_input_names": TYPED, "tokenizer_class": "RobertaTokenizer"}, True),
    ({"model_input_names": None, "tokenizer_class": "RobertaTokenizer"}, False),
]


def saved(folder: Path, algorithm: Any = "wordpiece", **settings: Any) -> Path:
    """A model of BERT's layout, as of others, with these settings of its tokenizer."""
    made = Tokenizer.train(LINES, 300, model=algorithm)
    config = dataclasses.replace(model_config(), vocab_size=made.vocab_size)
    export(random_params(config), config, made, folder, card=Card())
    file = folder / "tokenizer_config.json"
    values = json.loads(file.read_text()) | settings
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    (folder / "SHA256SUMS").unlink()
    return folder


def types_of(folder: Path) -> list[int]:
    """Token types of a pair of texts, with which the model here reads it."""
    stored = read_folder(folder)
    types: list[int] = encode(stored.tokenizer, stored.config, [("a", "the")], 32).types.tolist()
    return types


@pytest.mark.parametrize(("settings", "is_typed"), SETTINGS)
def test_the_second_text_has_a_type_if_transformers_gives_it_one(settings, is_typed, tmp_path):
    folder = saved(tmp_path / "in", **settings)
    assert any(types_of(folder)) == is_typed
    command = ["convert", "import", f"--from={folder}", f"--out={tmp_path / 'out'}"]
    assert cli.main(command) == DONE
    assert types_of(tmp_path / "out") == types_of(folder)


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("algorithm", ["wordpiece", "unigram", "byte_bpe"])
@pytest.mark.parametrize("is_typed", [True, False])
def test_an_export_gives_transformers_the_same_types(is_typed, algorithm, tmp_path):
    """Of classes that read tokenizer.json as it is, 5 gives none unless the export names them."""
    from transformers import AutoTokenizer

    folder = saved(tmp_path / "in", algorithm, model_input_names=TYPED if is_typed else UNTYPED)
    command = ["convert", "import", f"--from={folder}", f"--out={tmp_path / 'out'}"]
    assert cli.main(command) == DONE
    for place in (folder, tmp_path / "out"):
        theirs = AutoTokenizer.from_pretrained(place)("a", "the")
        ours = types_of(place)
        assert any(ours) == is_typed
        assert theirs.get("token_type_ids", [0] * len(ours)) == ours


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("algorithm", ["wordpiece", "unigram"])
def test_a_new_export_names_the_types(algorithm, tmp_path):
    from transformers import AutoTokenizer

    folder = saved(tmp_path, algorithm)
    assert AutoTokenizer.from_pretrained(folder)("a", "the")["token_type_ids"] == types_of(folder)
    assert any(types_of(folder))
