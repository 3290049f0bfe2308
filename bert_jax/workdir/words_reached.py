"""Checkpoints at numbers of words in a run: at which steps, and whether the run gets there."""

from collections.abc import Mapping
from os import PathLike
from typing import Any

from bert_jax.config import words_seen
from bert_jax.config.schema import Config
from bert_jax.errors import UserError
from bert_jax.runtime.log import logger


def steps_to_keep(config: Config, description: Mapping[str, Any]) -> Mapping[int, list[int]]:
    """Returns step -> words, as `words_seen.steps_to_keep`; description: of the run."""
    per_step = description.get("words_per_step", ())
    return words_seen.steps_to_keep(config.checkpoint.words, config.phase_ends, per_step)


def check(config: Config, description: Mapping[str, Any], data: PathLike[str] | str) -> None:
    """Raises UserError if there are to be such checkpoints and the words are not counted."""
    if config.checkpoint.words and "words_per_step" not in description:
        raise UserError(
            f"{words_seen.KEY}: {data} does not record how many words its text has; build the "
            "store again in another folder with `bert-jax data build`, or leave the key out"
        )


def tell(config: Config, description: Mapping[str, Any]) -> None:
    """Logs the steps of checkpoints by words, and warns of words that are not reached."""
    wanted, kept = config.checkpoint.words, steps_to_keep(config, description)
    if not wanted:
        return
    names = (f"{words_seen.revision_of(w)} at step {s:,}" for s in kept for w in kept[s])
    logger.info(f"keeps checkpoints by words: {', '.join(names) or 'none'}")
    reached = {words for step in kept.values() for words in step}
    if left := [words for words in wanted if words not in reached]:
        ends, per_step = config.phase_ends, description["words_per_step"]
        total = words_seen.words_at(ends[-1], ends, per_step)
        logger.warning(
            f"{words_seen.KEY}: the run ends after {int(total):,} words, before "
            f"{', '.join(f'{words:,}' for words in left)}; raise config.phases[-1].steps"
        )
