"""`bert-jax search`: exact, from blocks on all devices; vectors in fewer bytes; hard negatives."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
import sentence_library as library
from exported import random_params
from small import model_config

import bert_jax
from bert_jax import cli
from bert_jax.api import corpus_search, small_vectors
from bert_jax.api import embed as embedding
from bert_jax.api import search as searching
from bert_jax.api.corpus_search import SearchSettings, open_corpus, query_vectors
from bert_jax.api.embed import Settings, embed
from bert_jax.api.model import Model
from bert_jax.api.search import top_rows
from bert_jax.convert.sentence_encoder import SentenceEncoder
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.exit_codes import DONE, FAILED, USAGE
from bert_jax.finetune.tasks.table import read_rows
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

RANDOM = np.random.default_rng(4)
TEXTS = ["one ship", "two ships", "", "the sea  is calm", "one ship", "a long way home", "ten men"]


@pytest.fixture(scope="module")
def folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = dataclasses.replace(model_config(), vocab_size=tokenizer.vocab_size)
    out = tmp_path_factory.mktemp("model") / "exported"
    export(random_params(config), config, tokenizer, out, card=Card())
    return out


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return bert_jax.load(folder)


@pytest.fixture
def corpus(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the texts and their vectors; the model is loaded once."""
    monkeypatch.setattr(embedding, "load", lambda path: model)
    monkeypatch.setattr("bert_jax.api.model.load", lambda path: model)
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), "utf-8")
    np.save(tmp_path / "vectors.npy", model.encode(TEXTS))
    return tmp_path


def words(corpus: Path, folder: Path, *more: str, vectors: str = "vectors.npy") -> list[str]:
    files = [f"--vectors={corpus / vectors}", f"--texts={corpus / 'texts.txt'}"]
    return ["search", *files, f"--model={folder}", *more]


def cosines(model: Model, query: str) -> np.ndarray:
    vectors = model.encode([query, *TEXTS])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit[1:] @ unit[0]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "_ROWS", 4)
    monkeypatch.setattr(searching, "_QUERIES", 2)


def expected(queries: np.ndarray, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    scores = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, rows, 1), rows


def test_the_best_rows_are_those_of_all_scores_and_of_equal_ones_the_first(small_blocks) -> None:
    """Of small whole numbers, whose scores are exact and often equal, zero included."""
    assert jax.local_device_count() > 1
    queries = RANDOM.integers(-2, 3, (5, 8)).astype(np.float32)
    vectors = RANDOM.integers(-2, 3, (201, 8)).astype(np.float32)
    seen: list[int] = []
    scores, rows = top_rows(queries, vectors, 40, done=seen.append)
    assert (scores.dtype, rows.dtype) == (np.float32, np.int64)
    own_scores, own_rows = expected(queries, vectors, 40)
    np.testing.assert_array_equal(scores, own_scores)
    np.testing.assert_array_equal(rows, own_rows)
    assert len(np.unique(own_scores)) < own_scores.size / 4
    assert len(seen) > 5
    assert seen == sorted(seen)
    assert seen[-1] == 201


def test_rows_that_are_not_allowed_are_not_found(small_blocks) -> None:
    queries, vectors = RANDOM.normal(size=(3, 8)), RANDOM.normal(size=(50, 8)).astype(np.float32)
    allowed = np.arange(50) % 7 == 2
    _, rows = top_rows(queries, vectors, 100, allowed=allowed)
    _, own = expected(queries, vectors[allowed], 100)
    np.testing.assert_array_equal(rows, np.flatnonzero(allowed)[own])  # 7 rows, fewer than asked


def test_cosines_do_not_depend_on_lengths(small_blocks) -> None:
    queries, vectors = RANDOM.normal(size=(3, 8)), RANDOM.normal(size=(50, 8))
    lengths = RANDOM.uniform(0.1, 10, (50, 1))
    scores, rows = top_rows(5 * queries, (vectors * lengths).astype(np.float16), 9, cosine=True)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, vectors)]
    own_scores, own_rows = expected(unit[0], unit[1], 9)
    np.testing.assert_array_equal(rows, own_rows)
    np.testing.assert_allclose(scores, own_scores, atol=2e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e38])
def test_a_vector_that_is_not_finite_is_named(small_blocks, bad: float) -> None:
    vectors = np.ones((50, 8), np.float32)
    vectors[33] = bad
    with pytest.raises(UserError, match=r"row 33 has a number that is NaN, infinite or too large"):
        top_rows(np.full((3, 8), 10), vectors, 4)


