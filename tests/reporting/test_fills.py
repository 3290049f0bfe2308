"""Words hidden in held-out sentences."""

import re
from pathlib import Path

import pytest
import tokenizers
from stores import StoredDocument, write_store
from tokenizers import decoders, models

from bert_jax.data_pipeline.analysis.hidden_words import (
    HiddenWord,
    as_text,
    guess_text,
    hide_words,
    mask_words,
)
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.reporting.fills import (
    followers,
    found_rate,
    most_frequent_words,
    to_type,
)

WORDS = ("sea", "ship", "##s", ",", "sails", "7")


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    tokenizer = Tokenizer.from_vocab([*SPECIAL_TOKENS, *WORDS], lowercase=True)
    sea, ship, s, comma, sails, seven = range(len(SPECIAL_TOKENS), len(SPECIAL_TOKENS) + 6)
    return write_store(
        tmp_path_factory.mktemp("store") / "store",
        tokenizer=tokenizer,
        train=[StoredDocument([[sails, comma, sails, comma, comma, seven, seven, sails, sea]])],
        held_out=[
            StoredDocument([[ship, s, comma, sea], [sea] * 20]),
            StoredDocument([[comma, ship, s], [sails, seven]]),
        ],
        sources=("wiki",),
    )


def test_any_word_that_is_one_token_can_be_hidden(store: TokenStore) -> None:
    drawn = {
        each for seed in range(30) for each in hide_words(store, seed=seed, count=9, longest=12)
    }
    assert drawn == {
        HiddenWord("ships , [MASK]", "sea", ","),
        HiddenWord("[MASK] 7", "sails"),
        HiddenWord("sails [MASK]", "7", "sails"),
    }


def test_words_of_pieces_can_be_hidden_too(store: TokenStore) -> None:
    seeds = range(30)
    options = {"count": 9, "longest": 3, "of_pieces": True}
    drawn = {each for seed in seeds for each in hide_words(store, seed=seed, **options)}
    assert drawn == {
        HiddenWord("ships , [MASK]", "sea", ","),
        HiddenWord("[MASK] , sea", "ships"),
        HiddenWord(", [MASK]", "ships", ","),
        HiddenWord("[MASK] 7", "sails"),
        HiddenWord("sails [MASK]", "7", "sails"),
    }


def test_whatever_the_vocabulary_the_same_words_of_pieces_are_hidden(tmp_path: Path) -> None:
    sentences, letters = ["she sails ships .", "the sea , she said"], "acehilpst"
    hidden = []
    for entries in (["she", "ships", "sea", "said"], ["ship", "sails", "the", "sh", "##id"]):
        every_letter = [*letters, "d", ".", ",", *(f"##{letter}" for letter in f"{letters}d")]
        tokenizer = Tokenizer.from_vocab([*SPECIAL_TOKENS, *every_letter, *entries], lowercase=True)
        document = StoredDocument(tokenizer.encode_texts(sentences))
        store = write_store(
            tmp_path / entries[0],
            tokenizer=tokenizer,
            train=[document],
            held_out=[document],
            sources=("wiki",),
        )
        options = {"count": 2, "longest": 5, "of_pieces": True}
        drawn = [each for seed in range(20) for each in hide_words(store, seed=seed, **options)]
        hidden.append([(each.sentence, each.word) for each in drawn])
    assert hidden[0] == hidden[1]
    assert {word for _, word in hidden[0]} == set(re.findall(r"\w+", " ".join(sentences)))


@pytest.mark.parametrize("of_pieces", [False, True])
def test_sentences_of_byte_level_bpe_are_characters(tmp_path: Path, of_pieces: bool) -> None:
    text = "she said \u201cit\u2019s a caf\u00e9\u201d to me"
    tokenizer = Tokenizer.train([text] * 9, 300, model="byte_bpe")
    document = StoredDocument(tokenizer.encode_batch([text] * 9))
    store = write_store(
        tmp_path / "store",
        tokenizer=tokenizer,
        train=[document],
        held_out=[document],
        sources=("wiki",),
    )
    drawn = hide_words(store, seed=0, count=9, longest=60, of_pieces=of_pieces)
    assert {each.sentence.replace("[MASK]", each.word) for each in drawn} == {text}
    assert {each.word for each in drawn} <= {*re.findall(r"\w+", text)}
    assert any(each.left.startswith("\u0120") for each in drawn)


