"""Queries, a corpus and which documents answer each query, in BEIR's form or as plain tables; and
pairs of texts with a score.

BEIR's folder has `queries.jsonl` and `corpus.jsonl` with the keys _id and text, of a document also
title, and `qrels/test.tsv`, also of other splits, with the columns query-id, corpus-id and score. A
table has these, too.
"""

import math
from dataclasses import dataclass
from typing import Final

from etils import epath

from bert_jax.errors import UserError, count
from bert_jax.finetune.tasks.class_names import is_blank
from bert_jax.finetune.tasks.glue import read_split
from bert_jax.finetune.tasks.rows import score_of, wrong_row
from bert_jax.finetune.tasks.table import JSONL, files_in, read_rows, read_titles
from bert_jax.metrics.retrieval import Relevance
from bert_jax.storage.digest import json_digest
from bert_jax.storage.remote import open_path

_ENDINGS: Final = (".jsonl", ".tsv", ".csv")
# What a folder holds -> the names that its file may have, in this order.
_FILES: Final = {
    "queries": tuple(f"queries{ending}" for ending in _ENDINGS),
    "corpus": tuple(f"corpus{ending}" for ending in _ENDINGS),
}
_TABLES: Final = (".tsv", ".csv", ".jsonl")
_SPLIT: Final = "test"
_TEXTS_OF_PAIR: Final = ("sentence1", "sentence2")
_LEAST_PAIRS: Final = 3
_ANY_NUMBER: Final = (-math.inf, math.inf)


