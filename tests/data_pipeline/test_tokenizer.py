"""WordPiece: deterministic training, loading of users' files, special tokens in texts."""

import hashlib
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.errors import UserError

ENTRIES = [*SPECIAL_TOKENS, "[", "]", "mask", "un", "##aff", "##able", "hello", "e", "cafe"]
TRAIN = """
import random
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
draw = random.Random(0)
words = ["".join(draw.choices("abcdefghij", k=draw.randint(1, 6))) for _ in range(300)]
print(Tokenizer.train((" ".join(draw.choices(words, k=50)) for _ in range(40)), 200).digest)
"""


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode_batch([text])[0].tolist()


@pytest.mark.processes
def test_a_vocabulary_trains_to_the_same_bytes_in_every_process() -> None:
    # The library's hash order differs between processes, so one process proves nothing.
    command = [sys.executable, "-c", TRAIN]
    digests = {subprocess.check_output(command, text=True) for _ in range(4)}
    assert len(digests) == 1


def test_a_trained_vocabulary_begins_with_the_special_tokens_and_covers_the_text() -> None:
    tokenizer = Tokenizer.train(["The cat sat. The hat sat."] * 3, 40)
    assert [tokenizer.token(i) for i in range(5)] == list(SPECIAL_TOKENS)
    assert tokenizer.special == (0, 1, 2, 3, 4)
    encoded = ids(tokenizer, "the hats, cat")
    assert tokenizer.special.unk in encoded  # the comma was never seen
    assert tokenizer.decode(ids(tokenizer, "The cat sat.")) == "the cat sat."


def test_training_needs_text_and_room_for_the_alphabet() -> None:
    with pytest.raises(UserError, match="no text"):
        Tokenizer.train([" ", ""], 100)
    with pytest.raises(UserError, match="needs at least 11 "):
        Tokenizer.train(["abc"], 10)


def test_of_thousands_of_characters_few_are_unknown() -> None:
    """As in Chinese; where only rare ones are beyond 1,000, the vocabulary stays as it was."""
    characters = [chr(0x4E00 + i) for i in range(3500)]
    draw, weights = random.Random(0), [1 / (i + 2.7) for i in range(len(characters))]
    chinese = ["".join(draw.choices(characters, weights, k=400)) for _ in range(200)]

    def unknown(vocab_size: int) -> float:
        tokenizer = Tokenizer.train(chinese, vocab_size)
        return float((tokenizer.encode(chinese).ids == tokenizer.special.unk).mean())

    assert 0 < unknown(10_600) < 0.0011
    assert unknown(2_100) > 0.1  # no more characters than fit
    latin = [" ".join(["word"] * 100_000), " ".join(characters[:1100])]
    entries = Tokenizer.train(latin, 6_000).vocab_size
    assert entries < 2 * 1000 + 20


def test_greedy_longest_match_as_the_original_documents_it() -> None:
    # tokenization.py, WordpieceTokenizer.tokenize: "unaffable" -> un ##aff ##able
    tokenizer = Tokenizer.from_vocab(ENTRIES)
    assert ids(tokenizer, "Unaffable") == [8, 9, 10]
    assert ids(tokenizer, "unaffablex") == [1]
    assert ids(tokenizer, "Café") == [13]


def test_words_above_100_characters_are_unknown() -> None:
    tokenizer = Tokenizer.from_vocab([*SPECIAL_TOKENS, "e", "##e"])
    assert ids(tokenizer, "e" * 100) == [5] + [6] * 99
    assert ids(tokenizer, "e" * 101) == [1]