def vectors_and_ranges() -> tuple[np.ndarray, np.ndarray]:
    """Vectors, some of them outside of the ranges, with a dimension that is constant."""
    vectors = RANDOM.normal(size=(400, 6)).astype(np.float32)
    vectors[:, 3] = 0.5
    return vectors, np.stack([vectors[:300].min(0), vectors[:300].max(0)])


def test_a_code_stands_for_the_middle_of_the_numbers_that_have_it() -> None:
    vectors, ranges = vectors_and_ranges()
    codes = small_vectors.to_int8(vectors, ranges)
    steps = (ranges[1] - ranges[0]) / 255
    whole = np.floor((vectors - ranges[0]) / np.where(steps == 0, 1, steps))
    np.testing.assert_array_equal(codes, (np.clip(whole, 0, 255) - 128).astype(np.int8))
    back = np.asarray(small_vectors.decoded(jax.numpy.asarray(codes), jax.numpy.asarray(ranges)))
    error = back - np.clip(vectors, *ranges)
    assert (np.abs(error) <= 0.501 * steps).all()
    assert np.abs(error / np.where(steps == 0, 1, steps)).mean(0) == pytest.approx(
        [0.25, 0.25, 0.25, 0, 0.25, 0.25], abs=0.05
    )
    alike = small_vectors.to_int8(vectors[:1], np.repeat(vectors[:1], 2, 0))  # one text
    np.testing.assert_array_equal(alike, np.full((1, 6), -128))


@pytest.mark.nightly
@pytest.mark.processes
@library.WITH_EACH_RELEASE
def test_codes_and_bits_are_those_of_sentence_transformers(packages: str, tmp_path: Path) -> None:
    if library.release(packages) < 6:
        pytest.skip("release 3.0.1 rounds toward zero after it subtracts 128")
    vectors, ranges = vectors_and_ranges()
    vectors = np.tile(vectors, (1, 4))[:, :16]
    ranges = np.tile(ranges, (1, 4))[:, :16]
    requests = [
        {"do": "quantize", "x": "x", "precision": precision, "ranges": "ranges"}
        for precision in ("int8", "ubinary")
    ]
    (codes, _), (bits, _) = library.ask(
        packages, tmp_path / "asked", requests, {"x": vectors, "ranges": ranges}
    )
    np.testing.assert_array_equal(small_vectors.to_int8(vectors, ranges), codes["codes"])
    np.testing.assert_array_equal(small_vectors.to_bits(vectors), bits["codes"])


def test_bits_stand_for_one_and_minus_one(small_blocks) -> None:
    vectors = RANDOM.normal(size=(50, 16)).astype(np.float32)
    stored = small_vectors.to_bits(vectors)
    assert stored.shape == (50, 2)
    queries = RANDOM.normal(size=(3, 16))
    scores, rows = top_rows(queries, stored, 9)
    own_scores, own_rows = expected(queries, np.where(vectors > 0, 1, -1), 9)
    np.testing.assert_array_equal(rows, own_rows)
    np.testing.assert_allclose(scores, own_scores, atol=1e-5)


# Files -------------------------------------------------------------------------------------------


def test_a_file_has_fewer_dimensions_codes_or_bits(model, folder, corpus) -> None:
    own = np.load(corpus / "vectors.npy")
    for dtype in ("float32", "int8", "binary"):
        settings = Settings(dimensions=16, dtype=dtype)
        line = embed(folder, corpus / "texts.txt", corpus / f"{dtype}.npy", settings)
        assert line.endswith(
            {"float32": "16 numbers", "int8": "16 int8 codes", "binary": "16 bits"}[dtype]
        )
    np.testing.assert_allclose(np.load(corpus / "float32.npy"), own[:, :16], atol=1e-6)
    ranges = np.load(corpus / "int8.ranges.npy")
    np.testing.assert_allclose(ranges, [own[:, :16].min(0), own[:, :16].max(0)], atol=1e-6)
    codes = np.load(corpus / "int8.npy")
    assert (codes.dtype, codes.shape) == (np.int8, (7, 16))
    assert (codes.min(0) == -128).all()
    assert (codes.max(0) >= 126).all()
    bits = np.load(corpus / "binary.npy")
    np.testing.assert_array_equal(bits, np.packbits(np.load(corpus / "float32.npy") > 0, axis=1))


