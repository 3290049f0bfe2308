"""Vectors of one word in many sentences, by layer: `bert-jax look senses`.

Sizes: N sentences, L layers, H hidden, C senses.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import scipy.linalg
from etils import epath

from bert_jax.ablation.intervals import wilson
from bert_jax.api.meanings import two_groups
from bert_jax.api.model import Model
from bert_jax.errors import UserError, count, first_few
from bert_jax.finetune.tasks.rows import numbered_lines, wrong_row
from bert_jax.reporting.senses_page import Shown, write_senses

_HEADER: Final = "index"  # the first field of a first line that names the columns
_COLUMNS: Final = "INDEX<TAB>SENTENCE<TAB>LABEL, or without LABEL"
_GROUPS: Final = ("one group", "the other")
_BLOCK: Final = 128  # sentences whose states of all layers are held at a time
_DIGITS: Final = 9  # of an index
_WORDS_SHOWN: Final = 5  # of different ones
_WORD: Final = re.compile(r"\S+")


class Occurrence(NamedTuple):
    """A word in a sentence: the line of its file, from 1; the characters; its sense, "" if none."""

    row: int
    sentence: str
    start: int
    end: int
    sense: str

    @property
    def word(self) -> str:
        return self.sentence[self.start : self.end]


@dataclass(frozen=True)
class Senses:
    """Senses of a word as the layers of a model tell them apart.

    Attributes:
        occurrences: N.
        names: the senses, the most frequent first.
        labels: int64 [N], indices of `names`.
        components: float32 [L + 1, N, 2], the first two principal components of the vectors of each
            layer, the embeddings first.
        shares: float64 [L + 1], of the variance in these.
        nearest: int64 [L + 1, N], the sense with the nearest centroid, leaving the sentence itself
            out; None without labels, where the groups come from the vectors themselves.
    """

    occurrences: list[Occurrence]
    names: list[str]
    labels: np.ndarray
    components: np.ndarray
    shares: np.ndarray
    nearest: np.ndarray | None

    @property
    def most_frequent(self) -> float:
        """The share of the sentences with the most frequent sense."""
        return float(np.bincount(self.labels).max() / len(self.labels))

    @property
    def correct(self) -> np.ndarray | None:
        """The number of sentences whose nearest centroid is of their sense, int64 [L + 1]."""
        return None if self.nearest is None else (self.nearest == self.labels).sum(axis=1)


def read_occurrences(path: Path, labels: Path | None = None) -> list[Occurrence]:
    """Reads a line for each sentence: the index of a word, counted from 0 between white space, the
    sentence, and its sense, separated by tabs.

    Args:
        labels: a file with the sense of each line, in place of the last column.

    Raises:
        UserError: a line of another form, an index outside its sentence, a sense that only one
            sentence has, or another number of labels than of sentences; with file and line.
    """
    found = []
    for row, line in numbered_lines(path):
        if not line.strip():
            wrong_row(path, row, f"blank line; each line is {_COLUMNS}")
        fields = line.rstrip("\n").split("\t")
        if row == 1 and fields[0].strip().lower() == _HEADER:
            continue
        if not 2 <= len(fields) <= 3:
            wrong_row(path, row, f"{count(len(fields), 'column')}; each line is {_COLUMNS}")
        number, sentence, label = fields[0].strip(), fields[1], fields[2:]
        if not number.isdecimal() or len(number) > _DIGITS:
            wrong_row(path, row, f"{number[:60]!r} is not the index of a word; give {_COLUMNS}")
        words = list(_WORD.finditer(sentence))
        if int(number) >= len(words):
            wrong_row(
                path,
                row,
                f"index {int(number):,} is outside its sentence of {count(len(words), 'word')}; "
                "words count from 0",
            )
        sense = label[0].strip() if label else ""
        found.append(Occurrence(row, sentence, *_without_signs(words[int(number)]), sense))
    if not found:
        raise UserError(f"{path}: no sentence; each line is {_COLUMNS}")
    if labels is not None:
        found = _with_labels(path, found, labels)
    _check_senses(path, found)
    return found


def _without_signs(word: re.Match[str]) -> tuple[int, int]:
    """Returns where a word begins and ends, without the signs around it, such as a comma."""
    inside = [i for i, sign in enumerate(word[0]) if _in_word(sign)] or [0, len(word[0]) - 1]
    return word.start() + inside[0], word.start() + inside[-1] + 1


def _in_word(sign: str) -> bool:
    """Returns whether a character is a letter, a digit, or a mark, such as a vowel sign."""
    return sign.isalnum() or unicodedata.category(sign).startswith("M")


def _with_labels(path: Path, found: list[Occurrence], labels: Path) -> list[Occurrence]:
    """Returns occurrences with the senses of a file."""
    if given := next((one for one in found if one.sense), None):
        wrong_row(path, given.row, f"has a label, and so has {labels}; give one of them")
    lines = [line.strip() for _, line in numbered_lines(labels)]
    while lines and not lines[-1]:
        lines.pop()
    if len(lines) != len(found):
        raise UserError(
            f"{labels}: {count(len(lines), 'label')}, but {path} has "
            f"{count(len(found), 'sentence')}; give one a line, or leave out its header"
        )
    if "" in lines:
        wrong_row(labels, lines.index("") + 1, "no label")
    return [one._replace(sense=label) for one, label in zip(found, lines, strict=True)]


def _check_senses(path: Path, found: Sequence[Occurrence]) -> None:
    """Raises UserError for labels of some sentences alone, and for a sense of one sentence."""
    senses = [one.sense for one in found]
    if not any(senses):
        if len(found) < 2:
            raise UserError(f"{path}: one sentence; give several with the word")
        return
    if "" in senses:
        wrong_row(path, found[senses.index("")].row, "no label; give every sentence one, or none")
    if alone := next((one for one in found if senses.count(one.sense) == 1), None):
        problem = f"the only sentence of sense {alone.sense[:60]!r}"
        wrong_row(path, alone.row, f"{problem}; give it a second one, or leave it out")
    if len(set(senses)) == 1:
        raise UserError(f"{path}: all sentences have the sense {senses[0][:60]!r}; give a second")


def look_at_senses(model: Model, path: Path, occurrences: Sequence[Occurrence]) -> Senses:
    """Returns how the layers of a model tell the senses of a word apart.

    Without labels, the last layer's vectors are grouped in two, as for the demo's report.

    Raises:
        UserError: as `word_vectors`.
    """
    vectors = word_vectors(model, path, occurrences)
    senses = [one.sense for one in occurrences]
    labelled = any(senses)
    if labelled:
        names = sorted(set(senses), key=lambda name: (-senses.count(name), name))
        labels = np.array([names.index(sense) for sense in senses])
    else:
        names, labels = list(_GROUPS), np.zeros(len(senses), np.int64)
        labels[two_groups(vectors[:, -1])[1][1]] = 1
    layers = np.moveaxis(vectors, 1, 0)
    components, shares = zip(*map(_components, layers), strict=True)
    aligned = [components[0]]
    for own in components[1:]:  # so that a picture does not flip from one layer to the next
        signs = np.where((own * aligned[-1]).sum(axis=0) < 0, -1, 1)
        aligned.append(own * signs)
    nearest = np.stack([_nearest(layer, labels) for layer in layers]) if labelled else None
    return Senses(list(occurrences), names, labels, np.stack(aligned), np.array(shares), nearest)


def word_vectors(model: Model, path: Path, occurrences: Sequence[Occurrence]) -> np.ndarray:
    """Returns the vector of each word, the mean of the states of its tokens, of the embeddings and
    of every layer: float32 [N, L + 1, H].

    Raises:
        UserError: a sentence is too long for the model, or a word has no token; with file and line.
    """
    blocks = []
    for first in range(0, len(occurrences), _BLOCK):
        block = occurrences[first : first + _BLOCK]
        texts = [one.sentence for one in block]
        tokens = model.tokens(texts, spans=True)
        chosen = []
        for one, read in zip(block, tokens, strict=True):
            if read.cut:
                total, most = len(read.ids) + read.cut, len(read.ids)
                wrong_row(
                    path, one.row, f"{total:,} tokens, but the model reads {most:,}; shorten it"
                )
            assert read.spans is not None
            inside = (read.spans[:, 1] > one.start) & (read.spans[:, 0] < one.end)
            if not inside.any():
                wrong_row(path, one.row, f"no token is in {one.word!r}")
            chosen.append(1 + np.flatnonzero(inside))  # after [CLS]
        states = model.hidden_states(texts, layers="0:")
        means = [state[places].mean(axis=0) for state, places in zip(states, chosen, strict=True)]
        blocks.append(np.stack(means).reshape(len(block), -1, model.config.hidden_size))
    return np.concatenate(blocks)


def _components(vectors: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns the first two principal components of vectors, float32 [N, 2], and their share of the
    variance; vectors: [N, H]."""
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    total = float((centred**2).sum())
    wide = len(centred) < centred.shape[1]
    products = centred @ centred.T if wide else centred.T @ centred
    size = len(products)
    first = max(0, size - 2)
    values, directions = scipy.linalg.eigh(products, subset_by_index=(first, size - 1))
    values, directions = np.maximum(values[::-1], 0), directions[:, ::-1]
    scores = directions * np.sqrt(values) if wide else centred @ directions
    scores = np.pad(scores, ((0, 0), (0, 2 - scores.shape[1])))
    return scores.astype(np.float32), float(values.sum() / total) if total else 0.0


