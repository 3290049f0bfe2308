"""The tokenizer of a folder without a tokenizer.json: its class, its settings and its form."""

import json
from pathlib import Path

import pytest
from framed import framed

from bert_jax.convert.stored_tokenizer import check_frame, read_tokenizer
from bert_jax.data_pipeline.tokenizer.byte_level_bpe import from_files
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
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


CASED = ("hello", "Hello", "cafe", "café", "Café", "Cafe", "東", "京", "東京")
APPLY = [
    "Bert", "DistilBert", "Electra", "Funnel", "LayoutLM", "Lxmert", "MobileBert", "MPNet",
    "SqueezeBert", "Splinter",
]  # fmt: skip
SETTINGS: list[dict[str, object]] = [
    {"do_lower_case": False},
    {"do_lower_case": True},
    {"do_lower_case": False, "strip_accents": True},
    {"do_lower_case": True, "tokenize_chinese_chars": False},
]


def write_json(folder: Path, lowercase: bool, **settings: object) -> None:
    """A tokenizer.json beside these settings."""
    write(folder, *CASED, do_lower_case=False)
    spec = json.loads(read_tokenizer(folder, None).json)
    spec["normalizer"]["lowercase"] = lowercase
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def pieces(folder: Path, text: str = f"Hello {TEXT}") -> list[str]:
    tokenizer = read_tokenizer(folder, None)
    return [*map(tokenizer.token, tokenizer.encode_texts([text])[0])]


@pytest.mark.parametrize("name", [*APPLY, "MobileBertTokenizerFast", None])
def test_settings_hold_before_a_tokenizer_json(name, tmp_path):
    kind = (
        {"tokenizer_class": name if name.endswith("Fast") else f"{name}Tokenizer"} if name else {}
    )
    write_json(tmp_path, True, do_lower_case=False, **kind)
    assert pieces(tmp_path) == ["Hello", "Café", "東", "京"]
    write_json(tmp_path, False, do_lower_case=True, tokenize_chinese_chars=False, **kind)
    assert pieces(tmp_path) == ["hello", "cafe", "東京"]


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", [*APPLY, "PreTrained"])
def test_they_hold_as_in_transformers(name, settings, lowercase, tmp_path):
    from transformers import AutoTokenizer

    kind = f"{name}Tokenizer{'Fast' if name == 'PreTrained' else ''}"
    write_json(tmp_path, lowercase, tokenizer_class=kind, **settings)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    wanted = theirs(f"Hello {TEXT}", add_special_tokens=False)["input_ids"]
    assert pieces(tmp_path) == theirs.convert_ids_to_tokens(wanted)


@pytest.mark.parametrize("kind", ["ConvBertTokenizer", "OwnTokenizerFast", ["BertTokenizer"]])
def test_settings_of_a_class_that_may_ignore_them_must_be_those_of_the_tokenizer_json(
    kind, tmp_path
):
    write_json(tmp_path, True, tokenizer_class=kind, do_lower_case=False)
    with pytest.raises(
        UserError, match=r"do_lower_case=False, but tokenizer\.json has lower"
    ) as error:
        read_tokenizer(tmp_path, None)
    assert "\n" not in str(error.value)
    write_json(tmp_path, True, tokenizer_class=kind, do_lower_case=True)
    assert pieces(tmp_path) == ["hello", "cafe", "東", "京"]


PREFIX = ["Roberta", "Bart", "Deberta", "GPT2", "LED", "Longformer", "Luke", "Mvp"]
SPECIAL = {
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>",
    "pad_token": "<pad>", "cls_token": "<s>", "mask_token": "<mask>",
}  # fmt: skip


def write_bytes(folder: Path, prefix: bool, **settings: object) -> None:
    """A tokenizer.json of a BPE of bytes beside these settings."""
    from tokenizers import ByteLevelBPETokenizer

    trainer = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer.train_from_iterator(["hello hello a hello"], vocab_size=270, special_tokens=specials)
    trainer.save_model(str(folder))
    data = from_files(folder / "vocab.json", folder / "merges.txt", add_prefix_space=prefix)
    (folder / "tokenizer.json").write_bytes(data)
    (folder / "tokenizer_config.json").write_text(json.dumps(SPECIAL | settings))


@pytest.mark.parametrize("name", [*PREFIX, None])
@pytest.mark.parametrize("prefix", [False, True])
def test_a_space_before_a_text_is_set_beside_a_tokenizer_json(prefix, name, tmp_path):
    kind = {"tokenizer_class": f"{name}Tokenizer"} if name else {}
    write_bytes(tmp_path, not prefix, add_prefix_space=prefix, **kind)
    assert pieces(tmp_path, "hello") == (["Ġhello"] if prefix else ["hello"])


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", PREFIX)
@pytest.mark.parametrize("prefix", [False, True])
def test_it_is_set_as_in_transformers(prefix, name, tmp_path):
    from transformers import AutoTokenizer

    write_bytes(tmp_path, not prefix, add_prefix_space=prefix, tokenizer_class=f"{name}Tokenizer")
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    wanted = theirs("hello", add_special_tokens=False)["input_ids"]
    assert pieces(tmp_path, "hello") == theirs.convert_ids_to_tokens(wanted)


@pytest.mark.parametrize("name", ["Blenderbot", "Own"])
def test_a_class_that_may_not_set_it_is_one_line(name, tmp_path):
    write_bytes(tmp_path, False, add_prefix_space=True, tokenizer_class=f"{name}Tokenizer")
    with pytest.raises(UserError, match=r"add_prefix_space=True, but tokenizer\.json") as error:
        read_tokenizer(tmp_path, None)
    assert "\n" not in str(error.value)


