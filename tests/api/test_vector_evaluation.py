"""`bert-jax evaluate --model`: a search and scored pairs, against what their definitions give."""

import json
from pathlib import Path

import numpy as np
import pytest
from exported import make_run
from scipy import stats
from sklearn.feature_extraction.text import TfidfVectorizer

import bert_jax
from bert_jax import cli
from bert_jax.api.embed import Settings, embed
from bert_jax.api.vector_evaluation import evaluate_scored_pairs, load_model
from bert_jax.errors import UserError
from bert_jax.exit_codes import DONE, FAILED
from bert_jax.finetune.tasks.retrieval_files import read_retrieval, read_scored_pairs
from bert_jax.publish.export import run_export

QUERIES = {"a": "hello world", "b": "zero width tab", "c": "naive cafe", "unused": "nothing"}
CORPUS = {
    "1": ("", "the world says hello"), "2": ("tab", "zero width"), "3": ("", "an old cafe"),
    "4": ("x", "y y y"), "5": ("", "hello again, hello"), "c": ("", "naive cafe"),
    "6": ("", ""), "7": ("", "world map"), "8": ("", "something else"), "9": ("", "the end"),
}  # fmt: skip
GRADES = {("a", "1"): 2, ("a", "5"): 1, ("a", "4"): 0, ("b", "2"): 1, ("c", "3"): 1}
PAIRS = [
    ("hello world", "hello world", 5), ("hello world", "the world", 3.5), ("a cafe", "x y", 0),
    ("an end", "map of", 2.5), ("an end", "the end", 4), ("old cafe", "new cafe", 3),
    ("tab", "world", 0.5), ("naive", "old", 1), ("hello again", "again hello", 4.5),
    ("map of", "map", 3), ("is", "something else", 1),
]  # fmt: skip


