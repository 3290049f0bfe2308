"""A run's checkpoints and records by the path of its workdir, as tests have it."""

from typing import Any

from etils import epath

from bert_jax.checkpoint import catalog
from bert_jax.checkpoint.catalog import Quarantined
from bert_jax.metrics import run_records
from bert_jax.metrics.writer import MetricWriter
from bert_jax.workdir.layout import Workdir


def all_steps(run: epath.PathLike) -> list[int]:
    return catalog.all_steps(Workdir.open(run).checkpoints)


def complete_steps(run: epath.PathLike) -> list[int]:
    return catalog.complete_steps(Workdir.open(run).checkpoints)


def read_meta(run: epath.PathLike, step: int) -> dict[str, Any]:
    return catalog.read_meta(Workdir.open(run).checkpoints, step)


def list_quarantined(run: epath.PathLike) -> list[Quarantined]:
    return catalog.list_quarantined(Workdir.open(run).quarantine)


def read_records(run: epath.PathLike, kind: str) -> list[dict[str, Any]]:
    """The records of one kind, sorted by step; for repeated steps, the latest."""
    return run_records.read_records(Workdir.open(run).metrics, kind)


def metric_writer(run: epath.PathLike) -> MetricWriter:
    workdir = Workdir.open(run)
    return MetricWriter(workdir.metrics, workdir.tensorboard)
