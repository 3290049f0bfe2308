"""Words encoded once: the ids that `tokenizers` gives whole sentences, within a bound of memory."""

import json
import tarfile
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_sentencepiece import HARD, SIZES, train_raw

from bert_jax.data_pipeline.sources import SourceSpec, find, read
from bert_jax.data_pipeline.store_build.shard import cleaned
from bert_jax.data_pipeline.text.sentences import split
from bert_jax.data_pipeline.tokenizer.sentencepiece_model import convert
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Encoded, Tokenizer
from bert_jax.data_pipeline.tokenizer.word_table import Encode, WordTable, encode_words_once

KINDS = ("uncased", "cased", "unigram", "bpe")
# What may join words, or end them early: marks, prefixes and joiners beside spaces, other spaces,
# SentencePiece's space, controls, special tokens, words at BERT's limit, scripts without spaces.
PARTS = [
    *(" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u200b", "\x00", "\x01", "\x85"),
    *("\u0301", "\u0343", "\u0327", "\u0e33", "\uff9e", "\u200d", "\u00ad", "\u0600", "\u0d4e"),
    *("\u0340\u0300", "\u2581", "[MASK]", "[UNK]", "<s>", "##a", "a" * 100, "a" * 101),
    *("The", "cat", "'s", "!", "\\", "東京", "バナナ"),
    *("🙂", "👨‍👩‍👧", "👍🏽", "İ", "ß", "ﬁ", "½", "e\u0301", "é", "𝒜", "\U000110bd"),
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=5)).map("".join)
SPACED = st.lists(st.sampled_from(PARTS) | st.text(max_size=3)).map(" ".join)


def tokenizer_of(kind: str) -> Tokenizer:
    text = [*HARD, "x\u0300 \u0300x"] * 3
    if kind in SIZES:
        return Tokenizer.train(text, SIZES[kind] + 10, model=kind)
    return Tokenizer.train(text, 400, lowercase=kind == "uncased")


def tokenizer_with_rules(folder: Path, *rules: str) -> Tokenizer:
    """A unigram model that replaces nothing but by these rules: hexadecimal code points, each by
    those after a tab."""
    (folder / "rules.tsv").write_text("\n".join([*rules, ""]))
    text = ["the cat sat on the mat \u0600 \u2581", "the cat ran and the rat sat"] * 20
    model = train_raw(text, vocab_size=20, normalization_rule_tsv=str(folder / "rules.tsv"))
    return Tokenizer(convert(model, "model"))


@pytest.fixture(scope="module", params=[*KINDS, "own rules"])
def encoders(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Encode, Encode]:
    """A tokenizer, and its words encoded once: with room for all of them, and for a few."""
    if request.param in KINDS:
        tokenizer = tokenizer_of(request.param)
    else:
        tokenizer = tokenizer_with_rules(tmp_path_factory.mktemp("model"), "600\t61")
    return tokenizer, encode_words_once(tokenizer), encode_words_once(tokenizer, 3000)


def assert_same(found: Encoded, wanted: Encoded) -> None:
    assert found.ids.tolist() == wanted.ids.tolist()
    assert found.lengths.tolist() == wanted.lengths.tolist()
    assert (found.ids.dtype, found.lengths.dtype) == (np.uint32, np.int64)


