"""Tasks small enough for a test, one of each kind, of made-up words, and a tiny model for them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.config.config_files import load
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

WORDS = [f"{a}{b}{c}" for a in "bdfg" for b in "aeiou" for c in "lmnr"]
TRAIN, DEV = 77, 21  # no multiples of the batch size


TASKS = ("rte", "tagging", "question_answering", "multiple_choice")


def write_task(folder: Path, *, seed: int = 0) -> Path:
    """Writes the files of all `TASKS` and a tokenizer.json.

    A pair entails if its first words are the same. Words with b begin a person and those with d
    after them are in it; every ninth sentence is longer than a row. The answer to a question is the
    word with g, if the text has one; every ninth text is longer than a row. The right ending of a
    story begins with its first word; every ninth story is longer than a row.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn, other, third = (np.random.default_rng(key) for key in (seed, [seed, 1], [seed, 2]))
    for name, count in (("train", TRAIN), ("dev", DEV)):
        (folder / f"{name}.tsv").write_text("\n".join(_pairs(drawn, count)) + "\n")
        (folder / f"{name}.txt").write_text("\n".join(_sentences(other, count)))
        for version, share in (("1.1", 0.0), ("2.0", 0.3)):
            asked = [{"context": c, "qas": [q]} for c, q in _questions(other, count, share)]
            text = json.dumps({"data": [{"paragraphs": asked}]})
            (folder / f"{name}-v{version}.json").write_text(text)
        swag = folder / f"{name.replace('dev', 'val')}.csv"
        swag.write_text("\n".join(_stories(third, count)) + "\n")
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]
    entries += [f"##{word}" for word in WORDS]
    Tokenizer.from_vocab(entries, lowercase=True).save(folder / "tokenizer.json")
    return folder


def _pairs(drawn: np.random.Generator, count: int) -> Iterator[str]:
    """Yields the rows of RTE."""
    yield "index\tsentence1\tsentence2\tlabel"
    for i in range(count):
        first, second = (list(drawn.choice(WORDS, drawn.integers(1, 9))) for _ in range(2))
        same = drawn.random() < 0.5
        second[0] = first[0] if same else second[0]
        label = "entailment" if first[0] == second[0] else "not_entailment"
        yield f"{i}\t{' '.join(first)}\t{' '.join(second)}\t{label}"


def _sentences(drawn: np.random.Generator, count: int) -> Iterator[str]:
    """Yields the sentences of a CoNLL file in IOB1; some words have two pieces."""
    for i in range(count):
        lines, before = ["-DOCSTART- -X- O\n\n"] if i == 0 else [], False
        for word in drawn.choice(WORDS, 50 if i % 9 == 8 else drawn.integers(1, 9)):
            inside = word[0] == "b" or (word[0] == "d" and before)
            begins = "B" if word[0] == "b" and before else "I"
            tail = drawn.choice(WORDS) if drawn.random() < 0.2 else ""
            lines.append(f"{word}{tail} -X- {f'{begins}-PER' if inside else 'O'}\n")
            before = inside
        yield "".join(lines)