def test_codes_of_a_run_that_was_killed_are_the_same(folder, corpus, monkeypatch) -> None:
    """Killed when the ranges are written and the codes are not."""
    embed(folder, corpus / "texts.txt", corpus / "whole.npy", Settings(dtype="int8"))

    publish = embedding.atomic.publish

    def killed(made, to):
        if Path(to) == corpus / "a.npy":
            raise KeyboardInterrupt
        publish(made, to)

    with monkeypatch.context() as patch:
        patch.setattr(embedding.atomic, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            embed(folder, corpus / "texts.txt", corpus / "a.npy", Settings(dtype="int8"))
    assert not (corpus / "a.npy").exists()
    assert (corpus / "a.ranges.npy").exists()
    with pytest.raises(UserError, match=r"parts of another run \(dtype differ\)"):
        embed(folder, corpus / "texts.txt", corpus / "a.npy", Settings())
    embed(folder, corpus / "texts.txt", corpus / "a.npy", Settings(dtype="int8"))
    for name in (".npy", ".ranges.npy"):
        assert (corpus / f"a{name}").read_bytes() == (corpus / f"whole{name}").read_bytes()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (Settings(dimensions=40), "dimensions=40, but a vector has 32"),
        (Settings(dimensions=12, dtype="binary"), "12 dimensions are no whole bytes of bits"),
        (Settings(prompt="query"), "prompt_name='query': not in the folder"),
        (Settings(prompt="query", spans=True), "vectors of tokens are those of the line alone"),
    ],
)
def test_what_the_model_does_not_give_is_one_line(folder, corpus, settings, problem) -> None:
    with pytest.raises(UserError) as error:
        embed(folder, corpus / "texts.txt", corpus / "a.npy", settings)
    assert problem in str(error.value)


def test_ranges_of_others_are_not_replaced(folder, corpus) -> None:
    (corpus / "a.ranges.npy").write_bytes(b"mine")
    with pytest.raises(UserError, match=r"a.ranges.npy: exists, and nothing in a file of vectors"):
        embed(folder, corpus / "texts.txt", corpus / "a.npy", Settings(dtype="int8"))
    assert (corpus / "a.ranges.npy").read_bytes() == b"mine"


# Search ------------------------------------------------------------------------------------------


def test_the_nearest_texts_are_printed(model, folder, corpus, capsys) -> None:
    assert cli.main(words(corpus, folder, "--top_k=3", "ten ships")) == DONE
    own = cosines(model, "ten ships")
    rows = np.argsort(-own, kind="stable")[:3]
    lines = [f"{own[row]:7.4f}  {row}  {TEXTS[row]}".rstrip() for row in rows]
    assert capsys.readouterr().out.splitlines() == lines
    (corpus / "queries.txt").write_text("ten ships\na way\n", "utf-8")
    given = [f"--input={corpus / 'queries.txt'}", "--top_k=100", "--json"]
    assert cli.main(words(corpus, folder, *given)) == DONE
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["query"], second["query"]) == ("ten ships", "a way")
    assert [hit["row"] for hit in first["hits"][:3]] == rows.tolist()
    assert len(first["hits"]) == len(TEXTS)
    assert all(hit["text"] == TEXTS[hit["row"]] for hit in second["hits"])
    np.testing.assert_allclose([hit["score"] for hit in first["hits"][:3]], own[rows], atol=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "binary"])
def test_small_vectors_are_searched(model, folder, corpus, dtype, capsys) -> None:
    embed(folder, corpus / "texts.txt", corpus / "a.npy", Settings(dimensions=16, dtype=dtype))
    given = ["--dimensions=16", "--top_k=7", "--json", "ten ships"]
    capsys.readouterr()
    assert cli.main(words(corpus, folder, *given, vectors="a.npy")) == DONE
    hits = json.loads(capsys.readouterr().out)["hits"]
    vectors = np.load(corpus / "vectors.npy")[:, :16]
    if dtype == "binary":
        vectors = np.where(vectors > 0, 1, -1)
    query = model.encode("ten ships")[0, :16]
    own = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    found = {hit["row"]: hit["score"] for hit in hits}
    tolerance = 1e-6 if dtype == "binary" else 5e-3
    np.testing.assert_allclose([found[row] for row in range(7)], own, atol=tolerance)


