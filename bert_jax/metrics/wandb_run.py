"""Sends scalars to Weights & Biases (wandb.ai), as `bert-jax pretrain --wandb=PROJECT` asks for.

A run is one run there, however often it is resumed: it has the id of the run's config.json.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bert_jax.errors import UserError
from bert_jax.runtime.log import logger

# Seconds for the upload of the last records; `wandb sync` uploads what is left on the disk.
_CLOSE_TIMEOUT: Final = 10.0


def check_installed(project: str | None) -> None:
    """Raises UserError if a project is given and the package wandb is missing."""
    if project and importlib.util.find_spec("wandb") is None:
        raise UserError(
            "--wandb needs wandb, which is not installed; pip install 'bert-jax[wandb]'"
        )


class WandbRun:
    """A run in a project; no method raises: the first failure is reported, and is the last call."""

    def __init__(self, project: str, run_id: str, name: str, config: Mapping[str, Any]):
        """Starts the run, or resumes the one with this id."""
        self._run: Any = self._attempt(lambda: _init(project, run_id, name, config))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes the scalars by name after `step` updates."""
        if self._run is not None:
            self._attempt(lambda: self._run.log({"step": step, **scalars}))

    def add_table(
        self, step: int, name: str, header: Sequence[str], rows: Sequence[Sequence[str]]
    ) -> None:
        """Writes a table by its name after `step` updates."""
        if self._run is not None:
            self._attempt(lambda: self._run.log({"step": step, name: _table(header, rows)}))

    def close(self, *, failed: bool) -> None:
        """Waits for the upload; marks the run as failed or finished."""
        if self._run is not None:
            self._attempt(lambda: self._run.finish(exit_code=int(failed)))

    def _attempt(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            self._run = None
            why = " ".join(str(error).split()) or type(error).__name__
            logger.warning(
                f"Weights & Biases: {why}; training continues without it, all metrics are in the "
                "workdir"
            )
            return None


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    import wandb

    return wandb.Table(columns=[*header], data=[[*row] for row in rows])


def _init(project: str, run_id: str, name: str, config: Mapping[str, Any]) -> Any:
    import wandb

    # Standard output is not captured: `runtime.streams` replaces it.
    settings = wandb.Settings(console="off", finish_timeout=_CLOSE_TIMEOUT)
    run = wandb.init(
        project=project,
        id=run_id,
        name=name,
        resume="allow",
        config=dict(config),
        settings=settings,
    )
    # Not W&B's own count, which ignores steps that are repeated after a kill.
    run.define_metric("*", step_metric="step")
    return run
