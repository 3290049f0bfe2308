"""The token store: round trips, and errors that name the damaged file."""

import json
from pathlib import Path

import numpy as np
import pytest
from stores import StoredDocument, make_split, write_store

from bert_jax.data_pipeline.store.manifest import manifest_digest, token_type
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.store.writer import ArrayWriter
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.errors import UserError
from bert_jax.storage import retry

TRAIN = [StoredDocument([[5, 6, 7], [8]]), StoredDocument([[9, 9]], source=1, language=1)]
HELD_OUT = [StoredDocument([[6]])]


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    tokenizer = Tokenizer.from_vocab([*SPECIAL_TOKENS, *"abcde"])
    return write_store(
        tmp_path / "store",
        tokenizer=tokenizer,
        train=TRAIN,
        held_out=HELD_OUT,
        sources=("wiki", "books"),
        languages=("en", "de"),
    )


def test_written_documents_are_read_back(store: TokenStore) -> None:
    train = store.train
    assert train.tokens.tolist() == [5, 6, 7, 8, 9, 9]
    assert train.sentence_lengths.tolist() == [3, 1, 2]
    assert train.document_lengths.tolist() == [2, 1]
    assert train.document_source.tolist() == [0, 1]
    assert train.document_language.tolist() == [0, 1]
    assert train.token_counts.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 2]
    assert train.tokens.dtype == np.uint16
    assert isinstance(train.tokens, np.memmap)
    assert store.held_out.tokens.tolist() == [6]
    assert (store.sources, store.languages) == (("wiki", "books"), ("en", "de"))
    assert (store.vocab_size, store.special.mask) == (10, 4)
    assert Tokenizer.load(store.tokenizer_path).digest == store.tokenizer_digest


def test_split_in_memory_equals_the_stored_one_and_digests_differ_by_content(
    store: TokenStore,
) -> None:
    split = make_split("train", TRAIN, 10)
    assert np.array_equal(split.tokens, store.train.tokens)
    assert store.train.digest != store.held_out.digest
    assert make_split("train", HELD_OUT, 10).digest != split.digest


