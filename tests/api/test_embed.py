"""`bert-jax embed`: vectors of lines and tokens, of any layers; resumed to the same bytes."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow.parquet as pq
import pytest
from exported import TEXTS, random_params
from flax import nnx
from small import COMPUTE, model_config

import bert_jax
from bert_jax import cli
from bert_jax.api import embed as embedding
from bert_jax.api.embed import Line, Settings, embed
from bert_jax.api.model import Model
from bert_jax.api.text_rows import text_rows
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.model.layer_states import parse_layers
from bert_jax.objectives.pretraining_model import declare
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

LINES = [text for text in TEXTS if "\n" not in text] * 7


@pytest.fixture(scope="module")
def folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = dataclasses.replace(model_config(), vocab_size=tokenizer.vocab_size)
    out = tmp_path_factory.mktemp("model") / "exported"
    export(random_params(config), config, tokenizer, out, card=Card())
    return out


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return bert_jax.load(folder)


@pytest.fixture(autouse=True)
def _loaded_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its functions are compiled once."""
    monkeypatch.setattr(embedding, "load", lambda path: model)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return tmp_path / "lines.txt"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "_LINES", 16)


# Rows and layers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [1, 3])
def test_every_text_is_in_one_row_with_its_own_positions(devices: int) -> None:
    drawn = np.random.default_rng(5)
    tokens = [list(range(100, 100 + n)) for n in drawn.integers(2, 300, 500)]
    seen, filled, places = set(), 0, 0
    for rows in text_rows(tokens, longest=512, pad=7, batch_size=8, devices=devices):
        assert rows.ids.shape[1] in (128, 256, 512)
        assert len(rows.ids) % devices == 0
        assert rows.ids.size <= max(8 * 128, devices * 512) + (devices - 1) * rows.ids.shape[1]
        for row, place in np.argwhere(rows.texts >= 0):
            text = int(rows.texts[row, place])
            own = rows.examples[row] == place + 1
            assert rows.ids[row, own].tolist() == tokens[text]
            assert rows.positions[row, own].tolist() == list(range(len(tokens[text])))
            assert np.flatnonzero(own)[0] == rows.starts[row, place]
            seen.add(text)
        assert (rows.ids[rows.examples == 0] == 7).all()
        filled, places = filled + int((rows.examples > 0).sum()), places + rows.ids.size
    assert seen == set(range(500))
    assert filled / places > 0.93


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("-1", (6,)), (-1, (6,)), ("0", (0,)), ("-4:", (3, 4, 5, 6)), (":2", (0, 1)),
        ("0,3, -1", (0, 3, 6)), ([1, -7], (1, 0)), ("1:3,6", (1, 2, 6)),
        (np.int64(-1), (6,)), (np.array([0, 2]), (0, 2)), (np.array(2), (2,)),
    ],
)  # fmt: skip
def test_layers_are_numbers_and_ranges(layers, expected) -> None:
    assert parse_layers(layers, 6) == expected


