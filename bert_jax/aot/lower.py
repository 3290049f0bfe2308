"""Lowers the training step that `pretrain` runs in a phase, on any mesh, without training text."""

import dataclasses

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.config.schema import Config, ModelConfig, PhaseConfig
from bert_jax.data_pipeline.store.store import open_store
from bert_jax.errors import UserError
from bert_jax.objectives.total import Corpus
from bert_jax.parallel import global_batch
from bert_jax.training.batches import empty_batch
from bert_jax.training.resolve import find_architecture, with_teacher_width
from bert_jax.training.step import StepFunctions, make_step_functions
from bert_jax.training.store_data import check_vocabulary
from bert_jax.training.teacher import check_architecture, check_pinned, for_evaluation

_SOURCES = ("wiki", "books")  # stand-ins where the config names no store


def corpus_of(config: Config) -> Corpus:
    """Returns the corpus statistics that the baselines use; they are constants of the program.

    If the config names no store: two sources, and token frequencies that follow Zipf's law. Values
    in a table then differ from those of a real run, but time and memory do not.

    Raises:
        UserError: the config's store cannot be read, or has another vocabulary.
    """
    if config.data.store:
        store = open_store(config.data.store)
        check_vocabulary(config, store)
        return Corpus.of(store)
    counts = 1 / np.arange(1.0, config.model.vocab_size + 1)
    return Corpus(_SOURCES, np.log(counts / counts.sum()).astype(np.float32))


def build(config: Config, mesh: Mesh) -> StepFunctions:
    """Returns the step functions for a mesh, not yet compiled.

    Raises:
        UserError: an array of the model does not divide over the mesh, or the config's store cannot
            be used.
    """
    teacher = teacher_of(config)
    if teacher:
        config = with_teacher_width(config, teacher)
    return make_step_functions(config, mesh, corpus_of(config), teacher)


def teacher_of(config: Config) -> ModelConfig | None:
    """Returns the architecture of the model that a run learns from; None if it learns from none.

    If the config names no teacher but layers of one: a stand-in, a BERT of the student's width
    with twice its layers.

    Raises:
        UserError: there is no such model, it is a run without a step, or it has too few positions
            or not the layers to copy.
    """
    if config.teacher:
        found = find_architecture(config.teacher)
        if found is None:
            raise UserError(
                f"config.teacher={config.teacher}: no such folder; give that of a run, an import "
                "or an export"
            )
        check_pinned(config.teacher)
        check_architecture(config, found)
    elif config.distillation.layers:
        layers = max(2 * config.model.num_hidden_layers, 1 + max(config.distillation.layers))
        found = dataclasses.replace(
            config.model, num_hidden_layers=layers, type_vocab_size=2, layout="bert"
        )
    else:
        return None
    return for_evaluation(found, config.model)


def lower(
    config: Config, phase: PhaseConfig, mesh: Mesh, program: StepFunctions | None = None
) -> jax.stages.Lowered:
    """Returns the training step of a phase, lowered for the mesh's devices.

    Args:
        program: the step functions; built from the config by default.

    Raises:
        UserError: see `build`; or the phase's batch does not divide over the mesh.
    """
    global_batch.check_divides(mesh, phase.batch_size, phase.micro_batches)
    program = program or build(config, mesh)
    with jax.set_mesh(mesh):
        return program.lower_train(empty_batch(config, phase), phase)
