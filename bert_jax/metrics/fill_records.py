"""Guesses of a run for words hidden in held-out sentences, in its records.

The sentences are in the record of each start, `"hidden"`; a record `"fills"` has the guesses of one
step, in the order of the sentences of the start before it.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from bert_jax.metrics.run_records import is_finite

FILLS: Final = "fills"  # kind of the records
Guesses = Sequence[Sequence[tuple[str, float]]]  # of each sentence (token, probability), descending


class Sentence(Protocol):
    """Running text with a word that was hidden."""

    @property
    def before(self) -> str: ...
    @property
    def word(self) -> str: ...
    @property
    def after(self) -> str: ...


@dataclasses.dataclass
class Filled:
    """A sentence, and the guesses for its hidden word by the number of updates before them."""

    before: str
    word: str
    after: str
    by_step: dict[int, list[tuple[str, float]]] = dataclasses.field(default_factory=dict)


def hidden(sentences: Iterable[Sentence]) -> list[dict[str, str]]:
    """Returns sentences as the record of a start has them."""
    return [{"before": s.before, "word": s.word, "after": s.after} for s in sentences]


def read_fills(records: Iterable[Mapping[str, Any]]) -> list[Filled]:
    """Returns the sentences of a run's records with all guesses, in the order first drawn; of
    repeated steps the latest. Damaged records are left out."""
    found: dict[tuple[str, str, str], Filled] = {}
    current: list[Filled] = []
    for record in records:
        if record["kind"] == "start":
            current = [
                found.setdefault(key, Filled(*key)) for key in _sentences(record.get("hidden"))
            ]
            for one in found.values():
                one.by_step = {s: g for s, g in one.by_step.items() if s <= record["step"]}
        elif record["kind"] == FILLS:
            for one, guesses in zip(current, _guesses(record.get("guesses")), strict=False):
                one.by_step[record["step"]] = guesses
    return [one for one in found.values() if one.by_step]


def steps_of(filled: Iterable[Filled]) -> list[int]:
    """Returns the steps with guesses, ascending."""
    return sorted({step for one in filled for step in one.by_step})


def last_guesses(filled: Iterable[Filled]) -> tuple[int, list[Filled]]:
    """Returns the last step with guesses, 0 without any, and the sentences that have some there."""
    filled = list(filled)
    last = max(steps_of(filled), default=0)
    return last, [one for one in filled if last in one.by_step]


def _sentences(value: Any) -> list[tuple[str, str, str]]:
    """The sentences of a start; none if one of them is damaged, as guesses follow their order."""
    names = ("before", "word", "after")
    listed = [one if isinstance(one, dict) else {} for one in _listed(value)]
    texts = [tuple(one.get(name) for name in names) for one in listed]
    if not all(_is_text(part) for text in texts for part in text):
        return []
    return [(str(before), str(word), str(after)) for before, word, after in texts]


def _guesses(value: Any) -> list[list[tuple[str, float]]]:
    """The guesses of each sentence; those that are none, or not finite, are left out."""
    return [
        [(pair[0], float(pair[1])) for pair in _listed(one) if _is_guess(pair)]
        for one in _listed(value)
    ]


def _is_guess(value: Any) -> bool:
    return len(_listed(value)) == 2 and _is_text(value[0]) and is_finite(value[1])


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