@given(texts=st.lists(TEXTS | SPACED))
@example(texts=HARD)
@example(texts=[f"x{a}{b}y z" for a in PARTS for b in PARTS])
@example(texts=[f"{a} {b}" for a in PARTS for b in PARTS])
def test_any_text_has_the_ids_of_whole_sentences(
    encoders: tuple[Tokenizer, Encode, Encode], texts: list[str]
) -> None:
    tokenizer, once, bounded = encoders
    wanted = tokenizer.encode(texts)
    assert_same(once(texts), wanted)
    assert_same(bounded(texts), wanted)
    assert_same(bounded(texts), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_is_encoded_when_it_is_first_met(kind: str) -> None:
    tokenizer, asked = tokenizer_of(kind), []

    def encode(texts: Sequence[str]) -> Encoded:
        asked.extend(texts)
        return tokenizer.encode(texts)

    table = WordTable(tokenizer.word_splits[0], encode, 1 << 20)
    for text in ("the cat sat", "the cat ran", "a cat"):
        table.encode([text, text])
    assert asked == ["the", "cat", "sat", "ran", "a"]


def test_case_and_punctuation_make_no_new_words_of_wordpiece() -> None:
    tokenizer, asked = tokenizer_of("uncased"), []

    def encode(texts: Sequence[str]) -> Encoded:
        asked.extend(texts)
        return tokenizer.encode(texts)

    table = WordTable(tokenizer.word_splits[1], encode, 1 << 20)
    for word in ("cat", "(Cat),", "cat's"):
        assert_same(table.encode([word]), tokenizer.encode([word]))
    assert asked == ["cat", "(", ")", ",", "'", "s"]


def test_the_tables_stay_within_their_bound_and_keep_the_words_that_fit() -> None:
    tokenizer = tokenizer_of("uncased")
    words = [f"{n:x}é" for n in range(40_000)]
    tracemalloc.start()
    try:
        encode = encode_words_once(tokenizer, most := 1 << 20)
        before = tracemalloc.get_traced_memory()[0]
        for start in range(0, len(words), 100):
            assert_same(encode(some := words[start : start + 100]), tokenizer.encode(some))
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert most // 4 < used < most


@pytest.mark.parametrize(
    "options",
    [
        {"add_dummy_prefix": False},
        {"remove_extra_whitespaces": False},
        {"split_by_whitespace": False},
        {"user_defined_symbols": ["<br> "], "model_type": "bpe"},
    ],
)
def test_words_of_other_models_are_not_taken_apart(options: dict) -> None:
    text = ["the cat sat on the mat, and the rat ran", "the cat ran and the rat sat"] * 20
    tokenizer = Tokenizer(convert(train_raw(text, vocab_size=20, **options), "model"))
    assert encode_words_once(tokenizer) == tokenizer.encode


def test_words_of_other_tokenizer_files_are_not_taken_apart() -> None:
    spec = json.loads(Tokenizer.from_vocab([*SPECIAL_TOKENS, "a", "##b", "a b"]).json)
    for change in (
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {"normalizer": None},
        {"added_tokens": [*spec["added_tokens"], {
            "id": 7, "content": "a b", "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": True, "special": False,
        }]},
    ):  # fmt: skip
        tokenizer = Tokenizer(json.dumps({**spec, **change}).encode())
        assert encode_words_once(tokenizer) == tokenizer.encode


def test_a_charsmap_that_writes_the_space_of_sentencepiece_is_not_taken_apart(
    tmp_path: Path,
) -> None:
    tokenizer = tokenizer_with_rules(tmp_path, "62\t2581")  # b becomes \u2581
    assert encode_words_once(tokenizer) == tokenizer.encode


def batches(folder: Path, kind: str) -> Iterator[list[str]]:
    """The sentences of every document of a folder, a file at a time."""
    spec = SourceSpec(kind, folder, kind)
    for path in find(spec).files:
        texts = (cleaned(document, spec)[0] for document in read(spec, path))
        yield [sentence for text in texts for sentence in split(text, "en")]


def real_tokenizer(kind: str, data: Path, some: list[str]) -> Tokenizer:
    if kind in SIZES:
        return Tokenizer.train(some, 8000, model=kind)
    return Tokenizer.load(data / "vocab" / f"bert-base-{kind}-vocab.txt")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_real_text_has_the_ids_of_whole_sentences(
    kind: str, real_data: Path, real_wiki_files: list[Path], real_books: list[Path]
) -> None:
    texts = [*batches(real_wiki_files[0].parent, "wikiextractor")]
    texts += batches(real_books[0].parents[1], "books")
    tokenizer = real_tokenizer(kind, real_data, texts[0])
    once, bounded = encode_words_once(tokenizer), encode_words_once(tokenizer, 1 << 20)
    for some in texts:
        wanted = tokenizer.encode(some)
        assert_same(once(some), wanted)
        assert_same(bounded(some), wanted)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_all_real_text_has_the_ids_of_whole_sentences(
    kind: str, real_data: Path, tmp_path: Path
) -> None:
    folders = {"wikiextractor": "wikipedia", "books": "books"}
    for source, folder in folders.items():
        (archive,) = (real_data / folder).glob("*.tar.xz")
        with tarfile.open(archive) as members:
            members.extractall(tmp_path / source, filter="data")
    some = next(batches(tmp_path / "wikiextractor", "wikiextractor"))
    tokenizer = real_tokenizer(kind, real_data, some)
    once = encode_words_once(tokenizer)
    for source in folders:
        for texts in batches(tmp_path / source, source):
            assert_same(once(texts), tokenizer.encode(texts))
