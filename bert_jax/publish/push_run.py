"""Exports checkpoints of a run and pushes them to the Hugging Face hub, as revisions by name."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etils import epath

from bert_jax.checkpoint import catalog
from bert_jax.config import words_seen
from bert_jax.config.recorded import config_of
from bert_jax.convert.model_files import DISCRIMINATOR
from bert_jax.errors import UserError
from bert_jax.publish.export import has_generator, run_export
from bert_jax.publish.push import MAIN, Target, check_target, push
from bert_jax.workdir import description
from bert_jax.workdir.layout import Workdir
from bert_jax.workdir.words_reached import count_of, steps_to_keep

_STEP = re.compile(r"step-(\d+)")
_KEEPS = "keeps it, from before the run gets there"


def run_export_and_push(
    workdir: epath.PathLike,
    out: Path | str,
    step: int | None,
    target: Target,
    *,
    all_steps: bool = False,
    command: str = "",
    **options: Any,
) -> None:
    """Exports as `run_export` and pushes what it wrote.

    Args:
        step: of the checkpoint; None is that which the branch of the target names, or the newest.
        all_steps: every checkpoint, each to a branch of its name, the newest to `main` also.
        command: does all of this, for the error of a cut push of several checkpoints.
        options: of `run_export`.

    Raises:
        UserError: as `run_export`, `check_target` and `push`; or the run has two models, or no
            checkpoint of that name. If a push fails, what was exported stays.
    """
    check_target(target)
    run = Workdir.open(workdir)
    if has_generator(run):
        raise UserError(
            f"{workdir}: has two models; export them without --push, then push one: "
            f"`{target.command(Path(out) / DISCRIMINATOR)}`"
        )
    if target.branch != MAIN:
        named = step_of(run, target.branch)
        if step not in (None, named):
            raise UserError(
                f"--revision={target.branch}: is not of --step={step}; give one of the two"
            )
        step = named
    options["repository"] = target.repository
    if not all_steps:
        if step is not None and target.branch != MAIN:
            options["revisions"] = {step: target.branch}
        run_export(workdir, out, step, **options)
        push(out, target)
        return
    at_words, there = _steps_by_words(run), catalog.complete_steps(run.checkpoints)
    for step in sorted({*at_words} - {*there}):
        if step < max(there, default=0):
            names = ", ".join(_branches(step, at_words))
            print(f"not pushed: {names}: {words_seen.KEY} has it, but {_gone(run, step)}")
    # The folder of the newest goes to `main` too, which its card names.
    options["revisions"] = {step: _branches(step, at_words)[0] for step in there[:-1]}
    steps = run_export(workdir, out, all_steps=True, **options)
    for step in steps:
        for name in _branches(step, at_words):
            branch = dataclasses.replace(target, branch=name)
            push(Path(out) / f"step-{step}", branch, command)
    push(Path(out) / f"step-{steps[-1]}", target, command)


def _branches(step: int, at_words: Mapping[int, list[int]]) -> list[str]:
    """Returns the branches of the checkpoint of a step; at_words: as `_steps_by_words`."""
    by_words = [words_seen.revision_of(words) for words in at_words.get(step, ())]
    return by_words or [f"step-{step}"]


def step_of(run: Workdir, revision: str) -> int:
    """Returns the step of the checkpoint that a revision names: step-1000, or chck_10M, the first
    step after which 10 million words were seen.

    Raises:
        UserError: no such form, the run never gets there, or the checkpoint is gone; names the key
            that keeps it, or why it did not.
    """
    where, words = f"--revision={revision}", words_seen.words_of(revision)
    if words is not None:
        step = _step_at(run, words, where)
        remedy = _why_not_kept(run, words, step)
    elif match := _STEP.fullmatch(revision):
        step = int(match[1])
        remedy = f"config.checkpoint.keep_every_steps={step} {_KEEPS}"
    else:
        raise UserError(f"{where}: names no checkpoint; give one such as step-1000 or chck_10M")
    steps = catalog.complete_steps(run.checkpoints)
    if step not in steps:
        raise UserError(
            f"{where}: {run} has no checkpoint of step {step}, only "
            f"{', '.join(map(str, steps)) or 'none'}; {remedy}"
        )
    return step


def _why_not_kept(run: Workdir, words: int, step: int) -> str:
    """Returns why a run has no checkpoint at a number of words."""
    known = description.read_description(run)
    if words not in config_of(known).checkpoint.words:
        return f"{words_seen.KEY}={words} {_KEEPS}"
    if step > max(catalog.complete_steps(run.checkpoints), default=0):
        return "the run did not get there yet"
    return f"{words_seen.KEY} has {words:,}, but {_gone(run, step)}"


def _gone(run: Workdir, step: int) -> str:
    """Returns what became of a checkpoint that a run was to keep."""
    moved = (each.folder for each in catalog.list_quarantined(run.quarantine))
    if here := [folder for folder in moved if folder.split("-")[0] == str(step)]:
        return f"its checkpoint is damaged, and was moved to {run.quarantine / here[-1]}"
    return "the checkpoint was removed, or the key was set when the run was past this step"


def _step_at(run: Workdir, words: int, where: str) -> int:
    """Returns the first step after which a run has seen a number of words."""
    known = description.read_description(run)
    count = count_of(config_of(known), known)
    if count is None:
        which = "the run that it continues" if "words_per_step" in known else "its store"
        raise UserError(f"{where}: {run} has no count of words, as {which} has none: give a step")
    ends, _, (first, before) = count
    step = words_seen.step_at(words, *count)
    if step is None:
        total = int(words_seen.words_at(ends[-1], *count))
        raise UserError(f"{where}: {run} ends after {total:,} words")
    if words <= before:
        raise UserError(
            f"{where}: {run} starts at step {first}, after {int(before):,} words; give the run "
            "that it continues"
        )
    return step


def _steps_by_words(run: Workdir) -> Mapping[int, list[int]]:
    """Returns step -> words, of the checkpoints that a run keeps by words."""
    if not description.has_config_json(run):
        return {}
    known = description.read_description(run)
    return steps_to_keep(config_of(known), known)
