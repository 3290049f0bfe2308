"""benchmarks/question_retrieval.py: the folder that it makes of questions."""

import json
import sys
from pathlib import Path

from bert_jax.finetune.tasks.retrieval_files import read_retrieval

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import question_retrieval


def test_equal_questions_are_one_query_and_equal_paragraphs_answer_the_same(tmp_path: Path) -> None:
    def article(*asked: tuple[str, str]) -> dict:
        return {"paragraphs": [{"context": t, "qas": [{"question": q}]} for q, t in asked]}

    held_out = article(("Where?", "here"), ("Who?", "they"), (" Where?", "there"), ("Why?", "why"))
    others = [article(("Where?", "everywhere")), article(("What?", "they"))]
    source = tmp_path / "questions.json"
    source.write_text(json.dumps({"data": [held_out, *others]}))
    question_retrieval.write(source, tmp_path / "out")
    found = read_retrieval(tmp_path / "out")
    assert found.documents == ["here", "they", "there", "why", "everywhere", "they"]
    assert found.queries == ["Where?", "Who?", "Why?"]
    assert [sorted(rows) for rows in found.relevance] == [[0, 2], [1, 5], [3]]
    train = [json.loads(line) for line in (tmp_path / "out/train.jsonl").read_text().splitlines()]
    assert train[1] == {"anchor": "What?", "positive": "they"}
