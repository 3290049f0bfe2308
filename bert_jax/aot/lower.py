"""The training step of a phase as `pretrain` runs it, on any mesh, without text to train on."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.config.schema import Config, PhaseConfig
from bert_jax.data_pipeline.store.store import open_store
from bert_jax.objectives.total import Corpus
from bert_jax.parallel import global_batch
from bert_jax.training.batches import empty_batch
from bert_jax.training.setup import check_vocabulary
from bert_jax.training.step import StepFunctions, make_step_functions

_SOURCES = ("wiki", "books")  # of a store that there is not


def corpus_of(config: Config) -> Corpus:
    """What the baselines know of the text; it is part of the program.

    Where the config names no store: two sources, and tokens as rare as Zipf's law has them. Numbers
    in a table then differ from those of a run, and nothing that takes time or memory.

    Raises:
        UserError: the store that the config names cannot be read, or has another vocabulary.
    """
    if config.data.store:
        store = open_store(config.data.store)
        check_vocabulary(config, store)
        return Corpus.of(store)
    counts = 1 / np.arange(1.0, config.model.vocab_size + 1)
    return Corpus(_SOURCES, np.log(counts / counts.sum()).astype(np.float32))


def build(config: Config, mesh: Mesh, corpus: Corpus | None = None) -> StepFunctions:
    """What the devices of a mesh run; nothing is compiled.

    Args:
        corpus: by default what the config says.

    Raises:
        UserError: an array of the model does not divide over the mesh, or the config's store cannot
            be used.
    """
    return make_step_functions(config, mesh, corpus or corpus_of(config))


def lower(
    config: Config, phase: PhaseConfig, mesh: Mesh, program: StepFunctions | None = None
) -> jax.stages.Lowered:
    """The step that trains in a phase, to be compiled for the mesh's devices.

    Args:
        program: by default a new one.

    Raises:
        UserError: see `build`; or the phase's batch does not divide over the mesh.
    """
    global_batch.check_divides(mesh, phase.batch_size, phase.micro_batches)
    program = program or build(config, mesh)
    with jax.set_mesh(mesh):
        return program.lower_train(empty_batch(config, phase), phase)


def batch_of(config: Config, phase: PhaseConfig, program: StepFunctions) -> dict[str, Any]:
    """The batch that the step takes, as ShapeDtypeStructs with shardings."""
    return program.abstract_batch(empty_batch(config, phase), phase.batch_size)