def test_an_empty_split_opens(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_vocab([*SPECIAL_TOKENS, "a"])
    store = write_store(tmp_path / "s", tokenizer=tokenizer, train=[StoredDocument([[5]])])
    assert store.held_out.tokens.shape == (0,)


@pytest.mark.parametrize(("size", "kind"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_tokens_take_the_smallest_type_that_holds_every_id(size: int, kind: type) -> None:
    assert token_type(size) == kind


@pytest.mark.parametrize("documents", [[StoredDocument([])], [StoredDocument([[5], []])]])
def test_empty_documents_and_sentences_are_refused(documents: list[StoredDocument]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        make_split("train", documents, 10)


@pytest.mark.parametrize("bad", [10, -1])
def test_ids_outside_the_vocabulary_are_refused_when_writing(bad: int) -> None:
    with pytest.raises(ValueError, match="ids must be"):
        make_split("train", [StoredDocument([[bad]])], 10)


def test_array_writer_refuses_another_length_or_type(tmp_path: Path) -> None:
    writer = ArrayWriter(tmp_path / "a.npy", np.dtype(np.uint16), 2)
    with pytest.raises(TypeError, match="uint32"):
        writer.append(np.zeros(1, np.uint32))
    writer.append(np.zeros(1, np.uint16))
    with pytest.raises(ValueError, match="1 elements, expected 2"):
        writer.close()


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a token store"):
        open_store(tmp_path)


def test_what_no_second_attempt_changes_is_refused_at_once(tmp_path: Path, monkeypatch) -> None:
    """A file instead of the folder, a folder instead of the manifest, a link loop, a long name."""
    slept: list[float] = []
    monkeypatch.setattr(retry, "sleep", slept.append)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / "manifest.json").mkdir(parents=True)
    (tmp_path / "circle").mkdir()
    (tmp_path / "circle" / "manifest.json").symlink_to("manifest.json")
    for name in ("file", "folder", "circle", "n" * 300):
        with pytest.raises(UserError, match=f"^{tmp_path / name}: "):
            open_store(tmp_path / name)
    assert not slept


def test_a_flipped_byte_is_found_and_the_file_named(store: TokenStore) -> None:
    file = store.path / "train" / "tokens.npy"
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)
    with pytest.raises(UserError, match=r"train/tokens\.npy: bytes 0 to 139 .*sha256"):
        open_store(store.path)
    open_store(store.path, verify=False)


def test_a_truncated_or_missing_file_is_found_without_hashing(store: TokenStore) -> None:
    file = store.path / "held_out" / "document_lengths.npy"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"document_lengths\.npy: \d+ bytes"):
        open_store(store.path, verify=False)
    file.unlink()
    with pytest.raises(UserError, match=r"document_lengths\.npy: missing"):
        open_store(store.path, verify=False)


def _rewrite(store: TokenStore, name: str, values: np.ndarray) -> None:
    """Replaces an array of a split and updates the manifest to match."""
    writer = ArrayWriter(store.path / "train" / name, values.dtype, len(values))
    writer.append(values)
    files = {**store.manifest["files"], f"train/{name}": writer.close()}
    _rewrite_manifest(store, files=files)


def _rewrite_manifest(store: TokenStore, **fields: object) -> None:
    """Changes fields of a manifest and updates its digest to match."""
    manifest = {**store.manifest, **fields}
    manifest["digest"] = manifest_digest(manifest)
    (store.path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (
            "tokens.npy",
            np.array([5, 6, 7, 8, 10, 11], np.uint16),
            r"element 4 \(sentence 2, document 1\): id 10 is outside the vocabulary of 10",
        ),
        (
            "tokens.npy",
            np.array([5, 6, 7, 10, 9, 9], np.uint16),
            r"element 3 \(sentence 1, document 0\): id 10 is outside",
        ),
        ("tokens.npy", np.array([5, 6, 7, 8, 9, 9], np.uint32), "uint32 .* a 1-D array of uint16"),
        ("sentence_lengths.npy", np.array([3, 3, 0], np.uint32), "element 2 is 0, .* >= 1"),
        ("sentence_lengths.npy", np.array([3, 1, 1], np.uint32), "add up to 5, .* to 6 tokens"),
        ("document_lengths.npy", np.array([2, 2], np.uint32), "add up to 4, .* to 3 sentences"),
        (
            "document_source.npy",
            np.array([0, 2], np.uint16),
            "element 1 is 2, .* an index below 2",
        ),
        ("document_language.npy", np.array([0], np.uint16), "an index below 2"),
        ("token_counts.npy", np.zeros(10, np.int64), "id 5 occurs 0 times, but 1 times"),
        ("token_counts.npy", np.zeros(9, np.int64), "9 counts, must have 10"),
    ],
)
def test_a_store_written_wrongly_is_refused(
    store: TokenStore, name: str, values: np.ndarray, message: str
) -> None:
    _rewrite(store, name, values)
    with pytest.raises(UserError, match=message) as error:
        open_store(store.path)
    assert str(store.path / "train" / name) in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokenizer_digest": "0" * 64}, "tokenizer.json: tokenizer_digest is"),
        ({"special": {"pad": 1, "unk": 0, "cls": 2, "sep": 3, "mask": 4}}, "json: special is"),
        (
            {
                "sources": [
                    {"name": "wiki", "splits": {"train": {"documents": 2}}},
                    {"name": "books"},
                ]
            },
            "1 documents of source 'wiki', the manifest has 2",
        ),
    ],
)
def test_a_manifest_that_disagrees_is_refused(
    store: TokenStore, fields: dict[str, object], message: str
) -> None:
    _rewrite_manifest(store, **fields)
    with pytest.raises(UserError, match=message):
        open_store(store.path)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not a token store's manifest"), ('{"format_version": 0}', "reads")]
)
def test_a_foreign_manifest_is_refused(store: TokenStore, text: str, message: str) -> None:
    (store.path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=message):
        open_store(store.path)
