"""`config.init_vocabulary` and `config.init_positions`: the rows that a run takes of its model."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus import SPECIAL, WORDS, small_config, small_store
from stores import StoredDocument, write_store

import bert_jax
from bert_jax.checkpoint import manager
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.publish.export import run_export
from bert_jax.training import loop
from bert_jax.training.initial_vocabulary import (
    extended,
    first_difference,
    read_otherwise,
    replaced,
)
from bert_jax.training.options import RunOptions
from bert_jax.workdir.layout import Workdir

OLD = [*SPECIAL, "a", "at", "##at", "##ation", "##s", "play", "##ing", "un", ",", "1"]


def tokenizer(*entries: str) -> Tokenizer:
    return Tokenizer.from_vocab(entries, lowercase=True)


def ids(*entries: str) -> list[int]:
    return [OLD.index(entry) for entry in entries]


@pytest.fixture(scope="module")
def pieces() -> Tokenizer:
    """A SentencePiece tokenizer whose entries have other places in a word."""
    text = ["play playing plays at playing at a play", "unplay, at 1 1 playing"] * 20
    return Tokenizer.train(text, 40, model="bpe")


TABLE = np.random.default_rng(3).standard_normal((len(OLD) + 2, 4), np.float32)  # two for hardware


def mean(*entries: str) -> np.ndarray:
    return TABLE[ids(*entries)].mean(0, dtype=np.float64).astype(np.float32)


# --- which rows ----------------------------------------------------------------------------------


def test_an_extension_keeps_every_row_and_adds_means() -> None:
    rows = extended(tokenizer(*OLD), tokenizer(*OLD, "playing", "unplays", "##ations", "##atings"))
    taken = rows.take(TABLE)
    assert taken.dtype == np.float32
    np.testing.assert_array_equal(taken[: len(OLD)], TABLE[: len(OLD)])
    made = [mean("play", "##ing"), mean("un", "##s"), mean("##ation", "##s")]
    np.testing.assert_array_equal(taken[len(OLD)], made[0])
    np.testing.assert_array_equal(taken[len(OLD) + 2], made[2])
    np.testing.assert_array_equal(taken[len(OLD) + 3], mean("##at", "##ing", "##s"))
    # "##play" is no entry: nothing but [UNK] for the word, so the mean of all rows, not of hardware
    everything = TABLE[: len(OLD)].mean(0, dtype=np.float64).astype(np.float32)
    np.testing.assert_array_equal(taken[len(OLD) + 1], everything)
    assert rows.line() == (
        f"vocabulary: {len(OLD)} of {len(OLD) + 4} entries copied, 4 are means of the model's "
        "pieces (1 have none: means of all rows)"
    )


def test_a_bias_is_extended_like_a_row() -> None:
    taken = extended(tokenizer(*OLD), tokenizer(*OLD, "playing")).take(TABLE[:, 0])
    np.testing.assert_array_equal(taken, [*TABLE[: len(OLD), 0], mean("play", "##ing")[0]])


def test_an_extension_by_nothing_is_the_model() -> None:
    rows = extended(tokenizer(*OLD), tokenizer(*OLD))
    np.testing.assert_array_equal(rows.take(TABLE), TABLE[: len(OLD)])
    assert rows.line() == f"vocabulary: {len(OLD)} of {len(OLD)} entries copied"


def test_tokenizers_of_the_same_entries_may_read_text_otherwise() -> None:
    entries = [*SPECIAL, "c", "##a", "##f", "##e", "##é"]
    plain = Tokenizer.from_vocab(entries, lowercase=True)
    values = json.loads(plain.json)
    values["normalizer"]["strip_accents"] = False
    accents = Tokenizer(json.dumps(values).encode())
    assert first_difference(accents, plain) == ""
    said = "the model reads 'café' as 'c ##a ##f ##é', the store as 'c ##a ##f ##e'"
    assert read_otherwise(accents, plain) == said
    assert read_otherwise(plain, Tokenizer.from_vocab(entries, lowercase=True)) == ""


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (OLD[:-1], f"entry {len(OLD) - 1} of the model's vocabulary is '1', that of the store is"),
        ([*OLD[:6], "b", *OLD[7:]], "entry 6 of the model's vocabulary is 'at', that of the store"),
        ([*OLD[:6], "b", *OLD[6:]], "is 'b'; for config.init_vocabulary=extend, keep"),
    ],
)
def test_what_extends_nothing_is_one_line(entries: list[str], message: str) -> None:
    with pytest.raises(UserError) as refused:
        extended(tokenizer(*OLD), tokenizer(*entries))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_special_tokens_are_replaced_by_role_and_others_by_text() -> None:
    new = ["##s", "[MASK]", "playing", "[SEP]", "at", "[PAD]", "[CLS]", "##ations", "[UNK]"]
    taken = replaced(tokenizer(*OLD), tokenizer(*new)).take(TABLE)
    for entry, row in zip(new, taken, strict=True):
        if entry in OLD:
            np.testing.assert_array_equal(row, TABLE[OLD.index(entry)], err_msg=entry)
    np.testing.assert_array_equal(taken[2], mean("play", "##ing"))
    np.testing.assert_array_equal(taken[7], mean("##ation", "##s"))


def test_pieces_replace_word_pieces_at_the_same_place_in_a_word(pieces: Tokenizer) -> None:
    rows = replaced(tokenizer(*OLD), pieces)
    entries = {pieces.token(i): i for i in range(pieces.vocab_size)}
    shared = {"▁play": "play", "▁at": "at", "▁a": "a", "ing": "##ing", "s": "##s"}
    for piece, entry in shared.items():
        assert rows.source[entries[piece]] == OLD.index(entry), piece
    assert list(rows.source[list(pieces.special)]) == list(range(5))
    np.testing.assert_array_equal(rows.pieces[entries["▁playing"]], ids("play", "##ing"))
    assert list(rows.pieces[entries["▁"]]) == []  # begins a word; without a text


def test_word_pieces_replace_pieces(pieces: Tokenizer) -> None:
    rows = replaced(pieces, tokenizer(*OLD, "##plays"))
    entries = {pieces.token(i): i for i in range(pieces.vocab_size)}
    assert rows.source[OLD.index("play")] == entries["▁play"]
    assert rows.source[OLD.index("##ing")] == entries["ing"]
    assert list(rows.source[:5]) == list(pieces.special)
    assert rows.pieces[len(OLD)] == [entries["▁plays"]]  # a text inside a word is split as a word


# --- runs ----------------------------------------------------------------------------------------


BYTES = ["thistle missing mission cell excellent", "this mission was missing a cell"] * 9


def test_new_entries_of_byte_level_bpe_have_a_space_before_them_where_a_word_begins() -> None:
    old = Tokenizer.train([*BYTES, *["this is"] * 40], 280, model="byte_bpe")
    new = Tokenizer.train(BYTES, 320, model="byte_bpe")
    of = {
        new.token(entry): [old.token(piece) for piece in given]
        for entry, given in replaced(old, new).pieces.items()
    }
    assert of["\u0120thistle"][0] == "\u0120this"
    assert of["cellen"] == ["cell", "en"]
    inside = {entry: given for entry, given in of.items() if not entry.startswith("\u0120")}
    assert len(inside) > 3
    assert all("".join(given) == entry for entry, given in inside.items())


def test_byte_level_bpe_and_pieces_share_entries_of_the_same_text(pieces: Tokenizer) -> None:
    ours = Tokenizer.train(BYTES, 320, model="byte_bpe")
    source = replaced(pieces, ours).source
    shared = {ours.token(i): pieces.token(j) for i, j in enumerate(source) if j >= 0}
    assert (shared["\u0120a"], shared["a"]) == ("\N{LOWER ONE EIGHTH BLOCK}a", "a")


def store_of(folder: Path, *added: str, first: tuple[str, ...] = SPECIAL) -> TokenStore:
    """The documents of `small_store`, with other special ids and more entries."""
    words = [f"w{i}" for i in range(WORDS)]
    documents = [StoredDocument([[7, 8, 9, 10 + i], [20, 21, 100]], source=0) for i in range(40)]
    return write_store(
        folder,
        tokenizer=Tokenizer.from_vocab([*first, *words, *added], lowercase=True),
        train=documents[8:],
        held_out=documents[:8],
        sources=("wiki",),
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workdir of two steps in `run`, with its export in `exported` beside it."""
    folder = tmp_path_factory.mktemp("source")
    store = small_store(folder / "store")
    loop.pretrain(small_config(store).replace({"phases[0].steps": 2}), folder / "run")
    run_export(folder / "run", folder / "exported")
    return folder


