"""10,000 questions with predictions, random and adversarial, for the official rules of SQuAD."""

import json
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.finetune.tasks.labeled_examples import Question

COUNT = 10_000
GROUP = 100  # questions that are scored together
# What the rules treat in a special way: articles, punctuation, white space of Unicode, case, signs
# that are no ASCII punctuation, words that begin like articles, nothing at all.
WORDS = (
    "a", "an", "the", "The", "AN", "another", "theme", "Ada", "ada", "ADA", "Bob", "1,000", "U.S.",
    "it's", "mother-in-law", "a.", "(the)", "“the”", "the-end", "an_other", "İstanbul", "straße",
    "STRASSE", "naïve", "naïve", "東京", "a\u0301", "--", "…", "!", "$5", "5", "½", "\u200b", "_",
)  # fmt: skip
SPACES = (" ", " ", " ", "  ", "\t", "\n", "\u00a0", "\u3000", "")
THRESHOLDS = (1.0, 0.5, 0.0, -1.0)

# Runs with the release of transformers that still has the rules.
PEER = """
import json, sys
from types import SimpleNamespace
from transformers.data.metrics import squad_metrics
questions, predictions, null, thresholds, size = json.load(sys.stdin)
made = [SimpleNamespace(qas_id=q, answers=[{"text": t} for t in a]) for q, a in questions]
exact, f1 = squad_metrics.get_raw_scores(made, predictions)
groups = []
for start in range(0, len(made), size):
    chosen = made[start : start + size]
    own = {q.qas_id: predictions[q.qas_id] for q in chosen}
    scores = {q.qas_id: null[q.qas_id] for q in chosen}
    groups.append(squad_metrics.squad_evaluate(chosen, own))
    for limit in thresholds:
        groups.append(squad_metrics.squad_evaluate(chosen, own, scores, limit))
print(json.dumps([list(exact.values()), list(f1.values()), groups]))
"""


@dataclass(frozen=True)
class Cases:
    """questions, and id -> prediction or null score."""

    questions: list[Question]
    predictions: dict[str, str]
    null: dict[str, float]


def squad_cases() -> Cases:
    """Returns the same cases on every machine: only `random.Random.random` is used."""
    drawn = random.Random(16)

    def below(n: int) -> int:
        return int(drawn.random() * n)

    def text(most: int) -> str:
        return "".join(
            WORDS[below(len(WORDS))] + SPACES[below(len(SPACES))] for _ in range(below(most + 1))
        )

    cases = Cases([], {}, {})
    for number in range(COUNT):
        name = f"q{number}"
        answers = tuple((text(5), 0) for _ in range(below(4)))
        kept = answers[below(len(answers))][0] if answers and drawn.random() < 0.6 else text(5)
        change = below(4)
        predicted = (kept, kept.upper(), f"the {kept}!", kept + text(2))[change]
        cases.questions.append(Question(name, "", "", answers, not answers, number + 1))
        cases.predictions[name] = "" if drawn.random() < 0.1 else predicted
        cases.null[name] = round(drawn.random() * 4 - 2, 1)  # with ties
    return cases


def peer_scores(peer: Path) -> list[Any]:
    """Returns exact match and F1 of each question, and of each group what `squad_evaluate` returns
    without null scores and with them at every threshold.

    peer: folder of packages with transformers 4.57.
    """
    cases = squad_cases()
    questions = [(q.id, [text for text, _ in q.answers]) for q in cases.questions]
    given = json.dumps([questions, cases.predictions, cases.null, THRESHOLDS, GROUP])
    program = f"import sys; sys.path.insert(0, {str(peer)!r})\n{PEER}"
    done = subprocess.run(
        [sys.executable, "-c", program], input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
