"""Tokens that a folder adds to a vocabulary: their ids and where they match, as in transformers."""

import json
from pathlib import Path
from typing import Any

import pytest

from bert_jax.convert.stored_tokenizer import read_tokenizer
from bert_jax.convert.tokenizer_files import tokenizer_files
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ENTRIES = [*SPECIALS, "hello", "world", "new", "a", "b", ",", "<", ">", "ent", "e", "##n", "##t"]
N = len(ENTRIES)
SETTINGS, ADDED, SPECIAL = "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"
TEXTS = [
    "hello <ent> world", "hello<ent>world", "<ENT> hello", " <ent>  hello [MASK] <e1>s newtok",
    "NEWTOK , newtoks", "[CLS] a [SEP] b", "<bos> a <e2> b <ent>,",
]  # fmt: skip


def token(content: str, **settings: bool) -> dict[str, Any]:
    usual = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
    return {"content": content, **usual, "normalized": True, **settings}


FIVE = {str(i): token(name, special=True, normalized=False) for i, name in enumerate(SPECIALS)}
STRIPPED = token("<ent>", lstrip=True, rstrip=True, normalized=False, special=True)
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "a file": {ADDED: {"newtok": N, "<ent>": N + 1}},
    "a file and special ones": {
        ADDED: {"newtok": N, "<ent>": N + 1},
        SPECIAL: {"bos_token": "<bos>", "additional_special_tokens": ["<ent>", "<e2>"]},
    },
    "a list": {
        SETTINGS: {
            "added_tokens_decoder": {
                **FIVE, str(N): STRIPPED, str(N + 1): token("newtok", single_word=True),
                str(N + 2): token("<e1>"),
            },
        },
    },
    "other settings of a special token": {
        SETTINGS: {
            "added_tokens_decoder": {
                **FIVE, "4": token("[MASK]", lstrip=True, special=True, normalized=False),
            },
            "additional_special_tokens": ["<ent>", "<e1>"],
            "bos_token": "<bos>",
        },
    },
    "a map alone": {SPECIAL: {"mask_token": token("[MASK]", lstrip=True, normalized=False)}},
    "a token of a model": {SETTINGS: {"ent_token": "<ent>", "extra_special_tokens": ["<e1>"]}},
    "an entry of the vocabulary": {SETTINGS: {"added_tokens_decoder": {"7": token("new")}}},
}  # fmt: skip


def write(folder: Path, files: dict[str, dict[str, Any]]) -> Path:
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(ENTRIES) + "\n")
    (folder / "config.json").write_text('{"model_type": "bert"}')
    settings = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
    for name, values in {SETTINGS: {}, **files}.items():
        (folder / name).write_text(json.dumps(settings | values if name == SETTINGS else values))
    return folder


def exported(tokenizer: Tokenizer, folder: Path) -> Path:
    folder.mkdir()
    for name, data in tokenizer_files(tokenizer, 128).items():
        (folder / name).write_bytes(data)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return folder


@pytest.mark.parametrize("case", CASES)
def test_an_export_has_the_same_tokens_in_every_form(case, tmp_path):
    ours = read_tokenizer(write(tmp_path / "given", CASES[case]), None)
    out = exported(ours, tmp_path / "out")
    assert read_tokenizer(out, None).json == ours.json
    lines = (out / "vocab.txt").read_text().splitlines()
    assert lines == ENTRIES
    more = json.loads((out / ADDED).read_text()) if (out / ADDED).exists() else {}
    assert sorted(more.values()) == [*range(N, ours.vocab_size)]
    (out / "tokenizer.json").unlink()  # as read by releases that know only the older files
    assert read_tokenizer(out, None).vocab_size == ours.vocab_size


