"""Searches for the paragraph of a question: BEIR's form of questions in SQuAD's form, and a table.

    python benchmarks/question_retrieval.py --source=squad-form.json --out=articles
    python benchmarks/question_retrieval.py --source=squad-form.json --out=articles --model=folder

Every fifth article is held out whole: its questions are the queries, with the paragraph that each
was written from as relevant; the corpus has the paragraphs of all articles, without titles.
`train.jsonl` has the other questions as pairs of an anchor and a positive. Equal questions are one
query, and equal paragraphs answer the same ones. With --model, the models given are compared with
BM25, which has it easy: who writes a question from a paragraph takes words from it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness

EVERY = 5  # article is held out
Asked = tuple[str, str]  # a question, and its paragraph


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--source", type=Path, required=True, help="questions in SQuAD's form")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--model", action="append", default=[], help="to evaluate; repeatable")
    parser.add_argument("--devices", type=int, default=2, help="simulated devices of the CPU")
    options = parser.parse_args()
    harness.at_least_one(options, "devices")
    if not options.source.is_file():
        harness.fail(f"--source={options.source}: no such file")
    print(write(options.source, options.out))
    if options.model:
        with harness.errors_are_one_line():
            evaluate(options.model, options.out, options.devices)


def write(source: Path, folder: Path) -> str:
    """Writes the folder; returns what is in it, in words."""
    articles = json.loads(source.read_text("utf-8"))["data"]
    held_out = articles[::EVERY]
    texts = [one["context"] for article in articles for one in article["paragraphs"]]
    rows: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        rows.setdefault(text, []).append(row)
    relevant: dict[str, set[int]] = {}
    for question, paragraph in questions(held_out):
        relevant.setdefault(question, set()).update(rows[paragraph])
    train = [
        {"anchor": question, "positive": paragraph}
        for number, article in enumerate(articles)
        if number % EVERY
        for question, paragraph in questions([article])
    ]
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    save(folder / "corpus.jsonl", ({"_id": f"p{i}", "text": t} for i, t in enumerate(texts)))
    save(folder / "queries.jsonl", ({"_id": f"q{i}", "text": q} for i, q in enumerate(relevant)))
    save(folder / "train.jsonl", iter(train))
    lines = [f"q{i}\tp{row}\t1" for i, own in enumerate(relevant.values()) for row in sorted(own)]
    table = "\n".join(["query-id\tcorpus-id\tscore", *lines, ""])
    (folder / "qrels" / "test.tsv").write_text(table, "utf-8")
    return (
        f"{len(relevant):,} queries of {len(held_out)} articles, {len(texts):,} paragraphs, "
        f"{len(train):,} pairs to train on"
    )


def questions(articles: list[dict[str, Any]]) -> Iterator[Asked]:
    """Yields the questions about articles, each with its paragraph."""
    for article in articles:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                if question := asked["question"].strip():
                    yield question, paragraph["context"]


def save(path: Path, rows: Iterator[dict[str, str]]) -> None:
    """Writes a row of JSON a line."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")


def evaluate(models: list[str], folder: Path, devices: int) -> None:
    """Prints the table of the first model beside the others and BM25."""
    from bert_jax.runtime import compile_cache, cpu

    cpu.use_cpu_devices(devices)
    compile_cache.use()
    from bert_jax.api.vector_evaluation import evaluate_retrieval

    print(harness.machine("jax", "bm25s"))
    found = evaluate_retrieval(models[0], folder, models[1:])
    harness.record(**json.loads(found.as_json()))
    print(found.as_text())


if __name__ == "__main__":
    main()
