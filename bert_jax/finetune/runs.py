"""Fine-tunes models for a task, with the training loop of pretraining."""

import dataclasses
import os
from collections.abc import Callable
from contextlib import AbstractContextManager

from etils import epath

from bert_jax.config.schema import Config
from bert_jax.distributed.job import Job
from bert_jax.finetune.results import run_result, write_results
from bert_jax.finetune.task_data import TaskData, open_task
from bert_jax.finetune.teacher import find_teacher
from bert_jax.training import loop
from bert_jax.training.hub_names import agree
from bert_jax.training.options import DEFAULTS, RunOptions
from bert_jax.training.resolve import naming_modules
from bert_jax.workdir.layout import Workdir


def finetune(
    config: Config,
    folder: epath.PathLike,
    *,
    data: TaskData | None = None,
    job: Job | None = None,
    options: RunOptions = DEFAULTS,
) -> TaskData:
    """Trains a model for `config.task`; resumes from the newest good checkpoint in the folder.

    Args:
        folder: the workdir; may be a bucket.
        data: of the same task, open; by default its files are read.
        job: as of `loop.train`.

    Returns:
        The examples of the task.

    Raises:
        UserError: the task, the configuration and the workdir are not compatible.
        StoppedError, NumbersError, StorageError: as `loop.train`.
    """
    with naming_modules(folder):  # of the kind of task
        agree(config, Workdir.open(folder), job.peers if job else None)
        data = data or open_taught(config, Workdir.open(folder))
    loop.train(config, folder, open_data=lambda _: data, job=job, options=options)
    return data


def open_taught(config: Config, workdir: Workdir) -> TaskData:
    """Reads the examples of `config.task`, and finds the model that teaches a run, if it has one;
    errors as `open_task` and `find_teacher`."""
    data = open_task(config, workdir)
    teacher = find_teacher(config, workdir, data.kind, data.labels)
    return dataclasses.replace(data, teacher=teacher)


def finetune_seeds(
    config: Config,
    folder: str,
    seeds: int,
    *,
    start_job: Callable[[Config], AbstractContextManager[Job]],
    options: RunOptions = DEFAULTS,
) -> None:
    """Trains a model for each seed from `config.seed` on, in turn, and writes their results.

    Args:
        folder: the workdir, or with several seeds the folder of theirs, see `seed_folders`.
        start_job: starts the job of a run.

    Raises:
        As `finetune`; the next call resumes with the seed that was interrupted.
    """
    data, runs = None, []  # all seeds have the same examples
    for number, workdir in enumerate(seed_folders(folder, seeds)):
        seeded = dataclasses.replace(config, seed=config.seed + number)
        with start_job(seeded) as job:  # several processes end where it ends
            data = finetune(seeded, workdir, data=data, job=job, options=options)
            if job.peers.is_first:
                runs.append(run_result(seeded, workdir))
                if len(runs) == seeds:
                    write_results(folder, config, data, runs)


def seed_folders(folder: str, seeds: int) -> list[str]:
    """Returns the workdirs of the runs with these seeds."""
    if seeds == 1:
        return [folder]
    return [os.path.join(folder, f"seed-{number}") for number in range(seeds)]
