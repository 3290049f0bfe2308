"""`data verify`: reports the first damaged range after any change to a store."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from corpus import small_store
from hypothesis import given
from hypothesis import strategies as st

from bert_jax import cli, exit_codes
from bert_jax.data_pipeline.sources import parse_source
from bert_jax.data_pipeline.store import digests
from bert_jax.data_pipeline.store.digests import FileDigest, entry_of
from bert_jax.data_pipeline.store.manifest import ARRAYS, SPLITS, bytes_to_verify, read_manifest
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.store_build.build import build_store
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError

FILES = ("tokenizer.json", *(f"{split}/{array}.npy" for split in SPLITS for array in ARRAYS))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("verify") / "store")


@pytest.fixture
def store(original: TokenStore, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(original.path, tmp_path / "store")


def said(path: Path) -> str:
    """Returns the error of opening the store with verification."""
    with pytest.raises(UserError) as error:
        open_store(path)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_flipped_byte_anywhere_is_found(name: str, store: Path) -> None:
    file = store / name
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    for at in {0, len(whole) - 2, *rng.integers(0, len(whole) - 1, 8).tolist()}:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(0, 8))
        file.write_bytes(damaged)
        message = said(store)
        assert str(file) in message
        if name != "manifest.json":
            assert f"bytes 0 to {len(whole) - 1:,} do not match" in message
    file.write_bytes(whole)
    open_store(store)


@pytest.mark.parametrize("name", FILES)
def test_missing_truncated_and_lengthened_files_are_named(name: str, store: Path) -> None:
    file = store / name
    whole = file.read_bytes()
    size = len(whole)
    file.write_bytes(whole[:-3])
    assert f"{file}: {size - 3:,} bytes" in said(store)
    assert f"bytes {size - 3:,} to {size - 1:,} are missing" in said(store)
    file.write_bytes(whole + b"ab")
    assert f"{file}: {size + 2:,} bytes" in said(store)
    assert f"bytes {size:,} to {size + 1:,} are too many" in said(store)
    file.unlink()
    assert f"{file}: missing" in said(store)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("train/tokens.npy", "train/sentence_lengths.npy"),
        ("train/document_source.npy", "train/document_language.npy"),
        ("train/token_counts.npy", "held_out/token_counts.npy"),
    ],
)
def test_swapped_files_are_found(one: str, other: str, store: Path) -> None:
    first, second = (store / one).read_bytes(), (store / other).read_bytes()
    (store / one).write_bytes(second)
    (store / other).write_bytes(first)
    assert str(store / one) in said(store) or str(store / other) in said(store)


def test_the_first_bad_block_is_named(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "BLOCK", 64)
    file = store / "train" / "tokens.npy"
    whole = bytearray(file.read_bytes())
    entry = entry_of(bytes(whole))
    whole[200] ^= 1
    whole[-1] ^= 1
    file.write_bytes(whole)
    with pytest.raises(
        UserError, match=r"bytes 192 to 255 \(and 1 other blocks of 64\) do not match"
    ):
        digests.check_contents(file, entry)
    whole[200] ^= 1
    file.write_bytes(whole)
    last = f"bytes {(len(whole) - 1) // 64 * 64:,} to {len(whole) - 1:,} do not match"
    with pytest.raises(UserError, match=last):
        digests.check_contents(file, entry)


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(1, 17))
def test_digests_do_not_depend_on_how_bytes_arrive(pieces: list[bytes], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "BLOCK", block)
        digest = FileDigest()
        for piece in pieces:
            digest.update(piece)
        whole = b"".join(pieces)
        assert digest.entry() == entry_of(whole)
        assert len(digest.entry()["blocks"]) == -(-len(whole) // block)


def test_a_manifest_edited_by_hand_is_refused(store: Path) -> None:
    file = store / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["sources"][0]["name"] = "other"
    file.write_text(json.dumps(manifest))
    assert "was changed after it was written" in said(store)


def test_all_that_is_looked_at_is_reported(original: TokenStore) -> None:
    seen: list[int] = []
    open_store(original.path, watch=seen.append)
    expected = bytes_to_verify(read_manifest(original.path))
    headers = sum(  # the header of tokens.npy is no id
        (original.path / split / "tokens.npy").stat().st_size
        - getattr(original, split).tokens.nbytes
        for split in SPLITS
    )
    assert sum(seen) == expected - headers


def test_the_verb_says_what_was_checked(original: TokenStore, capsys) -> None:
    assert cli.main(["data", "verify", f"--store={original.path}"]) == exit_codes.DONE
    out = capsys.readouterr().out
    for told in ("13 files", "sha256", "ids", "100", "tokenizer"):
        assert told in out
    assert f"{len(original.train.tokens):,}" in out


def test_the_verb_says_what_is_wrong_in_one_line(store: Path, capsys) -> None:
    file = store / "held_out" / "tokens.npy"
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 4
    file.write_bytes(damaged)
    assert cli.main(["data", "verify", f"--store={store}"]) == exit_codes.FAILED
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert str(file) in line
    assert f"bytes 0 to {len(damaged) - 1:,}" in line


@pytest.mark.slow
def test_a_store_of_real_text(real_wiki_files, real_books, real_data, tmp_path, capsys) -> None:
    folders = {"wikiextractor": real_wiki_files[0].parent, "books": real_books[0].parent.parent}
    tokenizer = Tokenizer.load(real_data / "vocab" / "bert-base-uncased-vocab.txt")
    sources = [parse_source(f"{kind}:{folder}") for kind, folder in folders.items()]
    built = build_store(sources, tokenizer, tmp_path / "store", workers=1, progress=False)
    assert cli.main(["data", "verify", f"--store={built.path}"]) == exit_codes.DONE
    tokens = built.path / "train" / "tokens.npy"
    with tokens.open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\xff")
    assert cli.main(["data", "verify", f"--store={built.path}"]) == exit_codes.FAILED
    assert f"{tokens}: bytes 0 to" in capsys.readouterr().err
