"""Runs from Python: `bert_jax.pretrain` and `bert_jax.export`."""

from pathlib import Path

from etils import epath

from bert_jax.config.schema import Config
from bert_jax.errors import UserError
from bert_jax.publish.export import run_export
from bert_jax.publish.weight_writer import WeightFormat
from bert_jax.storage import hub
from bert_jax.training import loop
from bert_jax.training.options import RunOptions


def pretrain(
    config: Config,
    workdir: epath.PathLike,
    *,
    wandb: str | None = None,
    time_budget: str | None = None,
    profile: str | None = None,
    strict_restore: bool = False,
    adopt: bool = False,
) -> None:
    """Trains in this process, on all its devices, until `config.total_steps`.

    Resumes from the newest checkpoint in the workdir: call it again after an interruption. Ctrl-C,
    or the stop button of a notebook, saves a checkpoint first; a second one does not. Several
    processes train together with `bert-jax pretrain` or `bert-jax launch`.

    Args:
        workdir: folder of the run, on a disk or in a bucket.
        wandb: project of Weights & Biases that metrics are sent to, too.
        time_budget: time for a new run, such as "60m"; decides how many steps it has.
        profile: "FIRST:END", steps to profile.
        strict_restore: fail on a checkpoint that is damaged or belongs to another run, instead of
            moving it to quarantine.
        adopt: use the checkpoints in the workdir even though they belong to another run.

    Raises:
        UserError: the store, the configuration and the workdir are not compatible, or wandb is not
            installed.
        StoppedError: the run was interrupted; everything is saved.
        NumbersError: too many losses or gradients in a row are not finite; everything is saved.
        StorageError: a checkpoint cannot be written or read.
    """
    if not isinstance(config, Config):
        raise UserError(f"config has type {type(config).__name__}; give bert_jax.config(…)")
    options = RunOptions.parse(
        wandb=wandb,
        time_budget=time_budget,
        profile=profile,
        strict_restore=strict_restore,
        adopt=adopt,
    )
    with hub.own_commits():
        loop.pretrain(config, workdir, options=options)


def export(
    workdir: epath.PathLike,
    out: Path | str,
    *,
    step: int | None = None,
    dtype: str = "float32",
    max_shard_size: str | None = None,
    optimizer_state: bool = False,
) -> None:
    """Exports a checkpoint of a run as a folder for `bert_jax.load` and `transformers`.

    Args:
        step: of the checkpoint; None is the newest.
        dtype: of the weights: "float32", "bfloat16" or "float16".
        max_shard_size: such as "2GB": the weights are in several files of at most this size.
        optimizer_state: write the optimizer's moments and step too, for
            `config.init_optimizer="carry"`.

    Raises:
        UserError: no such checkpoint, `out` is not free, or `dtype` cannot hold a value.
    """
    form = WeightFormat(dtype, max_shard_size)
    run_export(workdir, out, step, form=form, optimizer_state=optimizer_state)
