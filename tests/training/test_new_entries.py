"""`config.init_entries=cooccurrence`: new entries of a vocabulary that start from counts."""

from pathlib import Path

import numpy as np
import pytest
import threadpoolctl
from corpus import SPECIAL
from processes import assert_same_bits, run
from stores import StoredDocument, write_store
from test_word_start import BIAS, COUNTED, WORDS, start, stopped, unmoved

from bert_jax.config.schema import Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.training import loop, new_entries, word_start
from bert_jax.training.initial import find_initial
from bert_jax.training.new_entries import TAKEN, aligned
from bert_jax.training.store_data import StoreData
from bert_jax.workdir.layout import Workdir

OLD = 60  # words of the model
LIKE = {"n0": 12, "n1": 25, "n2": 39}  # new words in the places of known ones
RARE = "n3"
NAMES = [*SPECIAL, *(f"w{i}" for i in range(OLD)), *LIKE, RARE]
FIRST = len(SPECIAL)


def store_of(folder: Path, names: list[str], texts: list[list[int]]) -> TokenStore:
    return write_store(
        folder,
        tokenizer=Tokenizer.from_vocab(names, lowercase=True),
        train=[StoredDocument([text]) for text in texts],
        held_out=[StoredDocument([texts[0]])] * 2,
    )


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    """Words, each of which is followed by one of a few of its own."""
    draw = np.random.default_rng(0)
    texts, word = [], 0
    for _ in range(60):
        text = []
        for _ in range(100):
            word = (7 * word + draw.integers(3)) % OLD
            text.append(FIRST + word)
        texts.append(text)
    return texts


