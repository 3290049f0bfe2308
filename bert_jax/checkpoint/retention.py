"""Retention of checkpoints: the reasons to keep each; the others go when the next one is saved."""

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from bert_jax.checkpoint.catalog import CheckpointInfo
from bert_jax.config.schema import CheckpointConfig


def best_by_phase(saved: Iterable[CheckpointInfo], phase_ends: Sequence[int]) -> dict[int, int]:
    """Returns phase -> step with the lowest held-out loss or error, the later one on a tie.

    Losses of different phases are not compared: another sequence length is another task.
    """
    best: dict[int, tuple[float, int]] = {}
    for info in saved:
        if info.criterion is None or not math.isfinite(info.criterion):
            continue
        phase = bisect.bisect_left(phase_ends, info.step)
        rank = (info.criterion, -info.step)
        best[phase] = min(best.get(phase, rank), rank)
    return {phase: -negative for phase, (_, negative) in best.items()}


def reasons_to_keep(
    saved: Sequence[CheckpointInfo],
    config: CheckpointConfig,
    phase_ends: Sequence[int],
    at_words: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> dict[int, list[str]]:
    """Returns step -> reasons to keep its checkpoint; without one, the next save removes it.

    at_words: see `config.words_seen.steps_to_keep`.
    """
    steps = sorted(info.step for info in saved)
    why: dict[int, list[str]] = {step: [] for step in steps}
    for step in steps[-config.keep :]:
        why[step].append("newest" if step == steps[-1] else f"newest {config.keep}")
    for step in steps:
        if config.keep_every_steps and step % config.keep_every_steps == 0:
            why[step].append(f"every {config.keep_every_steps} steps")
        if config.keep_start and step == 0:
            why[step].append("start")
        why[step] += [f"{words:,} words" for words in at_words.get(step, ())]
        if step in phase_ends:
            why[step].append(f"end of phase {phase_ends.index(step) + 1}")
    if config.keep_best:
        for phase, step in best_by_phase(saved, phase_ends).items():
            why[step].append(f"best of phase {phase + 1}")
    return why
