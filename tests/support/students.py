"""Runs that learn from another model, and that model."""

from pathlib import Path
from typing import Any

import numpy as np
from corpus import small_config

from bert_jax.config.schema import Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.publish.export import run_export
from bert_jax.training import loop


def config_of(store: TokenStore, **changes: Any) -> Config:
    short = {"phases[0].steps": 4, "checkpoint.every_steps": 2, "data.pairing": "single"}
    renamed = {key.replace("__", "."): value for key, value in changes.items()}
    return small_config(store).replace({**short, "log_every_steps": 2, **renamed})


def teacher_in(place: Path, store: TokenStore) -> Path:
    """Trains a teacher: a run of four steps, `run`, and its export, `folder`; returns the place."""
    loop.pretrain(config_of(store), place / "run")
    run_export(place / "run", place / "folder")
    return place


def exported(run: Path, step: int | None = None) -> dict[str, np.ndarray]:
    import safetensors.numpy

    out = run.parent / f"{run.name}_{step}_exported"
    run_export(run, out, step)
    return safetensors.numpy.load_file(out / "model.safetensors")
