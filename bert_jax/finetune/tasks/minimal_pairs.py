"""Minimal pairs: a good and a bad sentence that differ in what a model should know.

In the form of BLiMP (Warstadt et al. 2020, arXiv 1912.00582): .jsonl with the keys sentence_good
and sentence_bad, and the names of the phenomenon: UID, field and linguistics_term.
"""

from dataclasses import dataclass
from typing import Final

from etils import epath

from bert_jax.errors import UserError
from bert_jax.finetune.tasks.rows import wrong_row
from bert_jax.finetune.tasks.table import JSONL, files_in, read_rows
from bert_jax.storage.remote import open_path

GOOD: Final = "sentence_good"
BAD: Final = "sentence_bad"
GROUPS: Final = ("field", "linguistics_term", "UID")  # from the widest to the narrowest


@dataclass(frozen=True)
class Sentence:
    """A sentence, and where it stands, for messages."""

    text: str
    path: str
    row: int


@dataclass(frozen=True)
class MinimalPair:
    """Two sentences.

    Attributes:
        groups: what the file says of it, by the names in `GROUPS`; "" where it says nothing.
    """

    good: Sentence
    bad: Sentence
    groups: dict[str, str]


def read_minimal_pairs(path: epath.PathLike) -> list[MinimalPair]:
    """Reads a file that `read_rows` reads, or all .jsonl and .ndjson files of a folder, in the
    order of their names.

    Raises:
        UserError: as `read_rows`, or there is no file or no pair, or a sentence is empty, or both
            of a pair are equal.
    """
    files = [open_path(path)]
    if files[0].is_dir():
        files = files_in(files[0], JSONL)
        if not files:
            raise UserError(f"{path}: no .jsonl file in this folder; give one with minimal pairs")
    pairs = [pair for file in files for pair in _pairs_of(file)]
    if not pairs:
        raise UserError(f"{path}: no pair; give {GOOD} and {BAD} on each line")
    return pairs


def _pairs_of(path: epath.Path) -> list[MinimalPair]:
    rows, _ = read_rows(path, (GOOD, BAD), GROUPS)
    pairs = []
    for row, values in rows:
        for name in (GOOD, BAD):
            if not values[name].strip():
                wrong_row(path, row, f"{name} is empty; give it a sentence or leave the row out")
        if values[GOOD].strip() == values[BAD].strip():
            wrong_row(path, row, f"{GOOD} and {BAD} are equal; a pair needs two sentences")
        groups = {name: values[name] for name in GROUPS}
        good, bad = (Sentence(values[name], str(path), row) for name in (GOOD, BAD))
        pairs.append(MinimalPair(good, bad, groups))
    return pairs