def test_the_text_mask_is_not_the_special_token_but_stays_one_in_the_file(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_vocab(ENTRIES)
    assert ids(tokenizer, "hello [MASK]") == [11, 5, 7, 6]
    tokenizer.save(tmp_path / "tokenizer.json")
    exported = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert exported.encode("hello [MASK]").ids == [2, 11, 4, 3]
    pair = exported.encode("hello", "un")
    assert pair.tokens == ["[CLS]", "hello", "[SEP]", "un", "[SEP]"]
    assert pair.type_ids == [0, 0, 0, 1, 1]


def test_saved_and_loaded_again_it_is_the_same(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_vocab(ENTRIES)
    file = tmp_path / "tokenizer.json"
    tokenizer.save(file)
    again = Tokenizer.load(file)
    assert again.digest == tokenizer.digest == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (again.vocab_size, again.special) == (14, tokenizer.special)
    assert ids(again, "Hello [MASK]") == ids(tokenizer, "Hello [MASK]")


@pytest.mark.parametrize("name", ["vocabulary", "vocab.txt", "words.model"])
def test_a_tokenizer_json_of_another_name_is_read_by_its_content(tmp_path: Path, name: str) -> None:
    tokenizer = Tokenizer.from_vocab(ENTRIES)
    tokenizer.save(tmp_path / name)
    assert Tokenizer.load(tmp_path / name).digest == tokenizer.digest


def test_truncation_in_a_tokenizer_file_is_ignored() -> None:
    library = tokenizers.Tokenizer.from_str(Tokenizer.from_vocab(ENTRIES).json.decode())
    library.enable_truncation(2)
    assert len(ids(Tokenizer(library.to_str().encode()), "hello " * 9)) == 9


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_vocab_txt(tmp_path: Path, ending: str) -> None:
    file = tmp_path / "vocab.txt"
    file.write_bytes(ending.join([*ENTRIES, ""]).encode())
    tokenizer = Tokenizer.load(file)
    assert tokenizer.vocab_size == len(ENTRIES)
    assert ids(tokenizer, "HELLO") == [11]


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json", "other"])
def test_a_byte_order_mark_changes_nothing(tmp_path: Path, name: str) -> None:
    plain, marked = tmp_path / "plain" / name, tmp_path / "marked" / name
    for file in (plain, marked):
        file.parent.mkdir()
    if name == "vocab.txt":
        plain.write_text("\n".join([*ENTRIES, ""]), "utf-8")
    else:
        Tokenizer.from_vocab(ENTRIES).save(plain)
    marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    assert Tokenizer.load(marked).json == Tokenizer.load(plain).json


def test_case_follows_the_vocabulary() -> None:
    cased = Tokenizer.from_vocab([*SPECIAL_TOKENS, "Hello", "hello", "Café"])
    assert ids(cased, "Hello hello Café") == [5, 6, 7]
    with pytest.raises(UserError, match="capital letters"):
        Tokenizer.from_vocab([*SPECIAL_TOKENS, "Hello"], lowercase=True)
    kept = Tokenizer.from_vocab([*SPECIAL_TOKENS, "é"], lowercase=False)
    assert ids(kept, "é É") == [5, 1]


@pytest.mark.parametrize("name", ["vocab.txt", "org/tokenizer.json", "spm.model", "model.zip"])
def test_the_name_of_a_file_is_not_taken_for_that_of_a_model_on_the_hub(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=re.escape(name)) as raised:
        Tokenizer.load(Path(name))
    assert "hf:" not in str(raised.value)


def test_bad_vocabularies(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no \[MASK\] among 4"):
        Tokenizer.from_vocab(SPECIAL_TOKENS[:4])
    with pytest.raises(UserError, match="'a' occurs on lines 6 and 8"):
        Tokenizer.from_vocab([*SPECIAL_TOKENS, "a", "b", "a"])
    with pytest.raises(UserError, match="cannot read the vocabulary"):
        Tokenizer.load(tmp_path / "absent.txt")
    (tmp_path / "v.txt").write_bytes(b"ab\xff")
    with pytest.raises(UserError, match="not UTF-8 at byte 2"):
        Tokenizer.load(tmp_path / "v.txt")
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(UserError, match=r"t\.json: not a tokenizer\.json"):
        Tokenizer.load(tmp_path / "t.json")


def xlm_roberta(*, special: bool = True) -> bytes:
    """A Unigram tokenizer.json as XLM-R's: special tokens are pieces with the best score of all."""
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [(name, 0.0) for name in names]
    pieces += [("▁", -3.0), *((c, -5.0) for c in "abcdefghiklmnopstu<>/"), ("<mask>", 0.0)]
    encoder = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 3, False))
    encoder.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    encoder.add_special_tokens([*names, "<mask>"])
    spec = json.loads(encoder.to_str())
    for token in spec["added_tokens"]:
        token["special"] = special
    return json.dumps(spec).encode()


@pytest.mark.parametrize("special", [True, False])
def test_special_tokens_that_a_text_spells_are_text_though_they_are_pieces(special: bool) -> None:
    tokenizer = Tokenizer(xlm_roberta(special=special))
    for text in ("the <mask> tag", "a <s>old</s> one", "<pad><unk>"):
        (found,) = tokenizer.encode_batch([text])
        assert not {*found.tolist()} & {*tokenizer.special}, text
        assert "".join(map(tokenizer.token, found)).replace("▁", " ").strip() == text
    (found,) = tokenizer.encode_texts(["the <mask>"])  # of a user who asks for the word there
    assert found[-1] == tokenizer.special.mask


def test_nothing_gives_no_ids() -> None:
    first, second = Tokenizer.from_vocab(ENTRIES).encode_batch(["", "hello"])
    assert (first.shape, first.dtype, second.tolist()) == ((0,), np.uint32, [11])


def test_words_start_where_the_prefix_is_missing() -> None:
    starts = Tokenizer.from_vocab(ENTRIES).word_starts
    assert starts.tolist() == [not entry.startswith("##") for entry in ENTRIES]
    assert not starts.flags.writeable


def test_word_starts_come_from_the_prefix_of_the_file() -> None:
    spec = json.loads(Tokenizer.from_vocab([*SPECIAL_TOKENS, "a", "~b", "##c"]).json)
    spec["model"]["continuing_subword_prefix"] = "~"
    starts = Tokenizer(json.dumps(spec).encode()).word_starts
    assert starts.tolist() == [True] * 6 + [False, True]


def test_a_tokenizer_that_does_not_mark_words_says_so() -> None:
    vocab = {token: i for i, token in enumerate(SPECIAL_TOKENS)}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))
    with pytest.raises(UserError, match=r"\(WordLevel\) does not mark where words begin"):
        _ = Tokenizer(library.to_str().encode()).word_starts