@pytest.mark.parametrize(
    ("layers", "problem"),
    [
        ("7", r"layers: 7 is not from 0 \(the embeddings\) to 6"),
        ("-8", "layers: -8 is not from"),
        ("5:2", r"layers='5:2': '5:2' selects no layer from 0 to 6"),
        ("last", "layers='last'; give numbers and ranges"),
        ("", "layers=''; give numbers and ranges"),
        ("1:2:3:4", "give numbers and ranges"),
        ([], r"layers=\[\]; give numbers and ranges"),
        ([[0]], r"layers=\[\[0\]\]; give numbers and ranges"),
        (1.5, "layers=1.5; give numbers and ranges"),
        ([0, 1.5], r"layers=\[0, 1.5\]; give numbers and ranges"),
    ],
)
def test_layers_that_are_not_there_are_one_line(layers: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        parse_layers(layers, 6)


@pytest.mark.slow
def test_states_of_every_layer_are_those_of_its_own_layers(model) -> None:
    """Of one text alone, computed layer by layer from the parameters."""
    config = model.config
    params = jax.tree.map(np.asarray, model.params)  # on one device
    encoder = nnx.merge(declare(config, COMPUTE, ("mlm", "nsp"))[0], params).encoder
    texts = [TEXTS[0], TEXTS[4], TEXTS[2]]
    count = config.num_hidden_layers
    found = model.hidden_states(texts, layers=":")
    joined = model.hidden_states(texts, layers=[0, count], join="mean")
    for text, states, mean in zip(texts, found, joined, strict=True):
        ids = np.array([model.tokens(text)[0].ids], np.int32)
        positions = np.arange(ids.shape[1], dtype=np.int32)[None]
        x, kinds = encoder.embed(ids, np.zeros_like(ids), positions)
        own = [np.asarray(x)[0]]
        for layer in range(count):
            one = jax.tree.map(lambda leaf, i=layer: leaf[i], encoder.layers)
            x = one(x, np.ones_like(ids), kinds[layer], None)
            own.append(np.asarray(x)[0])
        np.testing.assert_allclose(states, np.concatenate(own, -1), atol=2e-5)
        np.testing.assert_allclose(mean, (own[0] + own[-1]) / 2, atol=2e-5)


def test_poolings_are_those_of_the_token_states(model) -> None:
    states = model.hidden_states(LINES, layers="-2:")
    reductions = {"mean": lambda x: x.mean(0), "max": lambda x: x.max(0), "cls": lambda x: x[0]}
    for pooling, reduce in reductions.items():
        vectors = model.encode(LINES, layers="-2:", pooling=pooling, batch_size=2)
        expected = np.stack([reduce(x) for x in states])
        np.testing.assert_allclose(vectors, expected, atol=1e-5, err_msg=pooling)


# Files -------------------------------------------------------------------------------------------


def test_a_block_is_read_when_the_one_before_it_is_done(small_blocks) -> None:
    """So the memory does not depend on the number of lines."""
    read = []

    def lines():
        for row in range(1, 10**9):
            read.append(row)
            yield Line(row, "x" * 10, None)

    blocks = embedding._blocks(lines(), 10**6)
    assert [len(next(blocks)) for _ in range(3)] == [16, 16, 16]
    assert len(read) == 48
    blocks = embedding._blocks(lines(), 25)  # characters
    assert [line.row for line in next(blocks)] == [1, 2, 3]


def test_vectors_are_those_of_encode_in_the_order_of_the_lines(
    model, folder, lines, small_blocks, tmp_path
) -> None:
    out = tmp_path / "vectors.npy"
    options = ["--layers=-2:", "--pooling=max", f"--out={out}"]
    assert cli.main(["embed", f"--model={folder}", f"--input={lines}", *options]) == 0
    vectors = np.load(out)
    expected = model.encode(LINES, layers="-2:", pooling="max")
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lines.txt", "vectors.npy"]


@pytest.mark.parametrize("pooling", ["mean", "none"])
@pytest.mark.parametrize("when", ["block", "join"])
def test_a_run_that_was_killed_resumes_to_the_same_bytes(
    model, folder, lines, small_blocks, tmp_path, monkeypatch, pooling, when
) -> None:
    suffix = ".parquet" if pooling == "none" else ".npy"
    settings = Settings(pooling=pooling, layers="-2:")
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    embed(folder, lines, whole, settings)
    calls = []

    class Killed(BaseException):
        pass

    def kill(*args):
        calls.append(args)
        if len(calls) == (3 if when == "block" else 1):
            raise Killed

    original = Model.hidden_states if pooling == "none" else Model.encode
    with monkeypatch.context() as patch:
        if when == "block":
            name = original.__name__
            patch.setattr(Model, name, lambda self, *a, **k: kill() or original(self, *a, **k))
        else:
            patch.setattr(embedding.atomic, "publish", _failing(embedding.atomic.publish, out))
            kill = None
        with pytest.raises((Killed, KeyboardInterrupt)):
            embed(folder, lines, out, settings)
    assert not out.exists()
    done = len(list(Path(f"{out}.parts").glob(f"*{suffix}")))
    assert done == (2 if when == "block" else -(-len(LINES) // 16))
    counted = []
    name = original.__name__
    monkeypatch.setattr(
        Model, name, lambda self, *a, **k: counted.append(1) or original(self, *a, **k)
    )
    embed(folder, lines, out, settings)
    assert len(counted) == -(-len(LINES) // 16) - done  # no finished block is computed again
    assert out.read_bytes() == whole.read_bytes()
    assert not Path(f"{out}.parts").exists()


def _failing(publish, target: Path):
    """`publish`, interrupted when it would rename to the target."""

    def replaced(made, to):
        if Path(to) == target:
            raise KeyboardInterrupt
        publish(made, to)

    return replaced


def test_token_vectors_have_text_token_and_characters(model, folder, lines, small_blocks, tmp_path):
    out = tmp_path / "tokens.parquet"
    line = embed(folder, lines, out, Settings(pooling="none", layers="0,-1"))
    states = model.hidden_states(LINES, layers="0,-1")
    table = pq.read_table(out)
    assert line == f"{out}: {table.num_rows:,} tokens of {states[0].shape[1]} numbers"
    columns = table.to_pydict()
    assert list(columns) == ["row", "text", "token", "start", "end", "vector"]
    assert columns["row"] == [i for i, x in enumerate(states) for _ in x]
    assert columns["text"] == [LINES[i] for i in columns["row"]]
    np.testing.assert_allclose(columns["vector"], np.concatenate(states), atol=1e-5)
    first = [i for i, row in enumerate(columns["row"]) if row == 0]
    named = [columns["token"][i] for i in first]
    assert (named[0], named[-1]) == ("[CLS]", "[SEP]")
    assert columns["start"][first[0]] is None
    spelled = [LINES[0][columns["start"][i] : columns["end"][i]] for i in first[1:-1]]
    assert spelled[:3] == ["Hello", "World", "!"]
    assert "Naïve" in spelled  # "naive" in the vocabulary


def test_a_span_gives_the_vector_of_a_word_in_its_sentence(model, folder, tmp_path) -> None:
    texts = ["Hello World! Naïve café", "A World"]
    spans = [(6, 11), (2, 7)]
    rows = [f"{text}\t{a}:{b}\n" for text, (a, b) in zip(texts, spans, strict=True)]
    (tmp_path / "words.tsv").write_text("".join(rows), encoding="utf-8")
    out = tmp_path / "words.npy"
    embed(folder, tmp_path / "words.tsv", out, Settings(spans=True))
    pieces = [
        len(model.tokens(text[:b])[0].ids) - 1 for text, (a, b) in zip(texts, spans, strict=True)
    ]
    before = [
        len(model.tokens(text[:a])[0].ids) - 1 for text, (a, b) in zip(texts, spans, strict=True)
    ]
    states = model.hidden_states(texts)
    expected = [x[a:b].mean(0) for x, a, b in zip(states, before, pieces, strict=True)]
    np.testing.assert_allclose(np.load(out), expected, atol=1e-5)
    assert not np.allclose(expected[0], expected[1], atol=1e-2)  # one word, two sentences


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Hello World\t6:12\n", "row 1: 6:12 is not in a text of 11 characters"),
        ("Hello World\t6:6\n", "row 1: 6:6 is not in a text of 11 characters"),
        ("Hello World\n", "row 1: 'Hello World' is not START:END after a tab, such as 4:9"),
        ("Hello\t0:5\nHello\tx:5\n", "row 2: 'x:5' is not START:END after a tab"),
        ("Hello  World\t5:7\n", "row 1: no token is in 5:7, '  '"),
        (f"{'hello ' * 200}World\t1200:1205\n", "row 1: no token is in 1200:1205, 'World' within"),
    ],
)
def test_a_bad_span_is_one_line(model, folder, tmp_path, text, problem) -> None:
    path = tmp_path / "words.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as error:
        embed(folder, path, tmp_path / "words.npy", Settings(spans=True))
    assert str(error.value).startswith(f"{path}: {problem}")


def test_what_cannot_be_embedded_is_one_line(model, folder, lines, tmp_path) -> None:
    def problem(settings: Settings, out: str = "a.npy", source: Path = lines) -> str:
        with pytest.raises(UserError) as error:
            embed(folder, source, tmp_path / out, settings)
        return str(error.value)

    assert problem(Settings(), "a.txt").endswith(
        "vectors of lines are written as .npy; give a name with that ending"
    )
    assert "token vectors are written as .parquet" in problem(Settings(pooling="none"))
    assert "spans needs pooling=mean or max" in problem(Settings(pooling="cls", spans=True))
    assert "missing; create it, or choose another" in problem(Settings(), "missing/a.npy")
    assert "layers: 40 is not from" in problem(Settings(layers="40"))
    assert "missing.txt: cannot be read (No such file" in problem(
        Settings(), source=tmp_path / "missing.txt"
    )
    (tmp_path / "bad.txt").write_bytes(b"fine\n\xff\n")
    assert "bad.txt: row 2: not UTF-8 at byte 1" in problem(Settings(), source=tmp_path / "bad.txt")
    (tmp_path / "empty.txt").write_bytes(b"")
    assert "empty.txt: no line to embed" in problem(Settings(), source=tmp_path / "empty.txt")
    (tmp_path / "b.npy").write_bytes(b"mine")
    assert "b.npy: exists, and nothing in a file of vectors" in problem(Settings(), "b.npy")


def test_a_parquet_file_needs_pyarrow(folder, lines, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"needs pyarrow, .* pip install 'bert-jax\[arrow\]'"):
        embed(folder, lines, tmp_path / "a.parquet", Settings(pooling="none"))
    assert not (tmp_path / "a.parquet.parts").exists()


def test_parts_of_another_run_are_refused(model, folder, lines, tmp_path, monkeypatch) -> None:
    out = tmp_path / "a.npy"
    with monkeypatch.context() as patch:
        patch.setattr(embedding.atomic, "publish", _failing(embedding.atomic.publish, out))
        with pytest.raises(KeyboardInterrupt):
            embed(folder, lines, out, Settings())
    with pytest.raises(UserError, match=r"a.npy.parts: parts of another run \(layers differ\)"):
        embed(folder, lines, out, Settings(layers="0"))
    with monkeypatch.context() as patch:
        patch.setattr(jax, "local_device_count", lambda: 3)
        with pytest.raises(UserError, match=r"\(devices differ\)"):
            embed(folder, lines, out, Settings())
    lines.write_text("other\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"\(lines differ\)"):
        embed(folder, lines, out, Settings())


@pytest.mark.parametrize("is_same", [True, False])
def test_lines_that_change_meanwhile_are_refused(
    model, folder, lines, small_blocks, tmp_path, monkeypatch, is_same
) -> None:
    vectors, blocks = embedding._vectors, []

    def changing(*arguments: object) -> np.ndarray:
        blocks.append(arguments)
        if len(blocks) == 2:
            lines.chmod(0o640)
            if not is_same:
                before = lines.stat()
                lines.write_bytes(lines.read_bytes().swapcase())
                os.utime(lines, ns=(before.st_atime_ns, before.st_mtime_ns))
        return vectors(*arguments)

    monkeypatch.setattr(embedding, "_vectors", changing)
    out = tmp_path / "a.npy"
    if is_same:
        assert "vectors of 32 numbers" in embed(folder, lines, out, Settings())
        return
    with pytest.raises(UserError, match=r"lines\.txt: changed while it was in use"):
        embed(folder, lines, out, Settings())
    assert len(blocks) == 2
    assert len(list(Path(f"{out}.parts").glob("*.npy"))) == 1  # none of other lines
    assert not out.exists()


def test_a_folder_of_parts_of_others_is_refused_untouched(model, folder, lines, tmp_path) -> None:
    parts = tmp_path / "a.npy.parts"
    parts.mkdir()
    (parts / "settings.json").write_text('{"theirs": 1}')
    with pytest.raises(UserError, match=r"a\.npy\.parts: exists and is not a folder of parts"):
        embed(folder, lines, tmp_path / "a.npy", Settings())
    assert (parts / "settings.json").read_text() == '{"theirs": 1}'


def test_texts_that_are_cut_are_counted(model, folder, tmp_path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("hello\n" + "hello " * 999 + "\n\n", encoding="utf-8")
    line = embed(folder, path, tmp_path / "a.npy", Settings())
    assert line.endswith("3 vectors of 32 numbers; 1 text cut to the model's longest row")
