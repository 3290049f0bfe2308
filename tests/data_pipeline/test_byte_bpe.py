"""Byte-level BPE: trained vocabularies, their bytes, and transformers' ids."""

import itertools
import json
import os
import random
import subprocess
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from bert_jax import cli
from bert_jax.convert.tokenizer_files import tokenizer_files
from bert_jax.data_pipeline.store.store import open_store
from bert_jax.data_pipeline.tokenizer.byte_level_bpe import SpecialTokens
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError

KINDS: Sequence[SpecialTokens] = get_args(SpecialTokens)
SIZE = 310
WORDS = [
    "".join(part)
    for part in itertools.product(
        ("D", "m", "uli", "ž"), ("a", "om", "est"), ("", "y", "ách", "12")
    )
]
HOSTILE = (
    "dom [MASK] ulice", "dom[MASK]", "[MASK]", "  [MASK]  dom", "dom <mask> ulice", "<mask>.",
    "[CLS] dom [SEP]", "<s>dom</s>", "", " ", "  two  spaces ", "tab\tand\nnew line\r\n",
    "\u00a0\u2003wide", "e\u0301 is not \u00e9", "\u1100\u1161 \uac00", "emoji 👩‍💻 ħ 𝔘",
    "can't won't I'll", "\x00\x01 controls \x7f", "".join(map(chr, range(256))), "ďaleko\u200b",
)  # fmt: skip


def texts(seed: int = 0) -> list[str]:
    """Documents with many pairs of equal counts."""
    rng = random.Random(seed)
    return [
        "\n".join(" ".join(rng.choices(WORDS, k=8)) + "." for _ in range(rng.randint(1, 4)))
        for _ in range(300)
    ]


def trained(kind: SpecialTokens = "modernbert", size: int = SIZE) -> Tokenizer:
    return Tokenizer.train(texts(), size, model="byte_bpe", special_tokens=kind)


PROGRAM = """
import sys
from test_byte_bpe import SIZE, Tokenizer, texts
own = texts()
if sys.argv[1] == "backwards":
    own = own[::-1]
sys.stdout.buffer.write(Tokenizer.train(own, SIZE, model="byte_bpe").json)
"""


