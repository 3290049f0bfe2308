"""What a build says of its text: [UNK], held-out size, short documents; and casing."""

import re
from pathlib import Path

import pytest
from corpus import small_store
from stores import StoredDocument, write_store

from bert_jax.data_pipeline.sources import parse_source
from bert_jax.data_pipeline.store.manifest import read_manifest
from bert_jax.data_pipeline.store.quality import concerns, unknown_shares
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.store_build.build import build_shards, build_store
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.errors import UserError
from bert_jax.training.store_data import StoreData

LOWER = [*"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")]
TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, *LOWER])


def made(
    folder: Path, texts: dict[str, list[str]], tokenizer: Tokenizer = TOKENIZER, **options: object
) -> TokenStore:
    """Builds a store of a source for each name; every document is a text."""
    specs = []
    for name, documents in texts.items():
        (folder / f"{name}.txt").write_text("\n\n".join(documents))
        specs.append(parse_source(f"lines:{folder}/{name}.txt,name={name}"))
    return build_store(specs, tokenizer, folder / "store", workers=1, **options)


def numbered(count: int, rest: str = "") -> list[str]:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return [f"{letters[i % 26]} {letters[i // 26]} {rest}".strip() for i in range(count)]


def test_a_build_says_how_much_of_each_source_is_unknown(tmp_path, capsys):
    texts = {"good": numbered(50, "a" * 40), "bad": numbered(50, "é ñ words")}
    tokenizer = Tokenizer.from_vocab([*SPECIAL_TOKENS, *LOWER], lowercase=False)
    store = made(tmp_path, texts, tokenizer)
    said = re.sub(r"\s+", " ", capsys.readouterr().err)
    # Of "a b é ñ words": two letters, two unknown, five pieces.
    assert unknown_shares(store) == {"good": 0.0, "bad": pytest.approx(2 / 9)}
    assert re.search(r"tokens that are \[UNK\]\W+0\.0%\W+22\.2%", said)
    assert "22.2% of the tokens of bad are [UNK]; the vocabulary lacks" in said
    assert "of good are" not in said
    assert re.search(r"documents of fewer than 64 tokens\W+100\.0%\W+100\.0%", said)
    splits = store.manifest["sources"][1]["splits"]
    assert splits["train"] == {
        "documents": 48, "sentences": 48, "tokens": 432, "short": 48, "unknown": 96,
        "words": 240,
    }  # fmt: skip
    # Of an earlier version, which does not say it of the sources: of all tokens.
    for source in store.manifest["sources"]:
        for split in source["splits"].values():
            del split["unknown"]
    assert unknown_shares(store) == {"": pytest.approx(100 / (50 * 42 + 50 * 9))}


def test_a_build_and_a_run_say_that_little_text_is_held_out(tmp_path, capsys):
    store = made(tmp_path, {"a": numbered(100)})
    words = "little held-out text, so results depend strongly on which documents are in it"
    size = "5 documents and 10 tokens, fewer than 20 and 50,000: build with more text"
    said = re.sub(r"\s+", " ", capsys.readouterr().err)
    assert f"{words}; {size}" in said
    assert str(StoreData(store)) == (
        f"190 training tokens, 10 held out in 5 documents; note: {words}"
    )


@pytest.mark.parametrize(
    ("documents", "words", "little"), [(19, 2600, True), (19, 2700, False), (20, 1, False)]
)
def test_twenty_documents_or_50_thousand_tokens_are_no_concern(
    tmp_path, documents: int, words: int, little: bool
):
    store = write_store(
        tmp_path / "s",
        tokenizer=TOKENIZER,
        train=[StoredDocument([[5]])],
        held_out=[StoredDocument([[5] * words])] * documents,
        sources=("a",),
    )
    assert [concern.what[:9] for concern in concerns(store)] == ["little he"] * little


def test_by_default_a_small_source_holds_out_up_to_a_twentieth(tmp_path):
    """And each source its own; on all machines and in one alone the same."""
    texts = {"few": numbered(60), "more": numbered(450, "more")}
    one = made(tmp_path, texts, progress=False)
    assert [source["splits"]["held_out"]["documents"] for source in one.manifest["sources"]] == [
        3, 20
    ]  # fmt: skip
    specs = [parse_source(f"lines:{tmp_path}/{name}.txt,name={name}") for name in texts]
    work = [str(tmp_path / "work")]
    for number in (1, 2):
        build_shards(specs, TOKENIZER, tmp_path / "b", number=number, count=2, work=work)
    build_store(specs, TOKENIZER, tmp_path / "b", work=work, merge_only=True)
    assert read_manifest(tmp_path / "b") == read_manifest(tmp_path / "store")


