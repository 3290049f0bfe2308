"""Hard negatives: texts of a corpus near an anchor, by a model, that do not belong to it.

Texts that differ in white space alone count as equal, since tokenizers see no difference.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from bert_jax.api.corpus_search import (
    Corpus,
    SearchSettings,
    is_cosine,
    nearest_rows,
    query_vectors,
)
from bert_jax.api.model import Model
from bert_jax.data_pipeline.sources.tab_rows import fits_tab_row, tab_row
from bert_jax.errors import UserError, count
from bert_jax.finetune.tasks.class_names import is_blank
from bert_jax.finetune.tasks.rows import wrong_row
from bert_jax.finetune.tasks.sentence_pairs import negative_columns
from bert_jax.finetune.tasks.sentence_task import text_key
from bert_jax.finetune.tasks.table import read_rows, read_titles
from bert_jax.storage.digest import sha256
from bert_jax.storage.outputs import OutputKind, check_output, write_output

HARD_NEGATIVES: Final = OutputKind("table of hard negatives", None, in_buckets=False)
_ANCHOR, _POSITIVE, _NEGATIVE = "anchor", "positive", "negative"
_RESULTS: Final = 1 << 24  # of all anchors of a search, which are in memory


@dataclass(frozen=True)
class _Pair:
    """A row of the table: two texts that belong together, and negatives that it has already."""

    row: int
    anchor: str
    positive: str
    negatives: tuple[str, ...]


def write_hard_negatives(
    model: Model,
    corpus: Corpus,
    pairs: Path,
    out: Path,
    settings: SearchSettings,
    *,
    per_pair: int = 1,
    skip: int = 0,
    overwrite: bool = False,
) -> str:
    """Writes a table of pairs with the nearest texts of a corpus as negatives; returns one line.

    No text is a negative of an anchor that equals the anchor or one of the positives that equal
    anchors have, nor is an empty one, and no two negatives of a pair are equal. The columns of
    negatives that the pairs have are kept, and the texts in them are no new ones.

    Args:
        pairs: a table of the columns `anchor`, `positive` and any number of negatives.
        out: a .tsv, .csv or .jsonl file of the columns `anchor`, `positive` and `negative`, or
            `negative_1` and so on for several; numbered after those of the pairs.
        per_pair: new negatives of a pair.
        skip: nearest texts that are left out, as unmarked positives may be among them.

    Raises:
        UserError: as `search` and `read_rows`, a text of a pair is empty, the corpus has too few
            texts, `out` has another ending, may not be written or cannot hold a text.
    """
    write = _WRITERS.get(out.suffix)
    if write is None:
        raise UserError(f"{out}: give a name that ends with one of {', '.join(_WRITERS)}")
    check_output(out, HARD_NEGATIVES, inputs=[pairs], overwrite=overwrite)
    titles = read_titles(pairs)
    kept = negative_columns(titles)
    listed = _read(pairs, [*kept])
    found = _negatives(model, corpus, pairs, listed, settings, per_pair, skip)
    texts = corpus.texts_of({row for rows in found.values() for row in rows})
    last = max(kept.values(), default=0)
    names = [f"{_NEGATIVE}_{last + i + 1}" for i in range(per_pair)]
    if per_pair == 1 and not kept:
        names = [_NEGATIVE]
    table = [
        (
            pair.row,
            [
                *(pair.anchor, pair.positive, *pair.negatives),
                *(texts[row] for row in found[text_key(pair.anchor)]),
            ],
        )
        for pair in listed
    ]
    data = write(pairs, [_ANCHOR, _POSITIVE, *kept, *names], table).encode()
    write_output(out, data, HARD_NEGATIVES, inputs=[pairs], overwrite=overwrite)
    others = [name for name in dict.fromkeys(titles) if name not in (_ANCHOR, _POSITIVE, *kept)]
    beside = f", beside {len(kept):,} of {pairs}" if kept else ""
    left = f"; columns left out: {', '.join(others)}" if others else ""
    each = count(per_pair, "negative")
    return f"{out}: {count(len(table), 'pair')} with {each} each{beside}{left}"


def _read(path: Path, negatives: Sequence[str]) -> list[_Pair]:
    """Returns the rows of a table; negatives: its columns of them."""
    rows, _ = read_rows(path, [_ANCHOR, _POSITIVE, *negatives])
    for row, values in rows:
        for name, text in values.items():
            if is_blank(text):
                wrong_row(path, row, f"the {name} is empty")
    if not rows:
        raise UserError(f"{path}: no pairs; give rows with an anchor and a positive")
    return [
        _Pair(row, values[_ANCHOR], values[_POSITIVE], tuple(values[name] for name in negatives))
        for row, values in rows
    ]


def _negatives(
    model: Model,
    corpus: Corpus,
    path: Path,
    pairs: Sequence[_Pair],
    settings: SearchSettings,
    per_pair: int,
    skip: int,
) -> dict[str, list[int]]:
    """Returns the rows of each anchor's negatives in the corpus, the nearest first, by its key."""
    own: dict[str, set[str]] = {}  # keys of the texts of each anchor's rows, its own included
    for pair in pairs:
        key = text_key(pair.anchor)
        own.setdefault(key, {key}).update(map(text_key, (pair.positive, *pair.negatives)))
    allowed, rows_of = _first_rows(corpus, set().union(*own.values()))
    most = max(map(len, own.values())) + skip + per_pair
    anchors, found = list(own), dict[str, list[int]]()
    size = max(1, _RESULTS // most)
    cosine = is_cosine(model, settings)
    for first in range(0, len(anchors), size):
        some = anchors[first : first + size]
        queries = query_vectors(model, corpus, some, settings)
        _, rows = nearest_rows(corpus, queries, most, cosine=cosine, allowed=allowed)
        for anchor, nearest in zip(some, rows.tolist(), strict=True):
            left_out = {rows_of.get(key) for key in own[anchor]}
            others = [row for row in nearest if row not in left_out]
            found[anchor] = others[skip : skip + per_pair]
    for pair in pairs:
        if (there := len(found[text_key(pair.anchor)])) < per_pair:
            wrong_row(
                path, pair.row, f"only {count(there, 'text')} of {corpus.texts} can be a negative "
                f"of it, skip={skip:,} left out, but {per_pair:,} should be; give a larger corpus"
            )  # fmt: skip
    return found


def _first_rows(corpus: Corpus, wanted: set[str]) -> tuple[np.ndarray, dict[str, int]]:
    """Returns which rows of a corpus are not empty and the first of equal ones, bool [N], and the
    rows of the wanted keys among these."""
    hashes = np.zeros(len(corpus.vectors.stored), np.uint64)
    allowed, rows = np.zeros(len(hashes), bool), dict[str, int]()
    for row, text in enumerate(corpus.lines()):
        key = text_key(text)
        hashes[row], allowed[row] = int(sha256(key.encode())[:16], 16), bool(key)
        if key in wanted:
            rows.setdefault(key, row)
    _, first = np.unique(hashes, return_index=True)
    is_first = np.zeros(len(hashes), bool)
    is_first[first] = True
    return allowed & is_first, rows


Write = Callable[[Path, Sequence[str], Sequence[tuple[int, Sequence[str]]]], str]


def _tsv(pairs: Path, names: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]]) -> str:
    for row, texts in rows:
        for name, text in zip(names, texts, strict=True):
            if not fits_tab_row(text):
                wrong_row(
                    pairs, row, f"its {name} has a tab or a line end, which a .tsv cannot hold; "
                    "give a name that ends with .jsonl"
                )  # fmt: skip
    return "".join(tab_row(fields) + "\n" for fields in (names, *(texts for _, texts in rows)))


def _csv(pairs: Path, names: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(texts for _, texts in rows)
    return stream.getvalue()


def _jsonl(pairs: Path, names: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]]) -> str:
    def lines() -> Iterator[str]:
        for _, texts in rows:
            yield json.dumps(dict(zip(names, texts, strict=True)), ensure_ascii=False) + "\n"

    return "".join(lines())


_WRITERS: Final[Mapping[str, Write]] = {".tsv": _tsv, ".csv": _csv, ".jsonl": _jsonl}