@dataclass(frozen=True)
class Retrieval:
    """Queries with their relevant documents, and all documents.

    Attributes:
        path: the folder, for messages.
        queries: the texts, of those for which the folder has relevant documents.
        documents: the texts, each after its title.
        relevance: of each query, by row in `documents`.
        own: of each query, the row of the document with its id, which is not among its results; -1
            if there is none.
        notes: what was left out, in words.
    """

    path: str
    queries: list[str]
    documents: list[str]
    relevance: Relevance
    own: list[int]
    notes: list[str]

    @property
    def digest(self) -> str:
        """The digest of all that a search finds and is measured by."""
        relevance = [sorted(grades.items()) for grades in self.relevance]
        return json_digest([self.queries, self.documents, relevance, self.own])

    @property
    def size(self) -> str:
        """The number of queries, documents and relevant ones, in words."""
        relevant = sum(len(grades) for grades in self.relevance)
        queries = f"{len(self.queries):,} {'query' if len(self.queries) == 1 else 'queries'}"
        return f"{queries}, {count(len(self.documents), 'document')}, {relevant:,} relevant"


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of texts, each with a score."""

    path: str
    pairs: list[tuple[str, str]]
    scores: list[float]
    notes: list[str]


@dataclass(frozen=True)
class _Texts:
    """Texts of a file by id: (row in the file, title and text)."""

    path: epath.Path
    by_id: dict[str, tuple[int, str]]
    dropped: dict[str, int]


def read_scored_pairs(path: epath.PathLike) -> ScoredPairs:
    """Reads a table with the columns sentence1, sentence2 and score, or else label, or STS-B's dev
    split from GLUE's folder.

    Raises:
        UserError: as `read_rows`, or a text is empty, a score is not a number, or fewer than three
            pairs or only one score are left.
    """
    if open_path(path).is_dir():
        found = read_split("stsb", path, "dev")
        where, dropped = found.path, dict(found.dropped)
        rows = [(one.row, *one.texts, one.label) for one in found.examples]
    else:
        titles = read_titles(path)
        score = "label" if "label" in titles and "score" not in titles else "score"
        names = (*_TEXTS_OF_PAIR, score)
        listed, dropped = read_rows(path, names)
        where = str(path)
        rows = [(row, *(values[name] for name in names)) for row, values in listed]
    pairs, scores = list[tuple[str, str]](), list[float]()
    for row, first, second, score in rows:
        for name, text in zip(_TEXTS_OF_PAIR, (first, second), strict=True):
            if is_blank(text):
                wrong_row(where, row, f"{name} is empty; give it a text or leave the row out")
        pairs.append((first, second))
        scores.append(score_of(where, row, str(score), *_ANY_NUMBER))
    if len(pairs) < _LEAST_PAIRS:
        raise UserError(f"{where}: {count(len(pairs), 'pair')}; give {_LEAST_PAIRS} or more")
    if len(set(scores)) == 1:
        raise UserError(f"{where}: every score is {scores[0]:g}; a correlation needs several")
    return ScoredPairs(where, pairs, scores, _notes(dropped))


def read_retrieval(folder: epath.PathLike, split: str | None = None) -> Retrieval:
    """Reads BEIR's form, or tables with its columns.

    Queries without a relevant document are left out; documents without text are never found.

    Args:
        split: whose qrels are read, such as "dev"; None: "test", or the only ones that there are.

    Raises:
        UserError: as `read_rows`; an id is empty or not the only one of its kind, a text that is
            needed is empty, the qrels name an unknown id or are those of other splits, or no query
            is left.
    """
    files = {kind: _find(folder, kind) for kind in _FILES}
    qrels = _find_qrels(folder, split)
    queries = _read_texts(files["queries"], "query", title=False)
    corpus = _read_texts(files["corpus"], "document", title=True)
    grades = _read_grades(qrels, queries, corpus)
    with_text = [name for name, (_, text) in corpus.by_id.items() if not is_blank(text)]
    places = {name: place for place, name in enumerate(with_text)}
    notes = _notes({**queries.dropped, **corpus.dropped})
    if qrels.parent.name == "qrels" and qrels.stem != _SPLIT:
        notes.append(f"relevance: {qrels}")
    if unused := len(queries.by_id) - len(grades):
        notes.append(f"queries without an entry in {qrels}, left out: {unused:,}")
    answered = {name: of for name, of in grades.items() if max(of.values()) > 0}
    if none := len(grades) - len(answered):
        notes.append(f"queries without a document with a score above 0, left out: {none:,}")
    if not answered:
        raise UserError(
            f"{qrels}: no score is above 0, so no query is left; give relevant documents"
        )
    if empty := len(corpus.by_id) - len(with_text):
        notes.append(f"documents without text, never found: {empty:,}")
    # BEIR leaves out equal ids, too: a query may be one of the documents.
    own = [places.get(name, -1) if name not in of else -1 for name, of in answered.items()]
    if same := sum(place >= 0 for place in own):
        notes.append(f"documents with the id of a query, left out of its results: {same:,}")
    return Retrieval(
        path=str(folder),
        queries=[queries.by_id[name][1] for name in answered],
        documents=[corpus.by_id[name][1] for name in with_text],
        relevance=[
            {places[name]: grade for name, grade in of.items() if grade > 0}
            for of in answered.values()
        ],
        own=own,
        notes=notes,
    )


def _find(folder: epath.PathLike, kind: str) -> epath.Path:
    """Returns the file of this kind; UserError if there is none."""
    found = open_path(folder)
    if not found.is_dir():
        raise UserError(f"{folder}: no such folder; give one with queries, a corpus and qrels")
    names = _FILES[kind]
    if path := _only(folder, kind, [found / name for name in names if (found / name).exists()]):
        return path
    raise UserError(f"{folder}: no {kind}; one of {', '.join(names)} must be there")


def _only(folder: epath.PathLike, kind: str, there: list[epath.Path]) -> epath.Path | None:
    """Returns the file of a kind, or None; UserError if there are several."""
    if len(there) > 1:
        first, second = (str(one.relative_to(open_path(folder))) for one in there[:2])
        raise UserError(f"{folder}: {first} and {second} may both be its {kind}; move one away")
    return there[0] if there else None


def _find_qrels(folder: epath.PathLike, split: str | None) -> epath.Path:
    """Returns the file of relevance; UserError if there is none, with those of other splits."""
    found = open_path(folder)
    several = found / "qrels"
    tables = files_in(several, (*_TABLES, *JSONL)) if several.is_dir() else []
    splits = dict.fromkeys(path.stem for path in tables)
    chosen = [path for path in tables if path.stem == (split or _SPLIT)]
    if split is None:
        own = (found / f"qrels{ending}" for ending in _TABLES)
        chosen += [path for path in own if path.exists()]
        chosen = chosen or (tables if len(splits) == 1 else [])
    if path := _only(folder, "qrels", chosen):
        return path
    if not splits:
        names = f"qrels/{split or _SPLIT}.tsv", *(f"qrels{ending}" for ending in _TABLES)
        raise UserError(f"{folder}: no qrels; one of {', '.join(names)} must be there")
    remedy = " or ".join(f"--split={name}" for name in splits)
    raise UserError(f"{several}: no {split or _SPLIT}{_TABLES[0]}; give {remedy}")


def _read_texts(path: epath.Path, what: str, *, title: bool) -> _Texts:
    """Reads texts by id, each after its title; an empty one of a query is an error."""
    rows, dropped = read_rows(path, ("_id", "text"), ("title",) if title else ())
    by_id = dict[str, tuple[int, str]]()
    for row, values in rows:
        name = values["_id"]
        if not name:
            wrong_row(path, row, f"_id of a {what} is empty; give it one")
        if name in by_id:
            wrong_row(path, row, f"_id {name[:60]!r} is that of row {by_id[name][0]:,}, too")
        text = f"{values.get('title', '')} {values['text']}".strip()  # as BEIR joins them
        if is_blank(text) and not title:
            wrong_row(path, row, f"text of {what} {name[:60]!r} is empty; leave it out")
        by_id[name] = row, text
    return _Texts(path, by_id, dropped)


def _read_grades(path: epath.Path, queries: _Texts, corpus: _Texts) -> dict[str, dict[str, float]]:
    """Returns the grade of each document that the qrels name for a query."""
    names = ("query-id", "corpus-id", "score")
    grades = dict[str, dict[str, float]]()
    for row, values in read_rows(path, names)[0]:
        query, document, score = (values[name] for name in names)
        for name, texts in ((query, queries), (document, corpus)):
            if name not in texts.by_id:
                wrong_row(path, row, f"id {name[:60]!r} is not in {texts.path}")
        own, grade = grades.setdefault(query, {}), score_of(path, row, score, *_ANY_NUMBER)
        if document in own:
            wrong_row(path, row, f"query {query[:60]!r} has document {document[:60]!r} twice")
        if grade > 0 and is_blank(corpus.by_id[document][1]):
            wrong_row(path, row, f"document {document[:60]!r} is relevant, but has no text")
        own[document] = grade
    if not grades:
        raise UserError(f"{path}: no rows, so no query is left; give the relevant documents")
    return grades


def _notes(dropped: dict[str, int]) -> list[str]:
    return [f"rows dropped ({reason}): {number:,}" for reason, number in dropped.items()]