def change(folder: Path, **parts: object) -> None:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | parts))


@pytest.mark.parametrize("prefix", [False, True])
def test_what_one_release_of_transformers_applies_must_be_as_stored(prefix, tmp_path):
    """A space in a sequence is set by 5 alone, that of the general class by 4 alone."""
    message = (
        r"add_prefix_space=.*, but tokenizer\.json does as with .* between transformers 4 and 5"
    )
    write_bytes(tmp_path, prefix, tokenizer_class="PreTrainedTokenizerFast")
    settings = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": not prefix}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(SPECIAL | settings))
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    digits = {"type": "Digits", "individual_digits": True}
    parts = [digits, spec["pre_tokenizer"]]
    change(tmp_path, pre_tokenizer={"type": "Sequence", "pretokenizers": parts})
    with pytest.raises(UserError, match=message):
        read_tokenizer(tmp_path, None)
    general = {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": not prefix}
    write_bytes(tmp_path, prefix, **general)
    with pytest.raises(UserError, match=message):
        read_tokenizer(tmp_path, None)
    write_bytes(tmp_path, prefix, **(general | {"add_prefix_space": prefix}))
    assert pieces(tmp_path, "hello") == ["Ġhello" if prefix else "hello"]


@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}, {"type": "Lowercase"}])
def test_a_normalizer_of_another_kind_does_what_the_settings_say(normalizer, tmp_path):
    """transformers 5 makes one by the settings, 4 takes that of the file."""
    lowercases = normalizer == {"type": "Lowercase"}
    for asked in (lowercases, None, not lowercases):
        settings = {} if asked is None else {"do_lower_case": asked}
        (tmp_path / "tokenizer.json").unlink(missing_ok=True)
        write_json(tmp_path, True, tokenizer_class="BertTokenizer", **settings)
        change(tmp_path, normalizer=normalizer)
        if asked in (lowercases, None):
            assert pieces(tmp_path, "Hello") == ["hello" if lowercases else "Hello"]
        else:
            with pytest.raises(
                UserError, match=rf"do_lower_case={asked}, but tokenizer\.json does"
            ):
                read_tokenizer(tmp_path, None)


@pytest.mark.parametrize(
    ("settings", "parts", "is_said"),
    [
        ({"tokenizer_class": "BertTokenizer"}, {}, False),
        ({"tokenizer_class": "BertTokenizer"}, {"pre_tokenizer": {"type": "Whitespace"}}, True),
        (
            {"tokenizer_class": "TokenizersBackend"},
            {"pre_tokenizer": {"type": "Whitespace"}},
            False,
        ),
    ],
)
def test_a_class_that_transformers_5_makes_anew_is_said(settings, parts, is_said, tmp_path, caplog):
    write_json(tmp_path, True, do_lower_case=True, **settings)
    change(tmp_path, **parts)
    with caplog.at_level("INFO"):
        caplog.clear()
        read_tokenizer(tmp_path, None)
    line = "text is read as it says; transformers 5 makes BertTokenizer from its entries"
    assert any(line in message for message in caplog.messages) == is_said


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, ["do_lower_case: False, as it says; transformers takes True"]),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, []),
        ({"do_lower_case": False}, []),
    ],
)
def test_what_transformers_does_without_a_setting_is_said(settings, said, tmp_path, caplog):
    write_json(tmp_path, False, **settings)
    with caplog.at_level("INFO"):
        caplog.clear()
        assert pieces(tmp_path)[0] == "Hello"
    assert [line.partition("nothing beside it says ")[2] for line in caplog.messages] == said


def write_framed(folder: Path, between: str | None, **settings: object) -> Tokenizer:
    """A folder with a tokenizer.json of another post-processor, see `framed`."""
    tokenizer = framed(Tokenizer.from_vocab([*SPECIALS, "a"]), between=between)
    (folder / "tokenizer.json").write_bytes(tokenizer.json)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer


@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "TokenizersBackend"])
def test_a_tokenizer_that_frames_no_text_is_one_line(kind, tmp_path):
    tokenizer = write_framed(tmp_path, None, tokenizer_class=kind)
    message = r"tokenizer\.json: its post_processor does not read a text as \[CLS\] text \[SEP\]"
    with pytest.raises(UserError, match=message) as error:
        check_frame(tmp_path, tokenizer, None)
    assert "\n" not in str(error.value)
    check_frame(tmp_path, tokenizer, {})  # of an export that an earlier version wrote


def test_a_modernbert_without_a_class_has_the_one_that_frames_nothing(tmp_path):
    tokenizer = write_framed(tmp_path, None)
    check_frame(tmp_path, tokenizer, None)
    (tmp_path / "config.json").write_text('{"model_type": "modernbert"}')
    with pytest.raises(UserError, match="its post_processor does not read a text as"):
        check_frame(tmp_path, tokenizer, None)


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer_class": "BertTokenizer"},
        {"tokenizer_class": "TokenizersBackend", "add_bos_token": True, "add_eos_token": True},
    ],
)
def test_one_that_its_class_frames_is_read(settings, tmp_path):
    check_frame(tmp_path, write_framed(tmp_path, None, **settings), None)


def test_another_frame_of_pairs_alone_is_said(tmp_path, caplog):
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    tokenizer = write_framed(tmp_path, "", **kind)
    with caplog.at_level("WARNING"):
        check_frame(tmp_path, write_framed(tmp_path, "[SEP] [SEP]", **kind), None)
    assert not caplog.messages
    with caplog.at_level("WARNING"):
        check_frame(tmp_path, tokenizer, None)
    (line,) = caplog.messages
    assert "joins pairs in another way than [CLS] text [SEP] text [SEP]" in line
