"""Step functions of a configuration, traced and compiled once for all runs of this process.

Tracing, lowering and loading a step takes seconds however small the model is, and most runs of the
tests train the same few models.
"""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.config.schema import (
    CheckpointConfig,
    Config,
    DeadlineConfig,
    EvaluationConfig,
    MeshConfig,
    ModelConfig,
    TaskConfig,
)
from bert_jax.objectives.corpus import Corpus
from bert_jax.training.step import StepFunctions, make_step_functions

# Settings that the step functions do not read; they are given the mesh itself.
UNREAD: dict[str, Any] = {
    "log_every_steps": 1,
    "checkpoint": CheckpointConfig(),
    "deadlines": DeadlineConfig(),
    "mesh": MeshConfig(),
    "task": TaskConfig(),
    "init": "",
    "teacher": "",
    "init_vocabulary": "same",
    "init_positions": "same",
    "init_optimizer": "reset",
}


class Once:
    """A jitted function that lowers and compiles once for each set of abstract arguments."""

    def __init__(self, jitted: Any):
        self._jitted, self._lowered = jitted, {}

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._jitted(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jitted, name)

    def lower(self, *args: Any, **options: Any) -> "Lowered":
        leaves, tree = jax.tree.flatten((args, options))
        key = (
            tree,
            *((x.shape, x.dtype, x.sharding) if hasattr(x, "shape") else x for x in leaves),
        )
        if key not in self._lowered:
            self._lowered[key] = Lowered(self._jitted.lower(*args, **options))
        return self._lowered[key]


class Lowered:
    def __init__(self, lowered: jax.stages.Lowered):
        self._lowered = lowered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lowered, name)

    @functools.cached_property
    def _compiled(self) -> jax.stages.Compiled:
        return self._lowered.compile()

    def compile(self) -> jax.stages.Compiled:
        return self._compiled


def shared_step_functions(
    config: Config, mesh: Mesh, corpus: Corpus, teacher: ModelConfig | None = None
) -> StepFunctions:
    """`make_step_functions`, but the same object for the same model, mesh and corpus."""
    # A task has no pairs, which need token types.
    pairing = "single" if config.task.name else config.data.pairing
    data = dataclasses.replace(config.data, store="", pairing=pairing)
    asked = config.evaluation
    evaluation = EvaluationConfig(attention=asked.attention, fills=int(asked.fills > 0))
    read = dataclasses.replace(config, data=data, evaluation=evaluation, **UNREAD)
    return _shared(read, mesh, corpus.sources, corpus.log_unigram.tobytes(), teacher)


@functools.lru_cache(maxsize=32)
def _shared(
    config: Config,
    mesh: Mesh,
    sources: tuple[str, ...],
    unigram: bytes,
    teacher: ModelConfig | None,
) -> StepFunctions:
    corpus = Corpus(sources, np.frombuffer(unigram, np.float32))
    program = make_step_functions(config, mesh, corpus, teacher)
    names = ("train", "evaluate", "evaluate_rows", "start_phase")
    jitted = {name: Once(getattr(program, name)) for name in names}
    return dataclasses.replace(program, **jitted)