def write_beir(folder: Path) -> Path:
    (folder / "qrels").mkdir(parents=True)
    queries = [{"_id": name, "text": text, "metadata": {}} for name, text in QUERIES.items()]
    corpus = [{"_id": name, "title": t, "text": text} for name, (t, text) in CORPUS.items()]
    for name, rows in (("queries", queries), ("corpus", corpus)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    lines = [f"{query}\t{document}\t{grade}\n" for (query, document), grade in GRADES.items()]
    (folder / "qrels/test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{''.join(lines)}")
    return folder


def write_pairs(path: Path) -> Path:
    """STS-B's columns, with others between."""
    lines = [f"{i}\t{a}\t{score}\t{b}\n" for i, (a, b, score) in enumerate(PAIRS)]
    path.write_text(f"index\tsentence1\tscore\tsentence2\n{''.join(lines)}")
    return path


@pytest.fixture
def folder(exported: tuple) -> Path:
    """A model that has prompts for queries and passages."""
    path, config, _ = exported
    prompts = {"prompts": {"query": "world ", "passage": "cafe "}, "default_prompt_name": None}
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "p", "type": "sentence_transformers.models.Pooling"},
    ]
    pooling = {
        "word_embedding_dimension": config.hidden_size, "pooling_mode_mean_tokens": True,
        "pooling_mode_cls_token": False, "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }  # fmt: skip
    (path / "SHA256SUMS").unlink()
    (path / "p").mkdir()
    (path / "p/config.json").write_text(json.dumps(pooling))
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return path


def evaluated(capsys: pytest.CaptureFixture[str], *flags: str) -> dict:
    assert cli.main(["evaluate", *flags, "--json"]) == DONE
    found: dict = json.loads(capsys.readouterr().out)
    return found


def values_of(found: dict, model: str) -> dict[str, float]:
    return {row["measure"]: row["value"] for row in found["rows"] if row["model"] == model}


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def expected(model: bert_jax.Model) -> dict[str, float]:
    """The measures by their definitions, with loops over documents."""
    names = [name for name, (title, text) in CORPUS.items() if title or text]
    texts = [f"cafe {' '.join(filter(None, CORPUS[name]))}" for name in names]
    vectors = unit(model.encode(texts, pooling="mean"))
    found: dict[str, list[float]] = {}
    for query in ("a", "b", "c"):
        asked = unit(model.encode(f"world {QUERIES[query]}", pooling="mean"))[0]
        order = [names[i] for i in np.argsort(-vectors @ asked) if names[i] != query]
        grades = {document: grade for (q, document), grade in GRADES.items() if q == query}
        found_grades = [grades.get(name, 0) for name in order]
        best = sorted(grades.values(), reverse=True)
        dcg, ideal = (
            sum(grade / np.log2(2 + i) for i, grade in enumerate(some))
            for some in (found_grades[:10], best)
        )
        relevant = sum(grade > 0 for grade in best)
        first = next(i for i, grade in enumerate(found_grades) if grade)
        for name, value in (
            ("nDCG@10", dcg / ideal), ("recall@1", (found_grades[0] > 0) / relevant),
            ("recall@10", sum(g > 0 for g in found_grades[:10]) / relevant),
            ("MRR@10", 1 / (first + 1)),
        ):  # fmt: skip
            found.setdefault(name, []).append(value)
    return {name: float(np.mean(values)) for name, values in found.items()}


def test_a_search_is_measured_with_the_prompts_of_each_side(folder, tmp_path, capsys):
    data = write_beir(tmp_path / "beir")
    found = evaluated(capsys, f"--model={folder}", f"--retrieval={data}")
    values = values_of(found, str(folder))
    assert values == pytest.approx(expected(bert_jax.load(folder)), abs=1e-6)
    assert {row["n"] for row in found["rows"]} == {3}
    notes = "; ".join(found["notes"])
    assert "left out: 1" in notes
    assert "never found: 1" in notes
    assert "left out of its results: 1" in notes


def test_a_folder_whose_vectors_have_a_distance_is_one_line(folder, tmp_path, capsys):
    path = folder / "config_sentence_transformers.json"
    named = json.loads(path.read_text()) | {"similarity_fn_name": "euclidean"}
    path.write_text(json.dumps(named))
    data = write_beir(tmp_path / "beir")
    assert cli.main(["evaluate", f"--model={folder}", f"--retrieval={data}"]) != DONE
    (*_, line) = capsys.readouterr().err.splitlines()
    assert "by euclidean, which search does not; set similarity_fn_name to cosine or dot in" in line


def test_bm25_stands_beside_a_model(exported, tmp_path, capsys):
    """It finds all; a document that is the query itself counts for none."""
    pytest.importorskip("bm25s")
    data = write_beir(tmp_path / "beir")
    found = evaluated(capsys, f"--model={exported[0]}", f"--retrieval={data}")
    assert values_of(found, "BM25") == {
        "nDCG@10": 1, "recall@1": pytest.approx(5 / 6), "recall@10": 1, "MRR@10": 1,
    }  # fmt: skip
    model = values_of(found, str(exported[0]))
    for row in found["rows"]:
        if row["model"] == "BM25":
            every_query_alike = row["value"] == 1
            assert (row["low"] is None) == every_query_alike
            assert row["difference"] == pytest.approx(model[row["measure"]] - row["value"])
            if row["measure"] != "recall@10":  # of both models 1 for every query
                assert row["difference_low"] < row["difference"] < row["difference_high"]


def test_without_bm25_one_line_says_how_to_install_it(exported, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("bert_jax.api.bm25.is_installed", lambda: False)
    data = write_beir(tmp_path / "beir")
    assert cli.main(["evaluate", f"--model={exported[0]}", f"--retrieval={data}"]) == DONE
    out = capsys.readouterr().out
    assert "pip install 'bert-jax[search]'" in out
    assert "difference" not in out


def test_scored_pairs_have_scipys_correlations(exported, folder, tmp_path, capsys):
    path, model = write_pairs(tmp_path / "pairs.tsv"), bert_jax.load(folder)
    found = evaluated(capsys, f"--model={folder}", f"--scored_pairs={path}")
    first, second = (unit(model.encode([pair[i] for pair in PAIRS])) for i in (0, 1))
    cosines, scores = (first * second).sum(1), [score for *_, score in PAIRS]
    shared = []
    for a, b, _ in PAIRS:
        one, other = ({word.strip(",") for word in text.split()} for text in (a, b))
        shared.append(len(one & other) / len(one | other))
    texts = [text for *pair, _ in PAIRS for text in pair]
    rare = TfidfVectorizer(token_pattern=r"\w+|[^\w\s]").fit(texts)
    weighted = [float((rare.transform([a]) @ rare.transform([b]).T).sum()) for a, b, _ in PAIRS]
    for name, values in (
        (str(folder), cosines),
        ("shared words (Jaccard)", shared),
        ("shared words, weighted by their rarity", weighted),
    ):
        assert values_of(found, name) == {
            "Spearman": pytest.approx(stats.spearmanr(scores, values).statistic, abs=1e-5),
            "Pearson": pytest.approx(stats.pearsonr(scores, values).statistic, abs=1e-5),
        }
    for row in found["rows"]:
        assert row["n"] == len(PAIRS)
        assert row["low"] <= row["value"] <= row["high"]


def test_two_models_of_the_same_weights_do_not_differ(exported, tmp_path, capsys):
    copy = tmp_path / "copy"
    copy.symlink_to(exported[0])
    path = write_pairs(tmp_path / "pairs.tsv")
    flags = [f"--model={exported[0]}", f"--scored_pairs={path}", f"--beside={copy}"]
    found = evaluated(capsys, *flags)
    rows = [row for row in found["rows"] if row["model"] == str(copy)]
    assert [(row["difference"], row["difference_low"]) for row in rows] == [(0, 0)] * 2


@pytest.mark.slow
def test_a_run_has_the_vectors_of_its_export(tokenizer, tmp_path):
    workdir, _ = make_run(tokenizer, tmp_path)
    run_export(workdir, tmp_path / "out", 2)
    texts = [text for text, _, _ in PAIRS]
    of_run = load_model(f"{workdir}@2").encode(texts)
    np.testing.assert_allclose(of_run, bert_jax.load(tmp_path / "out").encode(texts), atol=1e-6)
    path = write_pairs(tmp_path / "pairs.tsv")
    found = evaluate_scored_pairs(f"{workdir}@2", path, [f"{tmp_path}/out"])
    read = "reads the first 40 tokens of a text, specials included"
    assert found.notes == [
        f"{workdir}@2: {read}; trained on examples of up to 24", f"{tmp_path}/out: {read}",
    ]  # fmt: skip


def test_texts_that_are_cut_after_a_prompt_are_counted(folder: Path, tmp_path: Path) -> None:
    """The second text fills the row without a prompt."""
    model, lines = bert_jax.load(folder), tmp_path / "lines.txt"
    room = (model.longest - 2) // (len(model.tokens("hello")[0].ids) - 2)
    lines.write_text(f"hello\n{'hello ' * room}\n")
    for prompt, cut in ((None, ""), ("query", "; 1 text cut to the model's longest row")):
        told = embed(folder, lines, tmp_path / f"{prompt}.npy", Settings(prompt=prompt))
        assert told.endswith(f"2 vectors of 32 numbers{cut}")


def test_a_prompt_that_is_not_there_is_one_line(folder):
    model = bert_jax.load(folder)
    with pytest.raises(UserError, match="prompt_name='qury': not in the folder; did you mean quer"):
        model.encode("x", prompt_name="qury")


def test_plain_tables_are_read_as_beirs_form(tmp_path):
    beir, tables = write_beir(tmp_path / "beir"), tmp_path / "tables"
    tables.mkdir()
    rows = [f"{name}\t{text}\n" for name, text in QUERIES.items()]
    (tables / "queries.tsv").write_text(f"_id\ttext\n{''.join(rows)}")
    rows = [f'{name},{title},"{text}"\n' for name, (title, text) in CORPUS.items()]
    (tables / "corpus.csv").write_text(f"_id,title,text\n{''.join(rows)}")
    (tables / "qrels.tsv").write_text((beir / "qrels/test.tsv").read_text())
    one, other = read_retrieval(beir), read_retrieval(tables)
    assert (one.queries, one.documents) == (other.queries, other.documents)
    assert (one.relevance, one.own) == (other.relevance, other.own)


QRELS = "query-id\tcorpus-id\tscore\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("qrels/test.tsv", f"{QRELS}a\t1\t1\nz\t1\t1\n", "row 3: id 'z' is not in .*queries.jsonl"),
        ("qrels/test.tsv", f"{QRELS}a\tz\t1\n", "row 2: id 'z' is not in .*corpus.jsonl"),
        ("qrels/test.tsv", f"{QRELS}a\t1\tyes\n", "row 2: score 'yes' is not a number"),
        (
            "qrels/test.tsv",
            f"{QRELS}a\t1\t0\n",
            "test.tsv: no score is above 0, so no query is left",
        ),
        ("qrels/test.tsv", f"{QRELS}a\t1\t1\na\t1\t0\n", "row 3: query 'a' has document '1' twice"),
        ("qrels/test.tsv", f"{QRELS}a\t6\t1\n", "row 2: document '6' is relevant, but has no text"),
        ("qrels/test.tsv", QRELS, "test.tsv: no rows, so no query is left"),
        ("qrels/test.tsv", "a\t0\t1\t1\n", "test.tsv: no column 'query-id'"),
        ("queries.jsonl", '{"_id": "a", "text": " "}\n', "row 1: text of query 'a' is empty"),
        (
            "queries.jsonl",
            '{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}\n',
            "row 2: _id 'a' is that of row 1, too",
        ),
        ("corpus.jsonl", '{"_id": "", "text": "x"}\n', "row 1: _id of a document is empty"),
        ("corpus.jsonl", '{"id": "1", "text": "x"}\n', "row 1: no key '_id'"),
    ],
)
def test_bad_files_of_a_search_are_one_line(name, text, message, tmp_path):
    data = write_beir(tmp_path / "beir")
    (data / name).write_text(text)
    with pytest.raises(UserError, match=message):
        read_retrieval(data)


