"""The tokenizer of a folder without a tokenizer.json: its class, its settings and its form."""

import json
from pathlib import Path

import pytest

from bert_jax.convert.stored_tokenizer import read_tokenizer
from bert_jax.errors import UserError

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TEXT = "Café 東京"


def write(folder: Path, *entries: str, **settings: object) -> None:
    """A folder with these entries after the special tokens."""
    (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *entries]) + "\n", "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, ["cafe", "東", "京"]),
        ({"strip_accents": None, "tokenize_chinese_chars": True}, ["cafe", "東", "京"]),
        ({"strip_accents": False}, ["café", "東", "京"]),
        ({"tokenize_chinese_chars": False}, ["cafe", "東京"]),
        ({"tokenizer_class": "BertTokenizerFast", "strip_accents": False}, ["café", "東", "京"]),
    ],
)
def test_a_vocab_txt_is_read_with_its_settings(settings, wanted, tmp_path):
    write(tmp_path, "cafe", "café", "東", "京", "東京", **settings)
    tokenizer = read_tokenizer(tmp_path, None)
    assert [*map(tokenizer.token, tokenizer.encode_batch([TEXT])[0])] == wanted


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("accents", [None, False, True])
@pytest.mark.parametrize("characters", [False, True])
@pytest.mark.parametrize("lowercase", [False, True])
def test_its_ids_are_those_of_transformers(lowercase, characters, accents, tmp_path):
    from transformers import AutoTokenizer

    entries = [] if lowercase else ["Cafe", "Café"]
    write(
        tmp_path, "cafe", "café", "東", "京", "東京", *entries, tokenizer_class="BertTokenizer",
        do_lower_case=lowercase, tokenize_chinese_chars=characters, strip_accents=accents,
    )  # fmt: skip
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ids = read_tokenizer(tmp_path, None).encode_batch([TEXT])[0].tolist()
    assert ids == theirs(TEXT, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"auto_map": {"AutoTokenizer": ["code.Words", None]}},
            r"own \(auto_map\), which bert-jax",
        ),
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "'BertJapaneseTokenizer' does not split"),
        ({"tokenizer_class": 1}, "tokenizer_class=1 does not split text as BERT's does"),
        ({"strip_accents": "no"}, "strip_accents='no' should be true or false"),
    ],
)
def test_a_vocab_txt_of_another_tokenizer_is_one_line(settings, message, tmp_path):
    write(tmp_path, "cafe", **settings)
    with pytest.raises(UserError, match=message) as error:
        read_tokenizer(tmp_path, None)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("with_json", [False, True])
@pytest.mark.parametrize(
    ("settings", "model"),
    [
        ({"tokenizer_class": "RoFormerTokenizerFast"}, {}),
        ({}, {"model_type": "roformer", "tokenizer_class": "RoFormerTokenizer"}),
        ({}, {"model_type": "roformer"}),
    ],
)
def test_a_vocabulary_for_jieba_is_one_line(settings, model, with_json, tmp_path):
    """As RoFormer's released ones; its class writes a tokenizer.json that splits text as BERT's."""
    write(tmp_path, "東", "京", "東京")
    if with_json:
        (tmp_path / "tokenizer.json").write_bytes(read_tokenizer(tmp_path, None).json)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(json.dumps(model))
    if with_json and "tokenizer_class" not in settings | model:  # it may be any tokenizer
        assert read_tokenizer(tmp_path, None).vocab_size == 8
        return
    with pytest.raises(UserError, match="RoFormerTokenizer splits text with jieba, which") as error:
        read_tokenizer(tmp_path, None)
    assert "\n" not in str(error.value)


def test_a_roformer_with_the_tokenizer_of_bert_is_read(tmp_path):
    write(tmp_path, "cafe", tokenizer_class="BertTokenizer")
    (tmp_path / "config.json").write_text('{"model_type": "roformer"}')
    assert read_tokenizer(tmp_path, None).vocab_size == 6


def test_config_json_may_name_the_class_of_the_tokenizer(tmp_path):
    write(tmp_path, "cafe")
    (tmp_path / "config.json").write_text('{"tokenizer_class": "BertJapaneseTokenizer"}')
    with pytest.raises(UserError, match="tokenizer_class='BertJapaneseTokenizer' does not split"):
        read_tokenizer(tmp_path, None)


def test_cased_entries_say_how_the_folder_is_made_right(tmp_path):
    write(tmp_path, "cafe", "Café", do_lower_case=True)
    with pytest.raises(UserError, match='"do_lower_case": false in the tokenizer_config') as error:
        read_tokenizer(tmp_path, None)
    assert "\n" not in str(error.value)
    write(tmp_path, "cafe", "Café", do_lower_case=False)
    tokenizer = read_tokenizer(tmp_path, None)
    assert tokenizer.token(tokenizer.encode_batch(["Café"])[0][0]) == "Café"


def test_code_of_a_tokenizer_is_refused_beside_a_tokenizer_json(tmp_path):
    write(tmp_path, "cafe")
    (tmp_path / "tokenizer.json").write_bytes(read_tokenizer(tmp_path, None).json)
    write(tmp_path, "cafe", auto_map={"AutoTokenizer": ["code.Words", None]})
    with pytest.raises(UserError, match=r"needs code of its own \(auto_map\)"):
        read_tokenizer(tmp_path, None)


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_a_bpe_of_characters_gives_the_ids_of_transformers(tmp_path):
    """As herBERT's, in vocab.json and merges.txt like RoBERTa's BPE of bytes."""
    from tokenizers import CharBPETokenizer
    from transformers import AutoTokenizer

    lines = ["Zażółć gęślą jaźń.", "Wpłynąłem na suchego przestwór oceanu,"]
    trainer = CharBPETokenizer(bert_normalizer=False)
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer.train_from_iterator(lines * 5, vocab_size=200, special_tokens=specials)
    trainer.save_model(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "HerbertTokenizer"}')
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), read_tokenizer(tmp_path, None)
    for line in lines:
        ids = theirs(line, add_special_tokens=False)["input_ids"]
        assert ours.encode_batch([line])[0].tolist() == ids
        assert len(ids) < len(line) / 2
    assert list(ours.special) == theirs.convert_tokens_to_ids(
        ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    )
