"""Checkpoints at numbers of words in a run: at which steps, and whether the run gets there."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Final

from bert_jax.config import words_seen
from bert_jax.config.recorded import config_of
from bert_jax.config.schema import Config
from bert_jax.errors import UserError
from bert_jax.runtime.log import logger

# Key of a description: the words seen by the step that a run starts from, `init_step`.
BEFORE: Final = "words_before"
Count = tuple[Sequence[int], Sequence[float], words_seen.Start]


def count_of(config: Config, description: Mapping[str, Any]) -> Count | None:
    """Returns the arguments of `words_seen.step_at` after the words; None if a run does not count
    them, or continues the steps of a model that did not.

    Args:
        description: of the run.
    """
    step: int = description["data"].get("init_step", 0)
    words: float | None = description.get(BEFORE) if step else 0.0
    if "words_per_step" not in description or words is None:
        return None
    return config.phase_ends, description["words_per_step"], (step, words)


def words_at(description: Mapping[str, Any], step: int) -> float | None:
    """Returns the words that a run has seen after a step; None if it does not count them."""
    count = count_of(config_of(description), description)
    return count and words_seen.words_at(step, *count)


def steps_to_keep(config: Config, description: Mapping[str, Any]) -> Mapping[int, list[int]]:
    """Returns step -> words, as `words_seen.steps_to_keep`; description: of the run."""
    count = count_of(config, description)
    return words_seen.steps_to_keep(config.checkpoint.words, *count) if count else {}


def check(config: Config, description: Mapping[str, Any], data: PathLike[str] | str) -> None:
    """Raises UserError if there are to be such checkpoints and the words are not counted."""
    if not config.checkpoint.words or count_of(config, description):
        return
    if "words_per_step" not in description:
        raise UserError(
            f"{words_seen.KEY}: {data} does not record how many words its text has; build the "
            "store again in another folder with `bert-jax data build`, or leave the key out"
        )
    raise UserError(
        f"{words_seen.KEY}: {config.init}, whose steps config.init_optimizer=carry continues, does "
        "not record how many words it has seen; leave the key out"
    )


def tell(
    config: Config,
    description: Mapping[str, Any],
    start: int,
    find_saved: Callable[[], Sequence[int]],
) -> None:
    """Logs the steps of checkpoints by words, and warns of those that there will not be.

    Args:
        start: the step from which the run goes on.
        find_saved: returns the steps of the run's checkpoints.
    """
    wanted, count = config.checkpoint.words, count_of(config, description)
    if not wanted or not count:
        return
    kept = dict(steps_to_keep(config, description))
    if any(step <= start for step in kept):
        there = find_saved()
        kept = {step: words for step, words in kept.items() if step > start or step in there}
    names = (f"{words_seen.revision_of(w)} at step {s:,}" for s in kept for w in kept[s])
    logger.info(f"keeps checkpoints by words: {', '.join(names) or 'none'}")
    reached = {words for step in kept.values() for words in step}
    left = {w: words_seen.step_at(w, *count) for w in wanted if w not in reached}
    if over := [words for words, step in left.items() if step is None]:
        ends, *_ = count
        logger.warning(
            f"{words_seen.KEY}: the run ends after {int(words_seen.words_at(ends[-1], *count)):,} "
            f"words, before {', '.join(f'{words:,}' for words in over)}; raise "
            f"--config.phases[{len(ends) - 1}].steps"
        )
    if early := [words_seen.revision_of(words) for words, step in left.items() if step is not None]:
        logger.warning(
            f"{words_seen.KEY}: {', '.join(early)}: seen by step {start:,}, where this run starts; "
            "not kept"
        )
