"""Refuses a vocabulary without capitals for text that keeps its capitals."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from bert_jax.data_pipeline.sources import Document, read_range
from bert_jax.data_pipeline.store_build.shard import cleaned
from bert_jax.data_pipeline.store_build.shard_files import Unit
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError

_SAMPLE: Final = 1 << 18  # characters of each source that are looked at, about
_UNITS: Final = 4  # of each source, of which they are
_WINDOW: Final = 256  # characters of one place
_FEWEST: Final = 0.01  # of the words; in English text 12 % have a capital, a foreign name is none
_WORD: Final = re.compile(r"[^\W\d_]+")


def check_casing(tokenizer: Tokenizer, units: Sequence[Unit]) -> None:
    """Raises UserError if the vocabulary lacks capitals, the tokenizer does not lower-case, and
    words of the text become [UNK] that in lower case would not."""
    if not _lacks_capitals(tokenizer):
        return
    of_source: dict[str, list[Unit]] = {}
    for unit in units:
        of_source.setdefault(unit.source.name, []).append(unit)
    for name, its in of_source.items():
        words = Counter(word for text in _sample(its) for word in _WORD.findall(text))
        lost = _lost_by_case(tokenizer, [word for word in words if word.lower() != word])
        if sum(words[word] for word in lost) > _FEWEST * words.total():
            raise UserError(
                f"source {name!r}: its text has capitals (such as {lost[0]!r}), the vocabulary has "
                "few or none, and the tokenizer does not lower-case: words with a capital would be "
                "[UNK]; leave out --cased (in Python: lowercase=True), or use a cased vocabulary"
            )


def _lacks_capitals(tokenizer: Tokenizer) -> bool:
    """Returns whether the capitals of most lower-case letters are [UNK], each letter counted as
    often as entries have it: a released uncased vocabulary has symbols such as ℝ, and users add
    entries."""
    special = set(tokenizer.special)
    entries = [tokenizer.token(i) for i in range(tokenizer.vocab_size) if i not in special]
    counts = Counter(c for entry in entries if not entry.startswith(("[", "<")) for c in entry)
    capitals = {c.upper(): n for c, n in counts.items() if len(c.upper()) == 1 and c.upper() != c}
    lost = _lost_by_case(tokenizer, list(capitals))
    return sum(capitals[c] for c in lost) > sum(capitals.values()) / 2


def _lost_by_case(tokenizer: Tokenizer, words: Sequence[str]) -> list[str]:
    """Returns the words that have an [UNK], but not in lower case."""
    kept, lower = (
        [tokenizer.special.unk in ids for ids in tokenizer.encode_batch(list(texts))]
        for texts in (words, [word.lower() for word in words])
    )
    return [
        word for word, unknown, known in zip(words, kept, lower, strict=True) if unknown > known
    ]


def _sample(units: Sequence[Unit]) -> Iterator[str]:
    """Yields cleaned pieces of a source's text from places all over it: what a text starts with,
    such as a table of contents or a list of names, may be written otherwise than the rest."""
    last = len(units) - 1
    chosen = [units[i] for i in sorted({last * n // (_UNITS - 1) for n in range(_UNITS)})]
    step = max(1, sum(unit.bytes for unit in chosen) // _SAMPLE)
    count = 0
    for unit, document in _documents(chosen):
        for start in range(0, len(document.text), _WINDOW):
            if count % step == 0:
                piece = document.text[start : start + _WINDOW]
                yield cleaned(dataclasses.replace(document, text=piece), unit.source)[0]
            count += 1


def _documents(units: Sequence[Unit]) -> Iterator[tuple[Unit, Document]]:
    for unit in units:
        for part in unit.ranges:
            for document in read_range(unit.source, part):
                yield unit, document
