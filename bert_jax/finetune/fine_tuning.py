"""Fine-tunes a model for a task, with the training loop of pretraining."""

from etils import epath

from bert_jax.config.schema import Config
from bert_jax.distributed.job import Job
from bert_jax.finetune.task_data import TaskData, open_task
from bert_jax.training import loop
from bert_jax.training.profiling import Steps
from bert_jax.workdir.layout import Workdir


def finetune(
    config: Config,
    folder: epath.PathLike,
    *,
    data: TaskData | None = None,
    job: Job | None = None,
    stop_after: int | None = None,
    strict_restore: bool = False,
    adopt: bool = False,
    profile: Steps | None = None,
    wandb: str | None = None,
) -> TaskData:
    """Trains a model for `config.task`; resumes from the newest good checkpoint in the folder.

    Args:
        folder: the workdir; may be a bucket.
        data: of the same task, open; by default its files are read.
        job, stop_after, strict_restore, adopt, profile, wandb: as of `loop.train`.

    Returns:
        The examples of the task.

    Raises:
        UserError: the task, the configuration and the workdir are not compatible.
        StoppedError: the run was interrupted; everything is saved.
        NumbersError: too many losses or gradients in a row are not finite; everything is saved.
        StorageError: a checkpoint cannot be written, or no existing checkpoint is good.
    """
    data = data or open_task(config, Workdir.open(folder))
    loop.train(
        data.planned(config),
        folder,
        open_data=lambda _: data,
        job=job,
        stop_after=stop_after,
        strict_restore=strict_restore,
        adopt=adopt,
        profile=profile,
        wandb=wandb,
    )
    return data