def test_tokens_are_found_where_their_settings_say(tmp_path):
    tokenizer = read_tokenizer(write(tmp_path / "given", CASES["a list"]), None)
    assert tokenizer.vocab_size == N + 3
    found = tokenizer.encode_texts(["hello <ent>  world newtoks newtok <E1>"])[0].tolist()
    assert found == [5, N, 6, 1, N + 1, N + 2]


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("case", CASES)
def test_ids_are_those_of_transformers(case, tmp_path):
    """Of the folder, of an export, and of the folder as transformers writes it again."""
    from transformers import AutoTokenizer

    given = write(tmp_path / "given", CASES[case])
    ours = read_tokenizer(given, None)
    theirs = AutoTokenizer.from_pretrained(given)
    theirs.save_pretrained(tmp_path / "saved")
    for folder in (given, exported(ours, tmp_path / "out"), tmp_path / "saved"):
        ours, theirs = read_tokenizer(folder, None), AutoTokenizer.from_pretrained(folder)
        assert ours.vocab_size == len(theirs)
        ids = theirs(TEXTS, add_special_tokens=False)["input_ids"]
        assert [found.tolist() for found in ours.encode_texts(TEXTS)] == ids


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({ADDED: {"<ent>": N + 1}}, f"'<ent>' has the id {N + 1} among the added tokens, but {N}"),
        ({ADDED: {"hello": N}}, f"'hello' has the id {N} among the added tokens, but 5 in"),
        ({ADDED: {"<ent>": "x"}}, "'x' is not the id of a token"),
        ({ADDED: {"<ent>": N, "<e1>": N}}, "two tokens have one id"),
        ({SETTINGS: {"added_tokens_decoder": {"x": token("a")}}}, "'x' is not the id of a token"),
        ({SETTINGS: {"added_tokens_decoder": []}}, r"added_tokens_decoder=\[\] should be tokens"),
        ({SETTINGS: {"added_tokens_decoder": {"3": {}}}}, "{} is not a token"),
        ({SETTINGS: {"added_tokens_decoder": {"3": token("a", lstrip=1)}}}, "'a' has lstrip=1"),
        ({SETTINGS: {"cls_token": "hello"}}, r"cls_token='hello' is not supported; the"),
        ({SPECIAL: {"sep_token": "hello"}}, r"sep_token='hello' is not supported"),
        ({SETTINGS: {"additional_special_tokens": 5}}, "additional_special_tokens=5 should be a"),
        ({SPECIAL: {"extra_special_tokens": "abc"}}, "extra_special_tokens='abc' should be a li"),
        ({SETTINGS: {"additional_special_tokens": [["a"]]}}, r"\['a'\] is not a token"),
        (
            {SETTINGS: {"extra_special_tokens": [["a"]]}, SPECIAL: {"extra_special_tokens": ["b"]}},
            r"\['a'\] is not a token",
        ),
        ({SETTINGS: {"extra_special_tokens": {"image": ["x"]}}}, r"\['x'\] is not a token"),
        ({SPECIAL: {"bos_token": ["a"]}}, r"\['a'\] is not a token"),
        ({SETTINGS: {"bos_token": {"content": {}}}}, "is not a token"),
        ({SETTINGS: {"bos_token": "\ud800"}}, r"'\\ud800' is not a token"),
        ({SETTINGS: {"added_tokens_decoder": {"9" * 5000: token("a")}}}, "9' is not the id of a t"),
        ({ADDED: {"\ud800": N}}, r"'\\ud800'.* is not a token"),
        ({ADDED: {"<ent>": [1]}}, r"\[1\] is not the id of a token"),
    ],
)  # fmt: skip
def test_a_token_that_would_be_another_is_one_line(files, message, beside, tmp_path):
    """Also beside a tokenizer.json, which lacks it."""
    folder = write(tmp_path / "given", files)
    if beside:
        plain = read_tokenizer(write(tmp_path / "plain", {}), None)
        (folder / "tokenizer.json").write_bytes(plain.json)
    with pytest.raises(UserError, match=message) as error:
        read_tokenizer(folder, None)
    assert "\n" not in str(error.value)


def test_a_tokenizer_json_gets_the_tokens_that_it_lacks_and_keeps_its_bytes_otherwise(tmp_path):
    plain = read_tokenizer(write(tmp_path / "plain", {}), None)
    folder = write(tmp_path / "given", {ADDED: {"<ent>": N}})
    (folder / "tokenizer.json").write_bytes(plain.json)
    assert read_tokenizer(folder, None).vocab_size == N + 1
    (folder / ADDED).unlink()
    assert read_tokenizer(folder, None).json == plain.json
