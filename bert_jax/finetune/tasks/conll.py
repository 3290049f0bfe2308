"""Tagged sentences from CoNLL files: a word and its tag on a line, a blank line after a sentence.

The tags are IOB1 (as CoNLL-2003 is released: B- only where an entity follows one of its type) or
IOB2 (every entity begins with B-). Both are read in one way, as conlleval does: an entity begins
with B-, or with I- after O or after another type. Examples have IOB2.

`-DOCSTART-` rows and comments, rows with "#" before a sentence that have no tag or another number
of columns, are left out.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Final

from etils import epath

from bert_jax.errors import UserError, count
from bert_jax.finetune.tasks.class_names import alike, cleaned
from bert_jax.finetune.tasks.labeled_examples import Examples, Words
from bert_jax.finetune.tasks.rows import Fields, check_width, numbered_lines, wrong_row

OUTSIDE: Final = "O"
_TAG: Final = re.compile(r"O|[BI]-(.+)")
_DOCUMENT: Final = re.compile(r"-*DOCSTART-*", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d+([-.]\d+)?")  # of a word, as in CoNLL-U
_TABLES: Final = (".csv", ".json", ".jsonl", ".ndjson")
_FORM: Final = "a word on each row and a blank line after each sentence"
_FEW: Final = 3  # words that may all be the same
_Sentence = list[tuple[int, Fields]]  # of each word: row and columns


def read_sentences(
    path: epath.PathLike,
    *,
    labels: Sequence[str] | None = None,
    labelled: bool = True,
    word: int | None = None,
    tag: int | None = None,
) -> Examples:
    """Reads the sentences of a file.

    Args:
        labels: tags in the order of their ids; None takes those of the file: O, then B- and I- of
            every type, sorted.
        labelled: whether there are tags.
        word, tag: their columns, from 1; by default the first and the last.

    Raises:
        UserError: the file cannot be read or is a table of texts; a row has another number of
            columns than the first, no tag of IOB1 or IOB2, or one outside `labels`; or the first
            column is that of the word by default, and has numbers or the same in every row.
    """
    if PurePath(path).suffix.lower() in _TABLES:
        raise UserError(f"{path}: not in CoNLL's form, {_FORM}")
    dropped: Counter[str] = Counter()
    sentences = list(_sentences(path, dropped, word or 1, tag, labelled=labelled))
    if PurePath(path).suffix.lower() == ".tsv" and len(sentences[0][0][1]) == 1:
        raise UserError(
            f"{path}: one column, so it may be a table of texts; CoNLL's form is {_FORM}: if it is "
            "that, rename it to .txt"
        )
    if word is None:
        _check_words(path, [fields for one in sentences for _, fields in one], labelled=labelled)
    names: tuple[str, ...] = ()
    tags: list[list[str]] = []
    if labelled:
        at = tag - 1 if tag else -1
        tags = [to_iob2(_tag(path, row, fields[at]) for row, fields in s) for s in sentences]
        names = tuple(labels) if labels is not None else _labels_of(tags)
    ids = {name: number for number, name in enumerate(names)}
    examples = []
    for number, sentence in enumerate(sentences):
        chosen = None
        if labelled:
            for (row, _), name in zip(sentence, tags[number], strict=True):
                if name not in ids:
                    wrong_row(path, row, f"tag {name!r} is not one of {', '.join(names)[:200]}")
            chosen = tuple(ids[name] for name in tags[number])
        words = tuple(fields[(word or 1) - 1] for _, fields in sentence)
        examples.append(Words(str(number), words, chosen, sentence[0][0]))
    remarks = tuple(alike({name[2:] for name in names}))
    return Examples(str(path), "tagging", names, tuple(examples), dict(dropped), remarks)


def to_iob2(tags: Iterable[str]) -> list[str]:
    """Returns the tags of a sentence, IOB1 or IOB2, as IOB2."""
    out: list[str] = []
    before = OUTSIDE
    for tag in tags:
        begins = tag.startswith("I-") and before[2:] != tag[2:]
        out.append(f"B-{tag[2:]}" if begins else tag)
        before = tag
    return out


def _sentences(
    path: epath.PathLike, dropped: Counter[str], word: int, tag: int | None, *, labelled: bool
) -> Iterator[_Sentence]:
    """Yields the words of each sentence."""
    lines = ((row, line.strip(" \t\r\n")) for row, line in numbered_lines(path))
    rows = [(row, re.split(r"[ \t]+", text) if text else []) for row, text in lines]
    given = [fields for _, fields in rows if fields]
    words = [fields for fields in given if not _is_aside(fields)] or given
    width = len(words[0]) if words else 0
    least = max(word, tag or 1, 2 if labelled else 1)
    tagged = labelled or all(_TAG.fullmatch(fields[-1]) for fields in words)
    at = tag - 1 if tag and tag <= width else -1
    sentence: _Sentence = []
    for row, fields in rows:
        is_document = bool(fields) and any(map(_DOCUMENT.fullmatch, fields[:word]))
        is_comment = _is_aside(fields[:1]) and not is_document and not sentence
        if is_comment and (len(fields) != width or (tagged and not _TAG.fullmatch(fields[at]))):
            dropped["comment row"] += 1
        elif fields and not is_document:
            if len(fields) < least:
                _too_few(path, row, fields, word, tag, labelled=labelled)
            check_width(path, row, fields, width or len(fields))
            sentence.append((row, fields))
        else:
            if is_document:
                dropped["-DOCSTART- row"] += 1
            if sentence:
                yield sentence
            sentence = []
    if sentence:
        yield sentence
    if all(any(map(_DOCUMENT.fullmatch, fields[:word])) for fields in given):
        raise UserError(f"{path}: no sentence; give a word and its tag on every row")


def _is_aside(fields: Fields) -> bool:
    """Returns whether a row may be a comment, or is that of a document."""
    return bool(fields) and (fields[0].startswith("#") or bool(_DOCUMENT.fullmatch(fields[0])))


def _too_few(
    path: epath.PathLike, row: int, fields: Fields, word: int, tag: int | None, *, labelled: bool
) -> None:
    text = " ".join(fields)[:60]
    if labelled and len(fields) == 1:
        wrong_row(path, row, f"{text!r} has no tag; give a word and its tag")
    wanted = f"the word in column {word}" + (f", its tag in column {tag}" if tag else "")
    wrong_row(path, row, f"{text!r} has {count(len(fields), 'column')}; give {wanted}")


def _check_words(path: epath.PathLike, rows: Sequence[Fields], *, labelled: bool) -> None:
    """Raises UserError if the words are in another column than the first."""
    columns = [set(column) for column in zip(*rows, strict=True)]
    others = columns[1:-1] if labelled else columns[1:]

    def is_of_words(column: set[str]) -> bool:
        return not all(map(_NUMBER.fullmatch, column)) and (len(column) > 1 or len(rows) <= _FEW)

    if not others or is_of_words(columns[0]):
        return
    found = next((i for i, column in enumerate(others, start=2) if is_of_words(column)), 2)
    shown = ", ".join(fields[0] for fields in rows[:3])[:60]
    raise UserError(
        f"{path}: column 1 has no words, but {shown}, …; give the number of the word's column: "
        f"--config.task.text={found}, of predict --text={found}"
    )


def _tag(path: epath.PathLike, row: int, tag: str) -> str:
    name = cleaned(tag)
    if not _TAG.fullmatch(name):
        wrong_row(path, row, f"tag {tag[:60]!r} is not of IOB1 or IOB2: O, B-… or I-…")
    return name


def _labels_of(tags: Sequence[Sequence[str]]) -> tuple[str, ...]:
    types = sorted({tag[2:] for sentence in tags for tag in sentence if tag != OUTSIDE})
    return (OUTSIDE, *(f"{start}-{name}" for name in types for start in "BI"))
