"""Exports checkpoints of a run and pushes them to the Hugging Face hub, as revisions by name."""

import dataclasses
import re
from pathlib import Path
from typing import Any

from etils import epath

from bert_jax.checkpoint import catalog
from bert_jax.errors import UserError
from bert_jax.publish.export import DISCRIMINATOR, has_generator, run_export
from bert_jax.publish.push import MAIN, Target, check_target, push
from bert_jax.workdir.layout import Workdir

_STEP = re.compile(r"step-(\d+)")


def run_export_and_push(
    workdir: epath.PathLike,
    out: Path | str,
    step: int | None,
    target: Target,
    *,
    all_steps: bool = False,
    **options: Any,
) -> None:
    """Exports as `run_export` and pushes what it wrote.

    Args:
        step: of the checkpoint; None is that which the branch of the target names, or the newest.
        all_steps: every checkpoint, each to a branch of its name, the newest to `main` also.
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
            raise UserError(f"--revision={target.branch}: is not of --step={step}; give one of two")
        step = named
    run_export(workdir, out, step, all_steps=all_steps, **options)
    if not all_steps:
        push(out, target)
        return
    steps = catalog.complete_steps(run.checkpoints)
    for step in steps:
        push(Path(out) / f"step-{step}", dataclasses.replace(target, branch=f"step-{step}"))
    push(Path(out) / f"step-{steps[-1]}", target)


def step_of(run: Workdir, revision: str) -> int:
    """Returns the step of the checkpoint that a revision names, such as step-1000.

    Raises:
        UserError: no such form, or the run has no such checkpoint.
    """
    if not (match := _STEP.fullmatch(revision)):
        raise UserError(f"--revision={revision}: names no checkpoint; give one such as step-1000")
    step = int(match[1])
    steps = catalog.complete_steps(run.checkpoints)
    if step not in steps:
        raise UserError(
            f"--revision={revision}: {run} has no checkpoint of step {step}, only "
            f"{', '.join(map(str, steps)) or 'none'}; config.checkpoint.keep_every_steps={step} "
            "keeps it in the next run"
        )
    return step
