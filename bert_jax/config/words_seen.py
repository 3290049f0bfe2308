"""Words of text that a run has seen, and the names of its checkpoints by words, such as chck_10M.

    words after step N = sum over phases of (steps of it by N) x batch_size x (words of a row)
    words of a row     = tokens of text in a row, on average over epoch 0 x words of a token
    words of a token   = words / tokens of the store's training text, words between white space

Special tokens and padding are no text; text that is read again counts again. All of these are
fixed by configuration, store and plan, so a run that resumes, or has packed rows, counts the same.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from bert_jax.errors import UserError

KEY: Final = "config.checkpoint.keep_at_words"
_SUFFIXES: Final = {"": 1, "K": 1_000, "M": 1_000_000, "B": 1_000_000_000}
_NUMBER: Final = re.compile(r"([\d_]*\d)([KMB]?)")
_REVISION: Final = re.compile(r"chck_(\d+)([KMB]?)")
_MOST: Final = 10**15
Start = tuple[int, float]  # the step where a run starts, and the words that were seen by then
ZERO: Final[Start] = (0, 0.0)


def parse_words(text: str) -> tuple[int, ...]:
    """Returns the numbers in a list with commas, such as "1M, 10M" or "(1_000_000, 10_000_000)".

    Raises:
        UserError: something in it is no number of words; names the key.
    """
    inner = text.strip().removeprefix("(").removesuffix(")")
    parts = [part.strip() for part in inner.split(",")]
    if not inner.strip():
        return ()
    if len(parts) > 1 and not parts[-1]:  # "(1_000_000,)"
        parts.pop()
    numbers = []
    for part in parts:
        match = _NUMBER.fullmatch(part)
        number = int(match[1].replace("_", "")) * _SUFFIXES[match[2]] if match else 0
        if not 0 < number <= _MOST:
            raise UserError(f"{KEY}={text!r}: {part!r} is no number of words; give 1M,10M")
        numbers.append(number)
    return tuple(sorted(set(numbers)))


def revision_of(words: int) -> str:
    """Returns the name of a checkpoint after a number of words: chck_10M. 1,000 million stay
    1000M, as BabyLM's evaluation names them."""
    suffix = next(s for s in ("M", "K", "") if words % _SUFFIXES[s] == 0)
    return f"chck_{words // _SUFFIXES[suffix]}{suffix}"


def words_of(revision: str) -> int | None:
    """Returns the words in the name of a checkpoint; None if it names none."""
    match = _REVISION.fullmatch(revision)
    return int(match[1]) * _SUFFIXES[match[2]] if match else None


def step_at(
    words: int, phase_ends: Sequence[int], words_per_step: Sequence[float], start: Start = ZERO
) -> int | None:
    """Returns the first step after which these words were seen, that of the start if they were seen
    by then; None if the run ends before.

    Args:
        phase_ends: the last step of each phase.
        words_per_step: in each phase.
        start: of a run that continues the steps of another.
    """
    first, before = start
    if words <= before:
        return first
    for last, each in zip(phase_ends, words_per_step, strict=True):
        if last <= first:
            continue
        # Rounded, so that the error of a sum of floats adds no step.
        steps = math.ceil(round((words - before) / each, 6)) if each else math.inf
        if first + steps <= last:
            return first + int(steps)
        before, first = before + (last - first) * each, last
    return None


def words_at(
    step: int, phase_ends: Sequence[int], words_per_step: Sequence[float], start: Start = ZERO
) -> float:
    """Returns the words seen after a step, which is not before the start."""
    done, before = start
    starts = itertools.chain([0], phase_ends)
    return before + sum(
        max(0, min(step, last) - max(first, done)) * each
        for first, last, each in zip(starts, phase_ends, words_per_step, strict=False)
    )


def steps_to_keep(
    words: Sequence[int],
    phase_ends: Sequence[int],
    words_per_step: Sequence[float],
    start: Start = ZERO,
) -> Mapping[int, list[int]]:
    """Returns step -> words at which its checkpoint is kept; without those that are not reached,
    or were before the start. Several may fall on one step.

    Args:
        words: see `parse_words`.
        words_per_step: as `step_at`; empty for a run without a count of words.
    """
    steps: dict[int, list[int]] = {}
    for number in words if len(words_per_step) == len(phase_ends) else ():
        step = step_at(number, phase_ends, words_per_step, start)
        if step is not None and step > start[0]:
            steps.setdefault(step, []).append(number)
    return steps