@pytest.fixture(scope="module")
def model(texts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of a model whose words are those of its text's counts."""
    folder = tmp_path_factory.mktemp("model")
    start(unmoved(store_of(folder / "store", NAMES[:-4], texts), **COUNTED), folder / "run")
    return folder / "run_exported"


@pytest.fixture(scope="module")
def store(texts, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """The same text, in which every other one of three words is a new one."""
    other = {FIRST + word: NAMES.index(name) for name, word in LIKE.items()}
    texts = [[other.get(w, w) if n % 2 else w for n, w in enumerate(text)] for text in texts]
    texts[0][10:12] = [NAMES.index(RARE)] * 2
    return store_of(tmp_path_factory.mktemp("new") / "store", NAMES, texts)


def config_of(store: TokenStore, model: Path, **changes: object) -> Config:
    given = {"init": str(model), "init_vocabulary": "extend", "init_entries": "cooccurrence"}
    given |= changes
    if given["init_entries"] == "cooccurrence":
        given["model.cooccurrence.window"] = COUNTED["model.cooccurrence.window"]
    return unmoved(store, **given)


@pytest.fixture(scope="module")
def pieces(store, model, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    config = config_of(store, model, init_entries="pieces")
    return start(config, tmp_path_factory.mktemp("pieces") / "run")


@pytest.fixture(scope="module")
def found(store, model, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return start(config_of(store, model), tmp_path_factory.mktemp("found") / "run")


def test_new_entries_start_near_the_words_in_whose_places_they_stand(found, pieces) -> None:
    old = found[WORDS][FIRST : FIRST + OLD]
    for name, like in LIKE.items():
        row = found[WORDS][NAMES.index(name)]
        near = old @ row / np.linalg.norm(old, axis=1) / np.linalg.norm(row)
        assert near.argmax() == like
        assert near[like] > 0.9
        assert found[BIAS][NAMES.index(name)] != pieces[BIAS][NAMES.index(name)]


def test_what_new_entries_start_from_is_said_once(store, model, tmp_path, capsys) -> None:
    stopped(config_of(store, model, init_vocabulary="replace", **COUNTED), tmp_path / "run")
    said = capsys.readouterr().out
    assert said.index(", 4 are new") < said.index("new entries: 3 of 4 start from")
    assert "means of the model's pieces" not in said
    assert "not counts of the store" not in said


def test_nothing_else_changes(found, pieces) -> None:
    new = [NAMES.index(name) for name in LIKE]
    for name, before in pieces.items():
        after = found[name]
        if name in (WORDS, BIAS):
            before, after = np.delete(before, new, 0), np.delete(after, new, 0)
        np.testing.assert_array_equal(after, before, err_msg=name)


def test_vectors_are_turned_and_biases_on_a_line() -> None:
    draw = np.random.default_rng(1)
    turn, _ = np.linalg.qr(draw.standard_normal((8, 8)))
    copied, counts = np.arange(40) < 30, draw.integers(3, 1000, 40)
    vectors = draw.standard_normal((40, 8))
    vectors -= np.sqrt(counts[:30]) @ vectors[:30] / np.sqrt(counts[:30]).sum()
    vectors /= np.linalg.norm(vectors[:30], axis=1).mean()
    vectors[[4, 35]] = 0  # rare
    table, bias = 3 * vectors @ turn, 0.5 * np.log(counts + 1) - 2
    own = {"table": np.where(copied[:, None], table, 7), "bias": np.where(copied, bias, 7)}
    made, _ = aligned(vectors, counts, copied, own)
    new = np.flatnonzero(made[TAKEN])
    assert new.tolist() == [30, 31, 32, 33, 34, 36, 37, 38, 39]
    np.testing.assert_allclose(made["bias"][new], bias[new])
    near = (made["table"] * table)[new].sum(1)
    lengths = np.linalg.norm(made["table"][new], axis=1) * np.linalg.norm(table[new], axis=1)
    assert (near > 0.98 * lengths).all()
    for name, rows in own.items():
        np.testing.assert_array_equal(np.delete(made[name], new, 0), np.delete(rows, new, 0))


def test_threads_change_no_bit(store, model, found, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(word_start, "available_cores", lambda: 3)
    with threadpoolctl.threadpool_limits(3):
        again = start(config_of(store, model), tmp_path / "run")
    for name in (WORDS, BIAS):
        np.testing.assert_array_equal(again[name], found[name])


def test_a_run_started_again_counts_nothing_twice(
    store, model, found, tmp_path, monkeypatch
) -> None:
    stopped(config_of(store, model), tmp_path / "run")
    monkeypatch.setattr(new_entries, "word_vectors", None)
    again = start(config_of(store, model), tmp_path / "run")
    np.testing.assert_array_equal(again[WORDS], found[WORDS])


def test_of_too_few_entries_new_ones_keep_the_mean_of_their_pieces(
    model, pieces, tmp_path, capsys
) -> None:
    few = [[FIRST + n % 20 for n in range(90)], [NAMES.index(name) for name in LIKE] * 20] * 3
    store = store_of(tmp_path / "store", NAMES, few)
    again = start(config_of(store, model), tmp_path / "run")
    np.testing.assert_array_equal(again[WORDS], pieces[WORDS])
    said = "".join(capsys.readouterr())
    assert "new entries keep the mean of their pieces: 20 entries that the model has" in said


def test_a_store_without_new_entries_is_the_model(model, texts, tmp_path) -> None:
    store = store_of(tmp_path / "store", NAMES[:-4], texts)
    loop.pretrain(config_of(store, model), tmp_path / "run")
    assert not (tmp_path / "run/word_start.npz").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init_vocabulary": "same"}, "init_entries=cooccurrence has no effect with config.init_v"),
        ({"init": "", "init_vocabulary": "same"}, "has no effect without config.init"),
        ({"task.name": "sst2"}, "counts the text of a token store, which a task does not have"),
    ],
)
def test_what_has_no_effect_is_refused(changes, message, store, model, tmp_path) -> None:
    with pytest.raises(UserError, match=message):
        find_initial(
            config_of(store, model, **changes), Workdir.open(tmp_path / "run"), StoreData(store)
        )


@pytest.mark.nightly
@pytest.mark.processes
def test_processes_change_no_bit(store, model, tmp_path) -> None:
    config = config_of(store, model, **{"phases[0].steps": 2, "optimizer.learning_rate": 1e-3})
    for count in (1, 2):
        run(config, tmp_path / str(count), tmp_path, processes=count)
    assert_same_bits(tmp_path / "1", tmp_path / "2")