def _questions(
    drawn: np.random.Generator, count: int, impossible: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields contexts, each with a question of SQuAD."""
    others = [word for word in WORDS if word[0] != "g"]
    answers = [word for word in WORDS if word[0] == "g"]
    for i in range(count):
        words = list(drawn.choice(others, 60 if i % 9 == 8 else drawn.integers(4, 16)))
        none, at = drawn.random() < impossible, drawn.integers(len(words))
        answer = drawn.choice(answers)
        words[at] = words[at] if none else answer
        start = len(" ".join(["", *words[:at]]))
        found = [] if none else [{"text": str(answer), "answer_start": start}]
        asked = {"id": f"q{i}", "question": str(drawn.choice(others)), "answers": found}
        yield " ".join(words) + ".", asked | ({"is_impossible": none} if impossible else {})


def _stories(drawn: np.random.Generator, count: int) -> Iterator[str]:
    """Yields the rows of SWAG, whose first column has no name."""
    endings = ",".join(f"ending{i}" for i in range(4))
    yield f",video-id,fold-ind,startphrase,sent1,sent2,gold-source,{endings},label"
    for i in range(count):
        first, *others = drawn.choice(WORDS, 5, replace=False).tolist()
        right, rest = drawn.integers(4), drawn.choice(WORDS, 40 if i % 9 == 8 else 3).tolist()
        begin = [first if n == right else others[n] for n in range(4)]
        ends = [" ".join([b, *drawn.choice(WORDS, drawn.integers(0, 5))]) for b in begin]
        start = " ".join([first, *rest])
        yield f'{i},v{i},{i},"{start}","{start}",{others[0]},gold,{",".join(ends)},{right}'


PAIRS = {  # of each kind of pair that trains vectors: a file, and what it needs
    "sentence_pairs": ("pairs.tsv", {}),
    "scored_pairs": ("scores.csv", {"task__highest_score": 5.0}),
    "labeled_pairs": ("train.tsv", {}),
}


def write_pairs(folder: Path, *, seed: int = 0) -> Path:
    """Writes the files of all `PAIRS` and a tokenizer.json.

    A positive begins with the first word of its anchor, a negative does not; every seventh anchor
    and every ninth positive is that of the row before. A score is how many first words are equal.
    """
    write_task(folder, seed=seed)
    drawn, rows, scores = np.random.default_rng([seed, 3]), [], []
    before = ("", "")
    for i in range(TRAIN):
        first, *others = drawn.choice(WORDS, drawn.integers(6, 14), replace=False).tolist()
        anchor, positive = " ".join([first, *others[:3]]), " ".join([first, *others[5:]])
        pair = before[0] if i % 7 == 6 else anchor, before[1] if i % 9 == 8 else positive
        rows.append("\t".join([*pair, *(" ".join(others[n : n + 3]) for n in (1, 2))]))
        score = drawn.integers(0, 6)
        other = " ".join([*[first, *others][:score], *drawn.choice(WORDS, 3)])
        scores.append(f"{' '.join([first, *others])},{other},{score}")
        before = pair
    header = "anchor\tpositive\tnegative_1\tnegative_2"
    (folder / "pairs.tsv").write_text("\n".join([header, *rows]) + "\n")
    (folder / "scores.csv").write_text("\n".join(["sentence1,sentence2,score", *scores]) + "\n")
    return folder


def write_search(folder: Path) -> Path:
    """Writes a folder of BEIR's form beside the files of `write_pairs`, from their first 20 pairs:
    an anchor searches the positives, of which one is that of two anchors."""
    rows = [line.split("\t")[:2] for line in (folder / "pairs.tsv").read_text().splitlines()[1:21]]
    documents = list(dict.fromkeys(positive for _, positive in rows))
    beir = folder / "beir"
    (beir / "qrels").mkdir(parents=True)
    for name, texts in (("queries", [anchor for anchor, _ in rows]), ("corpus", documents)):
        listed = [json.dumps({"_id": f"{name}{i}", "text": t}) for i, t in enumerate(texts)]
        (beir / f"{name}.jsonl").write_text("\n".join(listed) + "\n")
    grades = [f"queries{i}\tcorpus{documents.index(p)}\t1" for i, (_, p) in enumerate(rows)]
    (beir / "qrels/dev.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *grades]) + "\n")
    return beir


def pairs_config(folder: Path, name: str, **changes: Any) -> Config:
    """As `task_config`, of a kind of `PAIRS`."""
    file, needed = PAIRS[name]
    made = {**needed, **changes, "task__name": name, "task__data": str(folder / file)}
    return task_config(folder, **made)


def task_config(folder: Path, **changes: Any) -> Config:
    """The config `glue` with a model of two layers, without dropout, in float32 on one device.

    changes: by key, with "__" for a dot; its task is RTE, or `task__name`.
    """
    return load(
        "glue",
        {
            "task.name": "rte",
            "task.data": str(folder),
            "task.tokenizer": str(folder / "tokenizer.json"),
            "model.hidden_size": 32,
            "model.num_hidden_layers": 2,
            "model.num_attention_heads": 4,
            "model.intermediate_size": 64,
            "model.max_position_embeddings": 64,
            "model.hidden_dropout_prob": 0.0,
            "model.attention_probs_dropout_prob": 0.0,
            "model.initializer_range": 0.1,
            "phases[0].batch_size": 8,
            "phases[0].examples_per_row": 8,
            "phases[0].seq_length": 32,
            "mesh.data": 1,
            "compute.dtype": "float32",
            "optimizer.learning_rate": 1e-3,
            **{key.replace("__", "."): value for key, value in changes.items()},
        },
    )