def test_the_relevance_of_another_split_is_read_if_it_is_asked_for_or_alone(tmp_path):
    data = write_beir(tmp_path / "beir")
    test, dev = data / "qrels/test.tsv", data / "qrels/dev.tsv"
    dev.write_text(f"{QRELS}c\t1\t0\nb\t2\t1\n")
    of_test, of_dev = read_retrieval(data), read_retrieval(data, "dev")
    assert (len(of_test.queries), of_dev.queries) == (3, [QUERIES["b"]])
    assert f"relevance: {dev}" in of_dev.notes
    assert "queries without a document with a score above 0, left out: 1" in of_dev.notes
    with pytest.raises(UserError, match=r"qrels: no train\.tsv; give --split=dev or --split=test"):
        read_retrieval(data, "train")
    (data / "qrels/._test.tsv").write_bytes(b"\0\5\x16\7\xff")  # as a Mac writes
    test.rename(data / "qrels/train.tsv")
    with pytest.raises(UserError, match=r"qrels: no test\.tsv; give --split=dev or --split=train"):
        read_retrieval(data)
    (data / "qrels/train.tsv").unlink()
    assert read_retrieval(data).queries == of_dev.queries
    dev.rename(dev.with_suffix(".TSV"))
    assert read_retrieval(data).queries == read_retrieval(data, "dev").queries == of_dev.queries
    dev.with_suffix(".TSV").rename(dev)
    dev.unlink()
    with pytest.raises(UserError, match=r"no qrels; one of qrels/test\.tsv, qrels\.tsv"):
        read_retrieval(data)