def unmoved(store: TokenStore, source: Path, **changes: object) -> Config:
    """A run of one step from the export, whose learning rate is zero."""
    config = small_config(store).replace({"phases[0].steps": 1, "optimizer.learning_rate": 0.0})
    return config.replace({"init": str(source / "exported"), **changes})


def params_of(run: Path) -> Mapping[str, Any]:
    return manager.load_params(Workdir.open(run))[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exported", "run"])
def test_a_run_extends_the_vocabulary_of_its_model(
    name: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    store = store_of(tmp_path / "store", "[unused0]", *(f"w1 w{i}".replace(" ", "") for i in "ab"))
    config = unmoved(store, source, init=str(source / name), init_vocabulary="extend")
    loop.pretrain(config, tmp_path / "run")
    old, new = params_of(source / "run"), params_of(tmp_path / "run")
    assert "vocabulary: 100 of 103 entries copied, 3 are means" in capsys.readouterr().out
    for part in ("word", "bias"):
        theirs, ours = (
            p["mlm"]["bias"] if part == "bias" else p["encoder"]["embeddings"]["word"]
            for p in (old, new)
        )
        np.testing.assert_array_equal(ours[:100], theirs[:100])
        everything = np.asarray(theirs[:100]).mean(0, dtype=np.float64).astype(np.float32)
        np.testing.assert_array_equal(ours[100:103], np.stack([everything] * 3))
        assert not np.any(ours[103:])
    np.testing.assert_array_equal(
        new["encoder"]["layers"]["mlp"]["up"]["kernel"],
        old["encoder"]["layers"]["mlp"]["up"]["kernel"],
    )
    np.testing.assert_array_equal(new["mlm"]["dense"]["kernel"], old["mlm"]["dense"]["kernel"])
    run_export(tmp_path / "run", tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["vocab_size"] == 103


@pytest.mark.slow
def test_a_run_replaces_the_vocabulary_resumes_and_refuses_another_way(
    source: Path, tmp_path: Path
) -> None:
    turned = tuple(reversed(SPECIAL))
    store = store_of(tmp_path / "store", "new", first=turned)
    shutil.copytree(source / "exported", tmp_path / "model")
    config = unmoved(store, source, init=str(tmp_path / "model"), init_vocabulary="replace")
    config = config.replace("phases[0].steps", 3)
    with pytest.raises(bert_jax.StoppedError):
        loop.pretrain(config, tmp_path / "run", options=RunOptions(stop_after=1))
    old, new = (
        params_of(p)["encoder"]["embeddings"]["word"] for p in (source / "run", tmp_path / "run")
    )
    np.testing.assert_array_equal(new[:5], old[:5][::-1])
    np.testing.assert_array_equal(new[5:100], old[5:100])
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(UserError, match=r"cannot resume with another config\.init_vocabulary"):
        loop.pretrain(config.replace("init_vocabulary", "extend"), tmp_path / "run")
    loop.pretrain(config, tmp_path / "run")


@pytest.mark.slow
def test_positions_repeat_the_table(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    store = small_store(tmp_path / "store")
    more = {"init_positions": "repeat", "model.max_position_embeddings": 80}
    loop.pretrain(unmoved(store, source, **more), tmp_path / "run")
    old, new = (
        params_of(p)["encoder"]["embeddings"]["position"]
        for p in (source / "run", tmp_path / "run")
    )
    np.testing.assert_array_equal(new, np.concatenate([old, old, old[:16]]))
    assert "positions: 32 of 80 copied, the rest repeat them" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "is not that of the store"),
        ({}, "or set config.init_vocabulary to extend or replace"),
        ({"init": "", "init_vocabulary": "extend"}, "init_vocabulary=extend has no effect without"),
        ({"init": "", "init_positions": "repeat"}, "init_positions=repeat has no effect without"),
        ({"init_vocabulary": "extend"}, "entry 0 of the model's vocabulary is '[PAD]', that of"),
        ({"init_vocabulary": "replace", "model.hidden_size": 64}, "--config.model.hidden_size=32"),
        (
            {"init_vocabulary": "replace", "model.max_position_embeddings": 64},
            "set --config.model.max_position_embeddings=32, or --config.init_positions=repeat",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(
    changes: dict, message: str, source: Path, tmp_path: Path
) -> None:
    store = store_of(tmp_path / "store", "new", first=tuple(reversed(SPECIAL)))
    with pytest.raises(UserError) as refused:
        loop.pretrain(unmoved(store, source, **changes), tmp_path / "run")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()
