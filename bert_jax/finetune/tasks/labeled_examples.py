"""The labelled examples of a task, as its files hold them: text, before any tokenizer.

Every reader of this folder returns `Examples`; what a file holds beside them is counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bert_jax.errors import count

UNLOCATED: Final = -1  # the first character of an answer that is not where its file says


@dataclass(frozen=True)
class Example:
    """One or two texts with a label, or the texts of a task of sentence vectors.

    Attributes:
        id: as predictions name it: the file's own index, or the row's number from 0.
        texts: one or two; of sentence vectors, the anchor, the positive and the negatives.
        label: the id of a class, a score, or None in a file without labels.
        row: of the file, from 1.
    """

    id: str
    texts: tuple[str, ...]
    label: int | float | None
    row: int


@dataclass(frozen=True)
class Words:
    """A sentence in words, each with a tag.

    Attributes:
        labels: ids of tags, in IOB2 whatever the file has; None in a file without labels.
        row: of its first word in the file, from 1.
    """

    id: str
    words: tuple[str, ...]
    labels: tuple[int, ...] | None
    row: int


@dataclass(frozen=True)
class Question:
    """A question about a text.

    Attributes:
        answers: each with its first character in the context, or UNLOCATED; empty without labels,
            or where there is none.
        impossible: whether the context has no answer.
        row: number of the question in the file, from 1.
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    impossible: bool
    row: int

    @property
    def located(self) -> tuple[str, int] | None:
        """The first answer with a place in the context, which is the one to learn."""
        return next((one for one in self.answers if one[1] != UNLOCATED), None)


@dataclass(frozen=True)
class Examples:
    """The examples of a file.

    Attributes:
        kind: the name of the `TaskKind`.
        labels: names of a model's outputs: the classes or tags in the order of their ids, the score
            in a regression, start and end of an answer.
        examples: in the order of the file; all of the class of its `kind`.
        dropped: reason -> number of rows that are not among the examples.
        remarks: on how the labels were read, for the log.
        is_of_leaderboard: whether GLUE's leaderboard takes predictions for them.
        parts: end of the names of metrics -> number of examples, where several files that follow
            one another are measured apart; the first has no such end.
    """

    path: str
    kind: str
    labels: tuple[str, ...]
    examples: tuple[Any, ...]
    dropped: Mapping[str, int]
    remarks: tuple[str, ...] = ()
    is_of_leaderboard: bool = False
    parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """Notes for the log: what is not among the examples, and how labels were read."""
        dropped = [
            f"{count(number, 'row')} dropped ({why})" for why, number in self.dropped.items()
        ]
        return [*dropped, *self.remarks]
