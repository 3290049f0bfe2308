"""Tagged sentences from CoNLL files: a word and its tag on a line, a blank line after a sentence.

The tags are IOB1 (as CoNLL-2003 is released: B- only where an entity follows one of its type) or
IOB2 (every entity begins with B-). Both are read in one way, as conlleval does: an entity begins
with B-, or with I- after O or after another type. Examples have IOB2.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from etils import epath

from bert_jax.data_pipeline.errors import UserError
from bert_jax.finetune.examples import Examples, Words
from bert_jax.finetune.rows import Fields, check_width, numbered_lines, wrong_row

OUTSIDE = "O"
_TAG = re.compile(r"O|[BI]-(.+)")
_DOCUMENT = "-DOCSTART-"
_Sentence = list[tuple[int, Fields]]  # of each word: row and columns


def read(
    path: epath.PathLike, *, labels: Sequence[str] | None = None, labelled: bool = True
) -> Examples:
    """Reads the sentences of a file: the word is in the first column, its tag in the last.

    Args:
        labels: tags in the order of their ids; None takes those of the file: O, then B- and I- of
            every type, sorted.
        labelled: whether the last column has tags.

    Raises:
        UserError: the file cannot be read, or a row has another number of columns than the first,
            no tag of IOB1 or IOB2, or one outside `labels`.
    """
    dropped: Counter[str] = Counter()
    sentences = list(_sentences(path, dropped, least=2 if labelled else 1))
    names: tuple[str, ...] = ()
    tags: list[list[str]] = []
    if labelled:
        tags = [to_iob2(_tag(path, row, fields[-1]) for row, fields in s) for s in sentences]
        names = tuple(labels) if labels is not None else _labels_of(tags)
    ids = {name: number for number, name in enumerate(names)}
    examples = []
    for number, sentence in enumerate(sentences):
        chosen = None
        if labelled:
            for (row, _), tag in zip(sentence, tags[number], strict=True):
                if tag not in ids:
                    wrong_row(path, row, f"tag {tag!r} is not one of {', '.join(names)[:200]}")
            chosen = tuple(ids[tag] for tag in tags[number])
        words = tuple(fields[0] for _, fields in sentence)
        examples.append(Words(str(number), words, chosen, sentence[0][0]))
    return Examples(str(path), "tagging", names, tuple(examples), dict(dropped))


def to_iob2(tags: Iterable[str]) -> list[str]:
    """Returns the tags of a sentence, IOB1 or IOB2, as IOB2."""
    out: list[str] = []
    before = OUTSIDE
    for tag in tags:
        begins = tag.startswith("I-") and before[2:] != tag[2:]
        out.append(f"B-{tag[2:]}" if begins else tag)
        before = tag
    return out


def _sentences(path: epath.PathLike, dropped: Counter[str], *, least: int) -> Iterator[_Sentence]:
    """Yields the words of each sentence.

    least: columns that every row must have.
    """
    sentence: _Sentence = []
    width = 0
    for row, line in numbered_lines(path):
        text = line.strip(" \t\r\n")
        fields = re.split(r"[ \t]+", text)
        if text and fields[0] != _DOCUMENT:
            if len(fields) < least:
                wrong_row(path, row, f"{text[:60]!r} has no tag; give a word and its tag")
            width = width or len(fields)
            check_width(path, row, fields, width)
            sentence.append((row, fields))
            continue
        if text:
            dropped[f"{_DOCUMENT} row"] += 1
        if sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence
    if not width:
        raise UserError(f"{path}: no sentence; give a word and its tag on every row")


def _tag(path: epath.PathLike, row: int, tag: str) -> str:
    if not _TAG.fullmatch(tag):
        wrong_row(path, row, f"tag {tag[:60]!r} is not of IOB1 or IOB2: O, B-… or I-…")
    return tag


def _labels_of(tags: Sequence[Sequence[str]]) -> tuple[str, ...]:
    types = sorted({tag[2:] for sentence in tags for tag in sentence if tag != OUTSIDE})
    return (OUTSIDE, *(f"{start}-{name}" for name in types for start in "BI"))
