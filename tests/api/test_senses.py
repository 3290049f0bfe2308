"""Senses of a word: the file, the figures against plain ones, and `bert-jax look senses`."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from layout_models import layout_config, task_params

from bert_jax import cli, exit_codes
from bert_jax.ablation.intervals import wilson
from bert_jax.api.model import Tokens
from bert_jax.api.senses import look_at_senses, read_occurrences, write_page
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.errors import UserError
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

GOOD = "index\tsentence\tlabel\n1\tthe bank, it lends\tmoney\n0\tbank of a river\triver\n"


def written(folder: Path, text: str, name: str = "bank.tsv") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_a_word_is_found_without_the_signs_around_it(tmp_path: Path) -> None:
    more = "2\tthe (old) bank's\tmoney\n3\ta river , bank\triver\n"
    found = read_occurrences(written(tmp_path, GOOD + more))
    assert [one.word for one in found] == ["bank", "bank", "bank's", "bank"]
    assert [one.sense for one in found] == ["money", "river"] * 2
    assert [one.row for one in found] == [2, 3, 4, 5]
    plain = written(tmp_path, "0\tbank\n0\tbank\n0\tbank\n0\tbank\n", "plain.tsv")
    labels = written(tmp_path, "a\nb\nb\na\n", "gold.txt")
    assert [one.sense for one in read_occurrences(plain, labels)] == ["a", "b", "b", "a"]
    assert {one.sense for one in read_occurrences(plain)} == {""}


@pytest.mark.parametrize("word", ["cafe\u0301", "हिन्दी", "שֶׁלְּךָ"])
def test_a_word_keeps_the_marks_of_its_last_letter(word: str, tmp_path: Path) -> None:
    (one, _) = read_occurrences(written(tmp_path, f"1\ta “{word}”,\n0\t{word}\n"))
    assert one.word == word


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no sentence; each line is INDEX"),
        ("0 bank\n", "row 1: 1 column; each line is INDEX<TAB>SENTENCE"),
        ("0\tbank\n\n0\tbank\n", "row 2: blank line; each line is INDEX<TAB>SENTENCE"),
        ("x\tbank\ta\n", "row 1: 'x' is not the index of a word"),
        ("-1\tbank\ta\n", "row 1: '-1' is not the index of a word"),
        ("0\tbank\ta\n2\ta bank\tb\n", "row 2: index 2 is outside its sentence of 2 words; words"),
        ("0\tbank\ta\n0\tbank\ta\n0\tbank\tb\n", "row 3: the only sentence of sense 'b'; give it"),
        ("0\tbank\ta\n0\tbank\n0\tbank\ta\n", "row 2: no label; give every sentence one, or none"),
        ("0\tbank\ta\n0\tbank\ta\n", "all sentences have the sense 'a'; give a second"),
        ("0\tbank\n", "one sentence; give several with the word"),
    ],
)
def test_a_bad_line_is_named(text: str, says: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as error:
        read_occurrences(path)
    assert str(error.value).startswith(f"{path}: {says}")
    assert "\n" not in str(error.value)


def test_labels_beside_are_as_many_as_sentences(tmp_path: Path) -> None:
    path, labels = written(tmp_path, "0\tbank\n" * 4), written(tmp_path, "a\na\nb\n", "gold.txt")
    said = r"gold.txt: 3 labels, but .*bank.tsv has 4 sentences; .*, or leave out its header$"
    with pytest.raises(UserError, match=said):
        read_occurrences(path, labels)
    labels = written(tmp_path, "a\na\nb\nb\n\n \n", "gold.txt")
    assert [one.sense for one in read_occurrences(path, labels)] == ["a", "a", "b", "b"]
    with pytest.raises(UserError, match=r"bank.tsv: row 2: has a label, and so has .*gold.txt"):
        read_occurrences(written(tmp_path, GOOD), labels)


WORDS = ("bank", "river", "money", "the")
TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, *WORDS])
LAYERS, WIDTH = 3, 8


class Drawn:
    """A model whose states are drawn: the later the layer, the further apart the sentences with
    "river" and those with "money"."""

    tokenizer, config = TOKENIZER, SimpleNamespace(hidden_size=WIDTH)

    def __init__(self, cut: int = 0) -> None:
        self.cut = cut

    def tokens(self, texts: list[str], *, spans: bool) -> list[Tokens]:
        special = TOKENIZER.special
        return [
            Tokens([special.cls, *ids.tolist(), special.sep], where, self.cut)
            for ids, where in TOKENIZER.encode_spans(texts)
        ]

    def hidden_states(self, texts: list[str], *, layers: str) -> list[np.ndarray]:
        assert layers == "0:"
        rng, found = np.random.default_rng(len(texts)), []
        for text in texts:
            states = rng.normal(size=(len(text.split()) + 2, LAYERS, WIDTH))
            states[:, :, 0] += np.arange(LAYERS) * (2.0 if "river" in text else -2.0)
            found.append(states.reshape(len(states), -1).astype(np.float32))
        return found


def bank(folder: Path, number: int = 12) -> Path:
    rows = ["1\tthe bank river\triver\n", "1\tmoney bank\tmoney\n", "0\tbank money the\tmoney\n"]
    return written(folder, "".join(rows[i % 3] for i in range(number)))


def test_figures_are_those_of_plain_loops(tmp_path: Path) -> None:
    occurrences, model = read_occurrences(bank(tmp_path)), Drawn()
    found = look_at_senses(model, tmp_path, occurrences)  # type: ignore[arg-type]
    assert found.names == ["money", "river"]
    assert found.labels.tolist() == [1, 0, 0] * 4
    assert found.most_frequent == pytest.approx(8 / 12)
    states = model.hidden_states([one.sentence for one in occurrences], layers="0:")
    places = [1 + one.sentence.split().index("bank") for one in occurrences]
    vectors = np.stack([state[place] for state, place in zip(states, places, strict=True)])
    by_layer = vectors.reshape(12, LAYERS, WIDTH).swapaxes(0, 1)
    assert found.nearest is not None
    for layer, own in enumerate(by_layer):
        for i, vector in enumerate(own):
            left = np.arange(12) != i
            centroids = [own[left & (found.labels == c)].mean(axis=0) for c in (0, 1)]
            distances = [np.linalg.norm(vector - one) for one in centroids]
            assert found.nearest[layer, i] == np.argmin(distances)
        centred = own - own.mean(axis=0)
        _, sizes, directions = np.linalg.svd(centred)
        wanted = np.abs(centred @ directions[:2].T)
        np.testing.assert_allclose(np.abs(found.components[layer]), wanted, atol=1e-4)
        assert found.shares[layer] == pytest.approx((sizes[:2] ** 2).sum() / (sizes**2).sum())
    assert found.correct is not None
    assert found.correct[-1] == 12 > found.correct[0]


@pytest.mark.parametrize(
    ("right", "said"),
    [([9, 12, 12], "at layer 1, the first of the best;"), ([9, 12, 11], "at layer 1, the best;")],
)
def test_layers_that_are_equally_good_are_said(right: list[int], said: str, tmp_path: Path) -> None:
    found = look_at_senses(Drawn(), tmp_path, read_occurrences(bank(tmp_path)))  # type: ignore[arg-type]
    nearest = [np.where(np.arange(12) < n, found.labels, 1 - found.labels) for n in right]
    found = dataclasses.replace(found, nearest=np.stack(nearest))
    assert said in write_page(tmp_path / "page.html", found, "m")


def test_different_words_are_said(tmp_path: Path) -> None:
    """A form of a word is no error, nor is another word; a capital letter makes no other one."""
    for rows, said in (
        ("0\tbank\n1\tthe Bank\n", ""),
        ("0\tbank\n0\triver\n0\tmoney\n1\tthe bank\n", "3 different words: bank, river, money"),
    ):
        path, page = written(tmp_path, rows), tmp_path / "page.html"
        found = look_at_senses(Drawn(), path, read_occurrences(path))  # type: ignore[arg-type]
        line = write_page(page, found, "m")
        assert ("different words" in line) == ("different words" in page.read_text()) == bool(said)
        assert said in line
        assert said in page.read_text()


def test_without_labels_the_last_layer_makes_two_groups(tmp_path: Path) -> None:
    occurrences = [one._replace(sense="") for one in read_occurrences(bank(tmp_path))]
    found = look_at_senses(Drawn(), tmp_path, occurrences)  # type: ignore[arg-type]
    assert found.nearest is None
    assert found.labels.tolist() in ([1, 0, 0] * 4, [0, 1, 1] * 4)


def test_a_sentence_that_the_model_cannot_hold_is_named(tmp_path: Path) -> None:
    path = bank(tmp_path)
    with pytest.raises(UserError, match=r"bank.tsv: row 1: 8 tokens, but the model reads 5; short"):
        look_at_senses(Drawn(cut=3), path, read_occurrences(path))  # type: ignore[arg-type]


def test_an_interval_of_a_share_is_wilsons() -> None:
    """Of scipy.stats.binomtest(k, n).proportion_ci(method="wilson")."""
    np.testing.assert_allclose(wilson(10 / 10, 10), (0.7224672, 1), atol=1e-4)
    np.testing.assert_allclose(wilson(30 / 100, 100), (0.2189489, 0.3958485), atol=1e-4)


@pytest.mark.slow
def test_the_command_writes_a_page(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = layout_config("bert", vocab_size=tokenizer.vocab_size)
    export(task_params(config), config, tokenizer, tmp_path / "model", card=Card())
    rows = "0\thello <b> world\tone\n1\tthe hello world!\ttwo\n" * 2
    words = ["look", "senses", f"--model={tmp_path / 'model'}", f"--out={tmp_path / 'p.html'}"]
    assert cli.main([*words, f"--input={written(tmp_path, rows)}"]) == exit_codes.DONE
    said, page = capsys.readouterr().out, (tmp_path / "p.html").read_text()
    assert ": 4 sentences; nearest sense right: " in said
    assert "most frequent sense 50.0%" in said
    assert "Senses of “hello”" in page
    assert "<b> world" not in page