def test_a_store_of_the_earlier_default_is_reused_as_it_is(tmp_path):
    """A given share means what it meant."""
    old = made(tmp_path, {"a": numbered(450)}, held_out_share=0.01, progress=False)
    assert len(old.held_out.document_lengths) == 4
    again = made(tmp_path, {"a": numbered(450)}, progress=False)
    assert again.manifest["digest"] == old.manifest["digest"]
    with pytest.raises(UserError, match=r"the held_out_share \(0\.01, now 0\.02\)"):
        made(tmp_path, {"a": numbered(450)}, held_out_share=0.02)
    (tmp_path / "other").mkdir()
    made(tmp_path / "other", {"a": numbered(450)}, progress=False)
    with pytest.raises(UserError, match=r"the held_out_share \(default, now 0\.01\)"):
        made(tmp_path / "other", {"a": numbered(450)}, held_out_share=0.01)


CASED = [*LOWER, "T", "##T"]
HINDI = "यह एक वाक्य है"


@pytest.mark.parametrize(
    ("entries", "lowercase", "text"),
    [
        (LOWER, True, "The text."),
        (CASED, False, "The text."),
        (LOWER, False, "the text without any"),
        (LOWER, False, HINDI),
        ([*HINDI], False, f"{HINDI} The text."),
        (LOWER, False, f"{HINDI * 40} Iota"),  # a foreign name
    ],
)
def test_a_vocabulary_of_lower_case_is_fine_where_it_loses_nothing(
    tmp_path, entries: list[str], lowercase: bool, text: str
):
    entries = list(dict.fromkeys([*SPECIAL_TOKENS, ".", *entries]))
    tokenizer = Tokenizer.from_vocab(entries, lowercase=lowercase)
    made(tmp_path, {"a": [".", text, ". ."]}, tokenizer, progress=False)


@pytest.mark.parametrize("shard", [False, True])
def test_a_vocabulary_of_lower_case_that_keeps_capitals_is_refused(tmp_path, shard: bool):
    """Before anything is built, whatever the source is written in."""
    tokenizer = Tokenizer.from_vocab([*SPECIAL_TOKENS, *LOWER], lowercase=False)
    (tmp_path / "a.txt").write_text("Les élèves d'Ésope.\n\nun\n\ndeux\n")
    specs = [parse_source(f"lines:{tmp_path}/a.txt")]
    words = "source 'lines': its text has capitals .* leave out --cased"
    options = {"number": 1, "count": 2} if shard else {}
    with pytest.raises(UserError, match=words):
        (build_shards if shard else build_store)(specs, tokenizer, tmp_path / "s", **options)
    assert not (tmp_path / "s").exists()
    assert not list(tmp_path.glob(".s*"))


START = "words in lower case " * 20_000  # more than is looked at of a source


@pytest.mark.parametrize(
    ("more", "is_long"),
    [
        (["\u211d", "##\u211d"], False),  # a symbol that counts as a capital, as in Google's
        (["HTTPURL"], False),
        (["HTTPURL", "USER", "A"], False),
        ([], True),
        (["HTTPURL"], True),
    ],
)
def test_neither_entries_nor_the_start_of_a_text_hide_its_capitals(tmp_path, more, is_long):
    tokenizer = Tokenizer.from_vocab([*SPECIAL_TOKENS, ".", *LOWER, *more], lowercase=False)
    text = "The Text Of This File Has Capitals. " * (20_000 if is_long else 1)
    with pytest.raises(UserError, match="its text has capitals"):
        made(tmp_path, {"a": [START if is_long else "a", text, "b"]}, tokenizer, progress=False)


def test_a_store_without_counts_of_its_sources_is_inspected(tmp_path):
    store = small_store(tmp_path / "s")
    assert unknown_shares(store) == {"": 0.0}
    assert [concern.what[:9] for concern in concerns(store)] == ["little he"]