def test_queries_have_their_own_prompt(corpus) -> None:
    """And the default one where no prompt is named query, or that which is asked for."""
    asked = []

    class Prompted:
        def __init__(self, *prompts: str) -> None:
            self.sentence = SentenceEncoder((), (), prompts=dict.fromkeys(prompts, "x"))

        def encode(self, texts, *, prompt_name, **more):
            asked.append(prompt_name)
            return np.ones((len(texts), 32), np.float32)

    opened = open_corpus(corpus / "vectors.npy", None)
    for model, prompt in (
        (Prompted("passage", "query"), None),
        (Prompted("passage", "query"), "passage"),
        (Prompted("passage"), None),
    ):
        query_vectors(model, opened, ["a"], SearchSettings(prompt=prompt))  # type: ignore[arg-type]
    assert asked == ["query", "passage", None]


def test_the_folder_says_how_vectors_are_compared(model, folder, corpus, capsys, monkeypatch):
    def scores(similarity: str | None, *more: str) -> list[float]:
        encoder = SentenceEncoder((), (), similarity=similarity)
        with monkeypatch.context() as patch:
            patch.setattr(model, "sentence", encoder)
            patch.setattr(model, "encode", lambda texts, **more: np.full((1, 32), 2.0))
            code = cli.main(words(corpus, folder, "--json", *more, "a"))
        printed = capsys.readouterr()
        if code:
            return [printed.err]
        return [hit["score"] for hit in json.loads(printed.out)["hits"]]

    np.save(corpus / "vectors.npy", np.full((7, 32), 3.0))
    assert scores(None) == pytest.approx([1] * 7)
    assert scores("dot") == pytest.approx([192] * 7)
    assert scores("dot", "--similarity=cosine") == pytest.approx([1] * 7)
    assert "compares vectors by manhattan, which search does not" in scores("manhattan")[0]