@pytest.mark.parametrize(
    ("name", "other", "split"),
    [
        ("queries.jsonl", "queries.tsv", None),
        ("corpus.jsonl", "corpus.csv", None),
        ("qrels/test.tsv", "qrels/test.csv", None),
        ("qrels/test.tsv", "qrels/test.csv", "test"),
        ("qrels/test.tsv", "qrels.tsv", None),
    ],
)
def test_two_files_of_one_thing_are_refused(name, other, split, tmp_path):
    data = write_beir(tmp_path / "beir")
    (data / other).write_text("x\n")
    what = name.partition("/")[0].partition(".")[0]
    with pytest.raises(UserError) as raised:
        read_retrieval(data, split)
    assert f"may both be its {what}; move one away" in str(raised.value)
    assert {name, other} <= {*str(raised.value).split()}


def test_ids_may_be_numbers_and_a_title_may_be_missing(tmp_path):
    data = tmp_path / "beir"
    (data / "qrels").mkdir(parents=True)
    (data / "queries.jsonl").write_text('{"_id": 1, "text": "hello"}\n')
    lines = ['{"_id": 7, "text": "a"}', '{"_id": "8", "title": null, "text": "b", "metadata": {}}']
    (data / "corpus.jsonl").write_text("\ufeff" + "\r\n".join([*lines, ""]), "utf-8")
    (data / "qrels/test.tsv").write_text(f"{QRELS}1\t8\t1\n")
    found = read_retrieval(data)
    assert (found.queries, found.documents) == (["hello"], ["a", "b"])
    assert found.relevance == [{1: 1.0}]


