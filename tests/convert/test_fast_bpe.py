"""PhoBERT's tokenizer, vocab.txt and bpe.codes: its ids are those of transformers."""

import json
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from exported import random_params
from layout_models import layout_config

from bert_jax.convert.stored_tokenizer import read_tokenizer
from bert_jax.errors import UserError
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

SPECIALS = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]


def lines() -> list[str]:
    """Of Python's language reference."""
    pages = [topics[name] for name in sorted(topics)]
    return [line for page in pages for line in page.splitlines() if line.strip()][:4000]


def write_tokenizer(folder: Path, *, only_found: bool) -> None:
    """The files of a tokenizer trained on every second line, as fastBPE and fairseq write them.

    Args:
        only_found: as fairseq, list the pieces that are in the encoded text five times, not those
            that merges make on the way to them.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    trained.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=1500, end_of_word_suffix="</w>", show_progress=False)
    trained.train_from_iterator(lines()[::2], trainer)
    model = json.loads(trained.to_str())["model"]
    found = Counter(t for text in trained.encode_batch(lines()[::2]) for t in text.tokens)
    names = [name for name in model["vocab"] if not only_found or found[name] >= 5]
    names.sort(key=lambda name: (len(name), name))
    entries = [n[:-4] if n.endswith("</w>") else f"{n}@@" for n in names]
    text = "".join(f"{entry} {2000 - i}\n" for i, entry in enumerate(entries))
    (folder / "vocab.txt").write_text(text, "utf-8")
    text = "".join(f"{a} {b} {3000 - i}\n" for i, (a, b) in enumerate(model["merges"]))
    (folder / "bpe.codes").write_text(text, "utf-8")
    values = {"model_type": "roberta", "tokenizer_class": "PhobertTokenizer"}
    (folder / "config.json").write_text(json.dumps(values))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path, only_found=False)
    return tmp_path


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("only_found", [False, True])
def test_its_ids_are_those_of_transformers_on_a_thousand_lines(only_found, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = tmp_path
    write_tokenizer(folder, only_found=only_found)
    ours, theirs = read_tokenizer(folder, None), AutoTokenizer.from_pretrained(folder)
    assert type(theirs).__name__ == "PhobertTokenizer"
    assert ours.has_unknown_pieces == only_found
    text = [*lines()[:998], "\N{CJK UNIFIED IDEOGRAPH-6771}a unknown\N{SNOWMAN}", "a"]
    unknown = 0
    for line, found in zip(text, ours.encode_batch(text), strict=True):
        assert found.tolist() == theirs(line, add_special_tokens=False)["input_ids"], line
        unknown += (found == ours.special.unk).sum()
    assert unknown > (100 if only_found else 3)
    assert len(text) == 1000
    assert list(ours.special) == theirs.convert_tokens_to_ids(SPECIALS)
    assert ours.vocab_size == len(theirs)
    words = "bert-jax trains a model"
    assert ours.decode(ours.encode_batch([words])[0]) == words
    config = layout_config("roberta", vocab_size=ours.vocab_size)
    export(random_params(config, ("mlm",)), config, ours, folder / "out", card=Card())
    exported = AutoTokenizer.from_pretrained(folder / "out")
    for line in text[:50]:
        assert exported(line)["input_ids"] == theirs(line)["input_ids"]
    pair = "a model", "a <mask> run"
    assert exported(*pair)["input_ids"] == theirs(*pair)["input_ids"]
    (ids,) = ours.encode_texts([pair[1]])
    assert ids.tolist() == theirs(pair[1], add_special_tokens=False)["input_ids"]
    assert read_tokenizer(folder / "out", None).json == ours.json
    (folder / "out/tokenizer.json").unlink()  # the other files hold the same
    if only_found:
        assert read_tokenizer(folder / "out", None).json == ours.json


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("bpe.codes", lambda text: f"#version: 0.2\n{text}", "line 1 is not two pieces and a coun"),
        ("vocab.txt", lambda text: f"{text}xin\n", "is not an entry and a count; download it aga"),
        ("vocab.txt", lambda text: text * 2, "has an entry twice"),
        ("config.json", lambda text: text.replace("Pho", "X"), "but tokenizer_class='XbertTokeniz"),
    ],
)
def test_what_cannot_be_converted_is_one_line(file, change, says, folder: Path) -> None:
    (folder / file).write_text(change((folder / file).read_text("utf-8")), "utf-8")
    with pytest.raises(UserError, match=says) as error:
        read_tokenizer(folder, None)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("file", ["bpe.codes", "vocab.txt"])
def test_files_that_are_not_utf_8_or_not_there_are_one_line(file: str, folder: Path) -> None:
    (folder / file).write_bytes(b"a \xff 1\n")
    with pytest.raises(UserError, match=f"{file}: not UTF-8 at byte 2"):
        read_tokenizer(folder, None)
    (folder / "vocab.txt").unlink()
    (folder / "bpe.codes").write_text("a b 1\n")
    with pytest.raises(UserError, match=r"vocab\.txt: cannot be read .* needs both files"):
        read_tokenizer(folder, None)