def test_a_long_search_says_how_long_it_takes(capsys, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(corpus_search.time, "monotonic", lambda: now[0])
    with corpus_search.watched("vectors", 400) as done:
        for count in range(100, 401, 100):
            now[0] += 20
            done(count)
    assert capsys.readouterr().err.splitlines() == [
        "200 of 400 vectors, 5/s, 0:00:40 left", "400 of 400 vectors, 5/s, 0:00:00 left",
    ]  # fmt: skip


def _damage(corpus: Path, what: str) -> None:
    stored = np.load(corpus / "vectors.npy")
    match what:
        case "lines":
            (corpus / "texts.txt").write_text("one\ntwo\n", "utf-8")
        case "width":
            stored = stored[:, :24]
        case "shape":
            stored = stored[0]
        case "type":
            stored = stored.astype(np.int32)
        case "nan":
            stored[4, 3] = np.nan
        case "codes":
            stored = stored.astype(np.int8)
        case "query":
            (corpus / "queries.txt").write_text("fine\n \u200b\n", "utf-8")
        case "none":
            (corpus / "queries.txt").touch()
    np.save(corpus / "vectors.npy", stored)
    if what == "cut":
        (corpus / "vectors.npy").write_bytes((corpus / "vectors.npy").read_bytes()[:-9])


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("lines", "texts.txt: 2 lines, but {}/vectors.npy has 7 vectors; give the lines"),
        ("width", "vectors.npy: vectors of 24 dimensions, but those of the model have 32; give"),
        ("shape", "vectors.npy: 32, but vectors are rows of numbers"),
        ("type", "vectors.npy: int32; vectors are floats, int8 codes or bits in uint8"),
        ("nan", "vectors.npy: row 4 has a number that is NaN, infinite or too large; embed"),
        ("codes", "vectors.npy: int8 codes need their ranges in {}/vectors.ranges.npy"),
        ("query", "queries.txt: row 2: an empty query; delete the line"),
        ("none", "no query; give some text"),
        ("typed", "query 1 is empty; give some text"),
        ("cut", "vectors.npy: is not a whole .npy file (mmap length is greater than file"),
    ],
)
def test_what_cannot_be_searched_is_one_line(folder, corpus, capsys, what, problem) -> None:
    _damage(corpus, what)
    query = {"typed": [" \u200b"]}.get(what, ["ten ships"])
    if what in ("query", "none"):
        query = [f"--input={corpus / 'queries.txt'}"]
    assert cli.main(words(corpus, folder, *query)) == FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert problem.format(corpus) in line


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([], "give one or more queries, or a file of them as --input"),
        (["a", "--input=b"], "give one or more queries, or a file of them as --input"),
        (["a", "--skip=1"], "--skip is only for --hard_negatives"),
        (["--hard_negatives=a.tsv", "--top_k=1"], "--top_k is not for --hard_negatives"),
        (["--hard_negatives=a.tsv"], "--pairs=… is missing"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(folder, corpus, capsys, given, problem) -> None:
    assert cli.main(words(corpus, folder, *given)) == USAGE
    assert problem in capsys.readouterr().err


# Hard negatives ----------------------------------------------------------------------------------


def mine(corpus: Path, folder: Path, pairs: list[tuple[str, str]], *more: str, out="out.jsonl"):
    lines = [json.dumps({"anchor": a, "positive": b}) for a, b in pairs]
    (corpus / "pairs.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    given = [f"--pairs={corpus / 'pairs.jsonl'}", f"--hard_negatives={corpus / out}", *more]
    return cli.main(words(corpus, folder, *given))


def test_negatives_are_the_nearest_texts_that_do_not_belong_to_the_anchor(
    model, folder, corpus
) -> None:
    """Not its positives, also not those of an equal anchor; no text twice; no empty one."""
    pairs = [("two ships", "the sea\nis calm"), ("ten men", "x"), ("two  ships", "ten men")]
    pairs.append(("one ships", "x"))  # nearest to a text that is there twice
    code = mine(corpus, folder, pairs, "--negatives_per_pair=2")
    assert code == DONE
    names = ["anchor", "positive", "negative_1", "negative_2"]
    rows, _ = read_rows(corpus / "out.jsonl", names)
    assert [(row["anchor"], row["positive"]) for _, row in rows] == pairs
    for (_, row), left in zip(rows, ({1, 3, 6}, {6}, {1, 3, 6}, set()), strict=True):
        own = cosines(model, row["anchor"])
        nearest = [i for i in np.argsort(-own, kind="stable") if i not in {2, 4, *left}]
        assert [row["negative_1"], row["negative_2"]] == [TEXTS[i] for i in nearest[:2]]
    assert mine(corpus, folder, pairs, "--skip=1", out="out.tsv") == FAILED  # a line end
    assert mine(corpus, folder, pairs, "--skip=1", out="out.csv") == DONE
    skipped, _ = read_rows(corpus / "out.csv", ["negative"])
    assert [row["negative"] for _, row in skipped] == [row["negative_2"] for _, row in rows]


def test_negatives_that_the_pairs_have_are_kept(model, folder, corpus, capsys) -> None:
    """New ones are others, numbered after them; other columns are named."""
    pairs = corpus / "more.tsv"
    own = ("one ship", "the sea is calm")
    titles = ["id", "anchor", "negative_2", "positive", "negative"]
    pairs.write_text("\t".join(titles) + f"\n7\ttwo ships\t{own[1]}\tx\t{own[0]}\n")
    out = corpus / "kept.jsonl"
    given = [f"--pairs={pairs}", f"--hard_negatives={out}", "--negatives_per_pair=2"]
    assert cli.main(words(corpus, folder, *given)) == DONE
    said = " ".join(capsys.readouterr().out.split())
    assert f"1 pair with 2 negatives each, beside 2 of {pairs}; columns left out: id" in said
    row = json.loads(out.read_text())
    assert [*row] == ["anchor", "positive", "negative", "negative_2", "negative_3", "negative_4"]
    assert (row["negative"], row["negative_2"]) == own
    nearest = np.argsort(-cosines(model, "two ships"), kind="stable")
    others = [TEXTS[i] for i in nearest if i not in {0, 1, 2, 3, 4}]
    assert [row["negative_3"], row["negative_4"]] == others[:2]


@pytest.mark.parametrize(
    ("pairs", "more", "problem"),
    [
        ([("one ship", " ")], [], "pairs.jsonl: row 1: the positive is empty"),
        ([], [], "pairs.jsonl: empty"),
        ([("a", "ten men")], ["--negatives_per_pair=5"], "row 1: only 4 texts of {}/texts.txt"),
        ([("a", "b")], ["--hard_negatives=a.txt"], "a.txt: give a name that ends with one of .tsv"),
    ],
)
def test_what_has_no_negatives_is_one_line(folder, corpus, capsys, pairs, more, problem) -> None:
    assert mine(corpus, folder, pairs, *more) == FAILED
    assert problem.format(corpus) in capsys.readouterr().err