def _nearest(vectors: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the sense whose centroid, over the other sentences, is nearest to each, int64 [N].

    Without its own vector, the centroid of a sense of n sentences is n / (n - 1) times as far.
    """
    exact, counts = vectors.astype(np.float64), np.bincount(labels)
    distances = np.stack(
        [((exact - exact[labels == c].mean(axis=0)) ** 2).sum(axis=1) for c in range(len(counts))],
        axis=1,
    )
    own = np.arange(len(labels)), labels
    distances[own] *= (counts / np.maximum(counts - 1, 1))[labels] ** 2
    return np.asarray(distances.argmin(axis=1))


def write_page(out: epath.PathLike, found: Senses, model: str) -> str:
    """Writes the page of senses; returns lines about it."""
    number, correct = len(found.labels), found.correct
    sentences = count(number, "sentence")
    facts, rows = {"model": model, "sentences": f"{number:,}"}, []
    for layer, share in enumerate(found.shares):
        row = [str(layer)]
        if correct is not None:
            low, high = wilson(float(correct[layer] / number), number)
            row += [f"{correct[layer] / number:.1%}", f"{low:.1%} to {high:.1%}"]
        rows.append([*row, f"{share:.1%}"])
    said = "two groups that the last layer makes; give labels for figures"
    if correct is not None:
        best = int(correct.argmax())
        first = "the first of " * bool((correct == correct[best]).sum() > 1)
        figures = f"{correct[best] / number:.1%} ({rows[best][2]}) at layer {best}, {first}the best"
        said = f"nearest sense right: {figures}; most frequent sense {found.most_frequent:.1%}"
        facts["most frequent sense"] = f"{found.names[0]}: {found.most_frequent:.1%}"
    facts["result"] = said
    different = dict[str, str]()  # a form of the word is another one, too
    for one in found.occurrences:
        different.setdefault(one.word.casefold(), one.word)
    if len(different) > 1:
        some = ", ".join(first_few([*different.values()], _WORDS_SHOWN))
        facts["words"] = f"{len(different):,} different words: {some}"
        said += f"; {facts['words']}"
    write_senses(
        out,
        sentences=[
            Shown(one.sentence[: one.start], one.word, one.sentence[one.end :])
            for one in found.occurrences
        ],
        names=found.names, labels=found.labels, components=found.components,
        nearest=found.nearest, facts=facts, rows=rows,
    )  # fmt: skip
    return f"{out}: {sentences}; {said}"
