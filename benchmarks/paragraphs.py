"""A table of multiple choice, which of four paragraphs of an article answers a question, and BM25.

Made from questions in SQuAD's form: each with its own paragraph and three others of the same
article, in an order drawn at random. Every tenth article is held out whole.
"""

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

CHOICES = 4
HELD_OUT = 500  # questions
_K1, _B = 1.2, 0.75  # of BM25


def write(source: Path, folder: Path, train: int | None) -> list[Path]:
    """Writes train.csv, of `train` questions drawn at random or all, and val.csv as SWAG's."""
    articles = json.loads(source.read_text("utf-8"))["data"]
    parts = [a for i, a in enumerate(articles) if i % 10], articles[::10]
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "train.csv", folder / "val.csv"]
    for path, part, most in zip(paths, parts, (train, HELD_OUT), strict=True):
        draw, rows = np.random.default_rng(0), []
        for article in part:
            texts = [paragraph["context"] for paragraph in article["paragraphs"]]
            for own, paragraph in enumerate(article["paragraphs"]):
                rows += [_row(one["question"], texts, own, draw) for one in paragraph["qas"]]
        with path.open("w", newline="", encoding="utf-8") as stream:
            lines = csv.writer(stream)
            lines.writerow(["sent1", "sent2", *(f"ending{i}" for i in range(CHOICES)), "label"])
            lines.writerows(rows[i] for i in draw.permutation(len(rows))[:most])
    return paths


def _row(question: str, texts: Sequence[str], own: int, draw: np.random.Generator) -> list[object]:
    others = draw.choice([i for i in range(len(texts)) if i != own], CHOICES - 1, replace=False)
    order = draw.permutation([own, *others]).tolist()
    return [question, "", *(texts[i] for i in order), order.index(own)]


def bm25(questions: Sequence[str], choices: Sequence[Sequence[str]]) -> np.ndarray:
    """Returns the choice of each question with the highest BM25; documents are all choices."""
    words = {text: _words(text) for one in choices for text in one}
    found = Counter(word for text in words.values() for word in set(text))
    mean = sum(map(len, words.values())) / len(words)

    def score(asked: set[str], text: list[str]) -> float:
        counts, longer = Counter(text), 1 - _B + _B * len(text) / mean
        return sum(
            math.log(1 + (len(words) - found[word] + 0.5) / (found[word] + 0.5))
            * counts[word] * (_K1 + 1) / (counts[word] + _K1 * longer)
            for word in asked
        )  # fmt: skip

    return np.array(
        [
            np.argmax([score(set(_words(question)), words[text]) for text in one])
            for question, one in zip(questions, choices, strict=True)
        ]
    )


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