def test_a_missing_file_is_one_line(tmp_path):
    data = write_beir(tmp_path / "beir")
    (data / "corpus.jsonl").unlink()
    with pytest.raises(UserError, match=r"no corpus; one of corpus\.jsonl, corpus\.tsv, corpus"):
        read_retrieval(data)
    with pytest.raises(UserError, match="nowhere: no such folder"):
        read_retrieval(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a\tb\t1", "a\t \t2", "a\tb\t3"], "row 3: sentence2 is empty"),
        (["a\tb\t1", "a\tb\tgood", "a\tb\t3"], "row 3: score 'good' is not a number"),
        (["a\tb\t1", "a\tb\tinf", "a\tb\t3"], "row 3: score 'inf' is not a number"),
        (["a\tb\t1", "a\tb\t2"], "2 pairs; give 3 or more"),
        (["a\tb\t1"] * 4, "every score is 1"),
    ],
)
def test_bad_scored_pairs_are_one_line(rows, message, tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(["sentence1\tsentence2\tscore", *rows, ""]))
    with pytest.raises(UserError, match=message):
        read_scored_pairs(path)


@pytest.mark.parametrize(
    ("header", "before"),
    [("sentence1\tsentence2\tlabel", ""), ("label\tsentence1\tsentence2\tscore", "7\t")],
)
def test_a_column_of_labels_is_read_where_there_is_none_of_scores(header, before, tmp_path):
    """As STS-B's on the hub."""
    path = tmp_path / "pairs.tsv"
    rows = [f"{before}a\tb\t1", f"{before}a\tc\t2.5", f"{before}a\td\t0"]
    path.write_text("\n".join([header, *rows, ""]))
    assert read_scored_pairs(path).scores == [1, 2.5, 0]


def test_glues_folder_is_read(tmp_path):
    write_pairs(tmp_path / "dev.tsv")
    found = read_scored_pairs(tmp_path)
    assert (found.pairs, found.scores) == ([(a, b) for a, b, _ in PAIRS], [s for *_, s in PAIRS])


def test_a_model_that_is_given_twice_is_one_line(exported, tmp_path, capsys):
    path = write_pairs(tmp_path / "pairs.tsv")
    same = [f"--model={exported[0]}", f"--beside={exported[0]}", f"--scored_pairs={path}"]
    assert cli.main(["evaluate", *same]) == FAILED
    assert "given twice" in capsys.readouterr().err


def test_a_model_with_the_name_of_a_baseline_is_one_line(exported, tmp_path, capsys, monkeypatch):
    """One would take the place of the other in the table."""
    monkeypatch.chdir(tmp_path)
    Path("BM25").symlink_to(exported[0])
    data = write_beir(tmp_path / "beir")
    assert cli.main(["evaluate", "--model=BM25", f"--retrieval={data}"]) == FAILED
    assert "BM25: a baseline has this name; give the folder as ./BM25" in capsys.readouterr().err
    assert cli.main(["evaluate", "--model=./BM25", f"--retrieval={data}"]) == DONE
