"""Fine-tunes models for a task, with the training loop of pretraining."""

import dataclasses
import os
from collections.abc import Callable
from contextlib import AbstractContextManager

from etils import epath

from bert_jax.config.schema import Config
from bert_jax.distributed.job import Job
from bert_jax.errors import UserError
from bert_jax.finetune.results import run_result, write_results
from bert_jax.finetune.search_measure import OpenSearch
from bert_jax.finetune.task_data import TaskData, open_task
from bert_jax.finetune.tasks.retrieval_files import read_retrieval
from bert_jax.finetune.teacher import find_teacher
from bert_jax.runtime.log import logger
from bert_jax.storage.remote import storage_errors
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
    open_search: OpenSearch | None = None,
) -> TaskData:
    """Trains a model for `config.task`; resumes from the newest good checkpoint in the folder.

    Args:
        folder: the workdir; may be a bucket.
        data: of the same task, open; by default its files are read.
        job: as of `loop.train`.
        open_search: makes what measures the search of `config.task.retrieval`.

    Returns:
        The examples of the task.

    Raises:
        UserError: the task, the configuration and the workdir are not compatible.
        StoppedError, NumbersError, StorageError: as `loop.train`.
    """
    with naming_modules(folder):  # of the kind of task
        agree(config, Workdir.open(folder), job.peers if job else None)
        data = data or _with_search(open_taught(config, Workdir.open(folder)), config, open_search)
    loop.train(config, folder, open_data=lambda _: data, job=job, options=options)
    return data


def open_taught(config: Config, workdir: Workdir) -> TaskData:
    """Reads the examples of `config.task`, and finds the model that teaches a run, if it has one;
    errors as `open_task` and `find_teacher`."""
    data = open_task(config, workdir)
    teacher = find_teacher(config, workdir, data.kind, data.labels)
    return dataclasses.replace(data, teacher=teacher)


def _with_search(data: TaskData, config: Config, open_search: OpenSearch | None) -> TaskData:
    """Returns the data with the folder that `config.task.retrieval` names, which is read; UserError
    as `read_retrieval`."""
    if not (folder := config.task.retrieval):
        return data
    if open_search is None:
        raise UserError(f"config.task.retrieval={folder} is for `bert-jax finetune`; leave it out")
    with storage_errors(folder):
        found = read_retrieval(folder)
    logger.info("; ".join([f"{folder}: {found.size}", *found.notes]))
    return dataclasses.replace(data, search=(found, open_search))


def finetune_seeds(
    config: Config,
    folder: str,
    seeds: int,
    *,
    start_job: Callable[[Config], AbstractContextManager[Job]],
    options: RunOptions = DEFAULTS,
    open_search: OpenSearch | None = None,
) -> None:
    """Trains a model for each seed from `config.seed` on, in turn, and writes their results.

    Args:
        folder: the workdir, or with several seeds the folder of theirs, see `seed_folders`.
        start_job: starts the job of a run.
        open_search: as of `finetune`.

    Raises:
        As `finetune`; the next call resumes with the seed that was interrupted.
    """
    data, runs = None, []  # all seeds have the same examples
    for number, workdir in enumerate(seed_folders(folder, seeds)):
        seeded = dataclasses.replace(config, seed=config.seed + number)
        with start_job(seeded) as job:  # several processes end where it ends
            data = finetune(
                seeded, workdir, data=data, job=job, options=options, open_search=open_search
            )
            if job.peers.is_first:
                runs.append(run_result(seeded, workdir))
                if len(runs) == seeds:
                    write_results(folder, config, data, runs)


def seed_folders(folder: str, seeds: int) -> list[str]:
    """Returns the workdirs of the runs with these seeds."""
    if seeds == 1:
        return [folder]
    return [os.path.join(folder, f"seed-{number}") for number in range(seeds)]