@pytest.mark.slow
@pytest.mark.processes
def test_every_process_and_order_gives_the_same_bytes() -> None:
    for order, threads, seed in (("forwards", "1", "1"), ("backwards", "1", "2"), ("", "7", "3")):
        env = {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": seed}
        made = subprocess.run(
            [sys.executable, "-c", PROGRAM, order], cwd=Path(__file__).parent,
            env=os.environ | env, capture_output=True, check=True, timeout=300,
        )  # fmt: skip
        assert made.stdout == trained().json


def test_the_order_of_texts_and_of_lines_does_not_matter() -> None:
    lines = [line for text in texts() for line in text.splitlines()]
    random.Random(5).shuffle(lines)
    assert Tokenizer.train(lines, SIZE, model="byte_bpe").json == trained().json


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_have_the_ids_of_their_models(kind: SpecialTokens) -> None:
    tokenizer = trained(kind)
    last = tokenizer.vocab_size - 1
    assert last == SIZE - 1
    names = list(map(tokenizer.token, tokenizer.special))
    if kind == "modernbert":
        assert tuple(tokenizer.special) == (0, 1, 2, 3, 4)
        assert names == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    else:
        assert tuple(tokenizer.special) == (1, 3, 0, 2, last)
        assert names == ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    assert tokenizer.word_starts.any()


@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_comes_back(kind: SpecialTokens) -> None:
    """Also those that no UTF-8 text has: 256 entries are bytes."""
    tokenizer = trained(kind)
    alphabet = [c for c in json.loads(tokenizer.json)["model"]["vocab"] if len(c) == 1]
    assert len(alphabet) == 256
    points = [*range(0x800), *range(0x800, 0xD800, 97), *range(0xE000, 0x110000, 997)]
    text = "".join(map(chr, points))
    seen = set(text.encode())
    assert len(seen) == 256 - len({0xC0, 0xC1, *range(0xF5, 0x100)})
    if kind == "modernbert":
        text = unicodedata.normalize("NFC", text)
    (ids,) = tokenizer.encode_texts([text])
    assert tokenizer.decode(ids.tolist()) == text
    assert tokenizer.special.unk not in ids


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_has_the_same_ids(kind: SpecialTokens, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = trained(kind)
    for name, data in tokenizer_files(tokenizer, 128).items():
        (tmp_path / name).write_bytes(data)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.pad_token_id, theirs.unk_token_id) == tokenizer.special[:2]
    assert (theirs.cls_token_id, theirs.sep_token_id) == tokenizer.special[2:4]
    assert theirs.mask_token_id == tokenizer.special.mask
    assert len(theirs) == tokenizer.vocab_size
    cases = [*HOSTILE, *texts(1)[:50]]
    for text, ids in zip(cases, tokenizer.encode_texts(cases), strict=True):
        want = theirs(text, add_special_tokens=False)["input_ids"]
        assert ids.tolist() == want, text
        framed = [tokenizer.special.cls, *want, tokenizer.special.sep]
        assert theirs(text)["input_ids"] == framed, text


@pytest.mark.parametrize("kind", KINDS)
def test_the_mask_takes_the_space_before_it(kind: SpecialTokens) -> None:
    tokenizer = trained(kind)
    mask = tokenizer.token(tokenizer.special.mask)
    spaced, joined = tokenizer.encode_texts([f"dom {mask}", f"dom{mask}"])
    np.testing.assert_array_equal(spaced, joined)
    (pretraining,) = tokenizer.encode_batch([f"dom {mask}"])  # there it is text
    assert tokenizer.special.mask not in pretraining


def test_one_command_trains_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From files in any order; the store that is built with it masks whole words."""
    half = len(texts()) // 2
    for name, part in (("a", texts()[:half]), ("b", texts()[half:])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text("\n\n".join(part), encoding="utf-8")
    words = ["data", "tokenizer", "--model=byte_bpe", f"--vocab_size={SIZE}"]
    for out, names in (("one", "ab"), ("other", "ba")):
        sources = [f"--source=lines:{tmp_path / name},name={name}" for name in names]
        assert cli.main([*words, *sources, f"--out={tmp_path / out}.json"]) == 0
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "other.json").read_bytes()
    roberta = [*words, f"--source=lines:{tmp_path / 'a'}", "--special_tokens=roberta"]
    assert cli.main([*roberta, f"--out={tmp_path / 'roberta.json'}"]) == 0
    assert Tokenizer.load(tmp_path / "roberta.json").special.cls == 0
    build = ["data", "build", f"--source=lines:{tmp_path / 'a'}", "--held_out_share=0.2"]
    build += [f"--tokenizer={tmp_path / 'one.json'}", f"--out={tmp_path / 'store'}"]
    assert cli.main([*build, "--workers=1"]) == 0
    store = open_store(tmp_path / "store")
    assert store.vocab_size == SIZE
    assert store.train.token_counts[store.special.unk] == 0
    capsys.readouterr()
    wrong = ["data", "tokenizer", f"--source=lines:{tmp_path / 'a'}", "--special_tokens=roberta"]
    assert cli.main([*wrong, f"--out={tmp_path / 'wrong.json'}"]) == 2
    assert "--special_tokens: --model=wordpiece has BERT's; leave it out" in capsys.readouterr().err
    wrong = ["data", "tokenizer", f"--source=lines:{tmp_path / 'a'}", "--model=byte_bpe"]
    assert cli.main([*wrong, "--nocased", f"--out={tmp_path / 'wrong.json'}"]) == 2
    assert "--cased=False: --model=byte_bpe keeps case; leave it out" in capsys.readouterr().err


def test_what_cannot_be_trained_is_one_line() -> None:
    with pytest.raises(UserError, match=r"^vocabulary of 260 entries: .* at least 261 \("):
        Tokenizer.train(texts(), 260, model="byte_bpe")
    with pytest.raises(UserError, match=r"^no text to train a vocabulary on"):
        Tokenizer.train(["", " \n "], 300, model="byte_bpe")
