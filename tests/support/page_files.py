"""What the README and docs/ name: text, a vocabulary, the files of tasks."""

import csv
import json
import re
from itertools import pairwise
from pathlib import Path


def write_text(folder: Path) -> None:
    """Python's help topics in the formats of WikiExtractor and of books, and a vocabulary."""
    from pydoc_data.topics import topics

    texts = [re.sub(r"[*`]+", "", text) for _, text in sorted(topics.items())]
    for name in ("wiki", "books"):
        (folder / name).mkdir()
    for number, part in enumerate((texts[:40], texts[40:])):
        articles = (
            f'<doc id="{number}{i}" url="https://example.org/{i}" title="Title {i}">\nTitle {i}\n\n'
            f"{' '.join(text.split())}\n</doc>\n"
            for i, text in enumerate(part)
        )
        (folder / f"wiki/wiki_0{number}").write_text("".join(articles))
        chapters = (f"## Chapter {i}\n\n{text}\n\n" for i, text in enumerate(part))
        (folder / f"books/Book {number}.md").write_text("".join(chapters))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = re.findall(r"[a-z]+", " ".join(texts).lower())
    marks = [mark for mark in map(chr, range(33, 127)) if not mark.isupper()]  # it is uncased
    entries = list(dict.fromkeys([*special, *marks, *words]))
    entries += [f"[unused{i}]" for i in range(30522 - len(entries))]
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n")


def write_tasks(folder: Path, sentences: list[str]) -> None:
    """Writes the files of the pages about tasks."""
    (folder / "SST-2").mkdir()
    rows = [f"{text}\t{len(text) % 2}\n" for text in sentences]
    for name, part in (("train", rows[:60]), ("dev", rows[60:80])):
        (folder / f"SST-2/{name}.tsv").write_text(f"sentence\tlabel\n{''.join(part)}")
    tests = (f"{i}\t{text}\n" for i, text in enumerate(sentences[80:]))
    (folder / "SST-2/test.tsv").write_text(f"index\tsentence\n{''.join(tests)}")
    (folder / "new.tsv").write_text("".join(f"{text}\n" for text in ("sentence", *sentences[:5])))
    mail = (f"{text}\t{'spam' if len(text) % 2 else 'inbox'}\n" for text in sentences)
    (folder / "mail.tsv").write_text(f"subject\tfolder\n{''.join(mail)}")
    pairs = pairwise(sentences)
    scores = (f'"{a}","{b}",{len(a) % 5}\n' for a, b in pairs if '"' not in a + b)
    (folder / "similar.csv").write_text(f"first,second,score\n{''.join(scores)}")
    _write_similar(folder / "STS-B", sentences)
    _write_search(folder / "beir", sentences)
    _write_tags(folder / "CoNLL", sentences)
    _write_questions(folder / "SQuAD", sentences)
    _write_choices(folder / "swagaf/data", sentences)
    rows = ({"question": text, "a": text[:9], "b": text[9:], "right": "a"} for text in sentences)
    (folder / "quiz.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def _write_similar(folder: Path, sentences: list[str]) -> None:
    """Scores pairs by how much longer one of them is."""
    folder.mkdir()
    rows = (f"{a}\t{b}\t{abs(len(a) - len(b)) % 6}\n" for a, b in pairwise(sentences))
    (folder / "dev.tsv").write_text(f"sentence1\tsentence2\tscore\n{''.join(rows)}")


def _write_search(folder: Path, sentences: list[str]) -> None:
    """Searches for each of some sentences by its second half."""
    (folder / "qrels").mkdir(parents=True)
    halves = [text[len(text) // 2 :] for text in sentences[:20]]
    for name, kind, texts in (("queries", "q", halves), ("corpus", "d", sentences)):
        rows = ({"_id": f"{kind}{i}", "title": "", "text": text} for i, text in enumerate(texts))
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    rows = (f"q{i}\td{i}\t1\n" for i in range(len(halves)))
    (folder / "qrels/test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{''.join(rows)}")


def _write_tags(folder: Path, sentences: list[str]) -> None:
    """Tags the words that begin with a capital letter."""
    folder.mkdir()
    parts = {"train": sentences[:60], "dev": sentences[60:80], "test": sentences[80:]}
    for name, part in parts.items():
        tagged = (
            "".join(f"{word} {'I-NAME' if word[0].isupper() else 'O'}\n" for word in text.split())
            for text in part
        )
        (folder / f"{name}.txt").write_text("\n".join(tagged))


def _write_choices(folder: Path, sentences: list[str]) -> None:
    """Asks how each sentence ends: SWAG's columns, of which the test has no label."""
    folder.mkdir(parents=True)
    parts = {"train": sentences[:60], "val": sentences[60:80], "test": sentences[80:]}
    for name, part in parts.items():
        labels = ["label"] if name != "test" else []
        names = ["", "sent1", "sent2", *(f"ending{i}" for i in range(4)), *labels]
        rows = [
            [i, text, text[:9], *[text[9 + j :] for j in range(4)], 0]
            for i, text in enumerate(part)
        ]
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([names, *(row[: len(names)] for row in rows)])


def _write_questions(folder: Path, sentences: list[str]) -> None:
    """Asks for the last word of each sentence; in SQuAD 2.0, every third has no answer."""
    folder.mkdir()
    for version in ("v1.1", "v2.0"):
        for name, part in (("train", sentences[:60]), ("dev", sentences[60:80])):
            paragraphs = []
            for i, text in enumerate(part):
                start = text.rindex(" ") + 1
                answers = [{"text": text[start:], "answer_start": start}]
                none = version == "v2.0" and i % 3 == 0
                own = {"answers": [], "is_impossible": True} if none else {"answers": answers}
                asked = {"id": f"{name}{i}", "question": "What is the last word?", **own}
                paragraphs.append({"context": text, "qas": [asked]})
            data = {"version": version, "data": [{"title": "", "paragraphs": paragraphs}]}
            (folder / f"{name}-{version}.json").write_text(json.dumps(data))