def test_a_draw_is_fixed_by_its_seed_and_a_prefix_of_a_longer_one(store: TokenStore) -> None:
    longer = hide_words(store, seed=1, count=3, longest=30)
    assert len(longer) == 3
    assert hide_words(store, seed=1, count=2, longest=30) == longer[:2]


def test_rates_and_frequent_words(store: TokenStore) -> None:
    assert most_frequent_words(store, 2) == ["sails", "7"]
    hidden = [HiddenWord("[MASK] 7", "sails"), HiddenWord("ships , [MASK]", "sea")]
    assert found_rate(hidden, [["sails", "sea"], ["7"]]) == 0.5
    assert found_rate([], []) == 0


def test_followers_are_the_words_after_the_token_on_the_left(store: TokenStore) -> None:
    """Training text: sails , sails , , 7 7 sails sea"""
    hidden = [HiddenWord("", "", left) for left in ("sails", "7", ",", "sea", "")]
    found = followers(store, hidden, 2)
    assert found == [["sea"], ["sails", "7"], ["sails", "7"], [], []]


def test_a_sentence_to_type_is_short_but_has_words_to_guess_from() -> None:
    short, enough = "[MASK].", "she walked to the [MASK] alone."
    assert to_type([f"{enough} And on.", enough, short]) == enough
    assert to_type([short]) == short
    assert "[MASK]" in to_type([])


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ('" " there \' s no necessity , " he said', '"" there\'s no necessity, "he said'),
        ("' it ' s mine , ' said [MASK] ( aloud ) .", "'it's mine,' said [MASK] (aloud)."),
        (
            "the content - type of cls _ [MASK] : ` x ` = 7",
            "the content-type of cls_[MASK]: `x` = 7",
        ),
        ("", ""),
    ],
)
def test_a_sentence_is_shown_as_running_text(tokens: str, text: str) -> None:
    assert as_text(tokens) == text


def test_a_word_of_a_running_text_is_masked_in_the_ids(store: TokenStore) -> None:
    drawn = mask_words(store, seed=0, count=9, shortest=3, longest=12)
    assert mask_words(store, seed=0, count=1, shortest=3, longest=12) == drawn[:1]
    tokenizer = Tokenizer.load(store.tokenizer_path)
    (one,) = drawn  # "[sails] 7" is shorter, the other ones have 21 tokens or no word of one token
    assert [tokenizer.token(i) for i in one.ids] == ["ship", "##s", ",", "[MASK]"]
    assert (one.place, one.before, one.word, one.after) == (3, "ships, ", "sea", "")


@pytest.mark.parametrize("space", ["▁", "Ġ"])
def test_pieces_with_a_mark_of_a_space_are_shown_without_it(tmp_path: Path, space: str) -> None:
    words = [f"{space}the", f"{space}sea", f"{space}was", f"{space}call", "ed", "."]
    made = tokenizers.Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}))
    metaspace, byte_level = decoders.Metaspace(), decoders.ByteLevel()
    made.decoder = metaspace if space == "▁" else byte_level
    made.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer = Tokenizer(made.to_str().encode())
    ids = list(range(len(words)))
    store = write_store(
        tmp_path / "store", tokenizer=tokenizer, train=[StoredDocument([ids])],
        held_out=[StoredDocument([ids])], sources=("wiki",),
    )  # fmt: skip
    drawn = {
        mask_words(store, seed=seed, count=1, shortest=6, longest=6)[0][2:] for seed in range(20)
    }
    assert drawn == {
        ("", "the", " sea was called."),
        ("the ", "sea", " was called."),
        ("the sea ", "was", " called."),
    }
    assert guess_text(tokenizer, 1) == "sea"
