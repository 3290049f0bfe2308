"""Duplicates: which documents --dedup leaves out, the same from every runner."""

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_jax import cli
from bert_jax.data_pipeline.sources import cutting, parse_source
from bert_jax.data_pipeline.store.split import Split
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.store_build import units
from bert_jax.data_pipeline.store_build.build import build_shards, build_store
from bert_jax.data_pipeline.store_build.near_duplicates import _LEAST, _keep_first
from bert_jax.data_pipeline.store_build.signatures import PLACES, signature
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.errors import UserError

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import duplicates

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, ".", *LETTERS, *(f"##{c}" for c in LETTERS)])


def words(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    drawn = "".join(draw.choices(LETTERS, k=8 * count))
    return [drawn[i : i + draw.randint(2, 8)] for i in range(0, 8 * count, 8)]


def dropped(text: list[str], share: float, seed: int) -> list[str]:
    """Leaves out this share of the words, one by one."""
    left_out = set(random.Random(seed).sample(range(len(text)), round(share * len(text))))
    return [word for number, word in enumerate(text) if number not in left_out]


def write(file: Path, documents: list[list[str]]) -> None:
    """Writes documents in lines of ten words."""
    lines = ["\n".join(" ".join(d[i : i + 10]) for i in range(0, len(d), 10)) for d in documents]
    file.write_text("\n\n".join(lines) + "\n")


ORIGINALS = [words(400, seed) for seed in range(200)]
NEAR = [dropped(text, 0.01, n) for n, text in enumerate(ORIGINALS[:40])]
FAR = [dropped(text, 0.10, n) for n, text in enumerate(ORIGINALS[40:80])]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two folders of text in small shards; the second has copies of the first, and exact ones."""
    monkeypatch.setattr(cutting, "RANGE_BYTES", 50_000)
    monkeypatch.setattr(units, "_UNIT_BYTES", 50_000)
    (tmp_path / "text").mkdir()
    write(tmp_path / "text/a.txt", ORIGINALS)
    copies = [*NEAR, *FAR, *ORIGINALS[190:], ORIGINALS[190], *(words(50, -n) for n in range(1, 9))]
    write(tmp_path / "text/b.txt", copies)
    return tmp_path / "text"


def made(text: Path, out: Path, dedup: str, workers: int = 1) -> TokenStore:
    sources = [parse_source(f"lines:{text}/{name}.txt,name={name}") for name in "ab"]
    return build_store(
        sources, TOKENIZER, out, dedup=dedup, workers=workers, progress=False, held_out_share=0.1
    )


def documents_of(split: Split) -> list[tuple[int, ...]]:
    sums = np.concatenate([[0], np.cumsum(split.sentence_lengths, dtype=np.int64)])
    ends = sums[np.cumsum(split.document_lengths)]
    parts = np.split(split.tokens, ends)[:-1]
    return [tuple(part.tolist()) for part in parts]


def documents(store: TokenStore) -> list[tuple[int, ...]]:
    """The ids of every document of both splits, sorted."""
    return sorted([*documents_of(store.train), *documents_of(store.held_out)])


def ids(text: list[str]) -> tuple[int, ...]:
    return tuple(np.concatenate(TOKENIZER.encode_batch(text)).tolist())


def test_near_duplicates_are_found_and_others_are_kept(text: Path, tmp_path: Path) -> None:
    store = made(text, tmp_path / "store", "near")
    a, b = store.manifest["sources"]
    assert (a["duplicates"], b["duplicates"]) == ({"a": 0, "b": 0}, {"a": 40 + 11, "b": 0})
    kept = [*ORIGINALS, *FAR, *(words(50, -n) for n in range(1, 9))]
    assert documents(store) == sorted(map(ids, kept))
    assert b["splits"]["held_out"]["documents"] == 5  # a tenth of the 48 that are kept


def test_what_is_left_out_can_be_listed(text: Path) -> None:
    sources = [parse_source(f"lines:{text}/{name}.txt,name={name}") for name in "ab"]
    found = list(duplicates.left_out(sources, "near"))
    originals = [*ORIGINALS[:40], *ORIGINALS[190:], ORIGINALS[190]]
    assert [one.kept_name for one in found] == [" ".join(t)[:60].strip() for t in originals]
    assert {(one.source, one.kept_source) for one in found} == {("b", "a")}
    assert [one.words for one in found] == [len(t) for t in (*NEAR, *originals[40:])]
    copies, same = found[:40], found[40:]
    assert all(0.85 < one.similarity < 0.99 for one in copies)
    assert all(one.similarity == 1 for one in same)


def test_exact_duplicates_are_those_with_the_same_raw_text(text: Path, tmp_path: Path) -> None:
    store = made(text, tmp_path / "store", "exact")
    assert [entry["duplicates"] for entry in store.manifest["sources"]] == [
        {"a": 0, "b": 0},
        {"a": 11, "b": 0},
    ]
    assert len(documents(store)) == 200 + 40 + 40 + 8
    held_out, train = ({*documents_of(split)} for split in (store.held_out, store.train))
    assert not held_out & train


def test_nothing_is_left_out_by_default(text: Path, tmp_path: Path) -> None:
    store = made(text, tmp_path / "store", "none")
    assert "duplicates" not in store.manifest["sources"][1]
    assert len(documents(store)) == 200 + 40 + 40 + 11 + 8


@pytest.mark.slow
def test_every_runner_leaves_out_the_same(text: Path, tmp_path: Path) -> None:
    one = made(text, tmp_path / "one", "near")
    four = made(text, tmp_path / "four", "near", workers=4)
    sources = [parse_source(f"lines:{text}/{name}.txt,name={name}") for name in "ab"]
    for number in (3, 1, 2):
        build_shards(
            sources, TOKENIZER, tmp_path / "merged", number=number, count=3, dedup="near",
            workers=1, progress=False,
        )  # fmt: skip
    merged = build_store(
        sources, TOKENIZER, tmp_path / "merged", dedup="near", merge_only=True, workers=1,
        progress=False, held_out_share=0.1,
    )  # fmt: skip
    assert one.manifest["digest"] == four.manifest["digest"] == merged.manifest["digest"]


def test_what_is_like_a_document_that_is_left_out_is_kept() -> None:
    """No chains: c is like b, which is left out because it is like a; c is not like a."""
    a = np.zeros(PLACES, np.uint32)
    b, c = a.copy(), a.copy()
    b[_LEAST:] = 1
    c[_LEAST - 12 :] = 1
    buckets = np.zeros((16, 3), np.int32)
    similar = np.empty(3, np.int32)
    _keep_first(np.stack([a, b, c]), buckets, _LEAST, similar)
    assert similar.tolist() == [0, 0, 2]
    _keep_first(np.stack([b, a, c]), buckets, _LEAST, similar)
    assert similar.tolist() == [0, 0, 0]  # both are like b, which is first


def test_signatures_agree_in_as_large_a_share_as_the_texts_have_shingles_in_common() -> None:
    texts = [words(400, 1)]
    texts += [texts[0][:320] + words(80, 2), texts[0][:200] + words(200, 3), texts[0][::-1]]
    first, *others = [
        (signature(" ".join(text)), {*zip(*(text[k:] for k in range(5)), strict=False)})
        for text in texts
    ]
    for own, shingles in others:
        similarity = len(shingles & first[1]) / len(shingles | first[1])
        assert abs((own == first[0]).mean() - similarity) < 0.15
    assert not (others[-1][0] == first[0]).any()  # the same words in another order


def test_a_signature_does_not_depend_on_the_pieces_it_is_made_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = " ".join(words(300, 1))
    whole = signature(text)
    for size in (1, 7, 100):
        monkeypatch.setattr("bert_jax.data_pipeline.store_build.signatures._CHUNK", size)
        assert np.array_equal(signature(f"{text.upper()} \n"), whole)
    assert not np.array_equal(signature("one two"), signature("one three"))
    assert not np.array_equal(signature("one two"), signature("two one"))
    assert np.array_equal(signature(""), signature(" "))


def test_near_without_rensa_is_one_line(
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import importlib.metadata

    def missing(name: str) -> str:
        if name == "rensa":
            raise importlib.metadata.PackageNotFoundError(name)
        return original(name)

    original = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(UserError, match=r"needs rensa.*pip install 'bert-jax\[dedup\]'"):
        made(text, tmp_path / "store", "near")


def test_another_dedup_is_said(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    TOKENIZER.save(tmp_path / "tokenizer.json")
    flags = [f"--source=lines:{text}", f"--tokenizer={tmp_path}/tokenizer.json", "--workers=1"]
    command = ["data", "build", *flags, f"--out={tmp_path}/store"]
    assert cli.main(command) == 0
    assert cli.main([*command, "--dedup=exact"]) == 1
    assert "the dedup (none, now exact)" in capsys.readouterr().err
    assert json.loads((tmp_path / "store/manifest.json").read_text())["build"]["dedup"] == "none"


def test_a_source_of_nothing_but_duplicates(text: Path, tmp_path: Path) -> None:
    write(text / "b.txt", ORIGINALS[:5])
    with pytest.raises(UserError, match="in 1 file after cleaning and 5 duplicates"):
        made(text, tmp_path / "store", "exact")
