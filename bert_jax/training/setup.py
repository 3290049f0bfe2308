"""Sets up a run: opens the data, builds the step functions, describes the run."""

import dataclasses
import functools
import json
import math
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.config.schema import Config, ModelConfig, PhaseConfig
from bert_jax.config.serialization import to_dict
from bert_jax.convert import hub
from bert_jax.convert.layouts.registry import find_layout
from bert_jax.data_pipeline.batch import Batches
from bert_jax.data_pipeline.pairing.modes import PAIRS
from bert_jax.data_pipeline.storage.remote import is_remote
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.store.watched_files import exit_on_truncated_map
from bert_jax.distributed.job import Job
from bert_jax.errors import STORAGE, UserError, count
from bert_jax.launch.hardware.accelerators import peak_flops
from bert_jax.metrics.flops import step_flops
from bert_jax.metrics.step_metrics import StepMetrics
from bert_jax.parallel import global_batch
from bert_jax.parallel.mesh import make_mesh
from bert_jax.runtime import cpu
from bert_jax.runtime.log import logger
from bert_jax.training import claim
from bert_jax.training.batches import phase_batches
from bert_jax.training.held_out import HeldOut
from bert_jax.training.initial import InitialModel, find_initial
from bert_jax.training.step import StepFunctions, make_step_functions
from bert_jax.workdir.description import describe
from bert_jax.workdir.layout import Workdir


def check_vocabulary(config: Config, store: TokenStore) -> None:
    """Raises UserError if the vocabulary sizes of the model and the store differ."""
    if config.model.vocab_size != store.vocab_size:
        raise UserError(
            f"config.model.vocab_size={config.model.vocab_size}, but ids in {store.path} go up to "
            f"{store.vocab_size - 1}; pass --config.model.vocab_size={store.vocab_size}"
        )


_MOST_SINGLE = 0.75  # share of documents of one sentence, above which a run with pairs warns


@dataclasses.dataclass(frozen=True)
class RunPhase:
    """A phase of a run and its data."""

    index: int
    config: PhaseConfig
    first: int  # updates done before this phase
    train: Batches
    held_out: HeldOut

    @property
    def last(self) -> int:
        """Updates done at the end of this phase."""
        return self.first + self.config.steps

    def __str__(self) -> str:
        config, rows = self.config, self.train.rows_per_epoch
        epochs = config.steps * config.batch_size / rows
        fill_rate, bound = self.train.fill_rate()
        possible = f", at most {bound:.2%} possible" if config.examples_per_row > 1 else ""
        return (
            f"{config.steps:,} steps of {config.batch_size:,} rows of {config.row_tokens} tokens "
            f"({fill_rate:.2%} real{possible}), {rows:,} rows per epoch, {epochs:.1f} epochs"
        )


@dataclasses.dataclass(frozen=True)
class RunContext:
    """Everything that a run needs: configuration, data, step functions, mesh and job."""

    config: Config
    workdir: Workdir
    store: TokenStore
    program: StepFunctions
    mesh: jax.sharding.Mesh
    phases: tuple[RunPhase, ...]
    description: dict[str, Any]
    job: Job
    initial: InitialModel | None  # that a new run starts from

    def step_metrics(self, phase: PhaseConfig) -> StepMetrics:
        """Returns an empty metrics accumulator for the steps of a phase."""
        peak = peak_flops(self.mesh.devices.flat[0].device_kind, self.config.compute.dtype)
        total_peak = peak * self.mesh.size if peak else None
        return StepMetrics(self.store.sources, step_flops(self.config, phase), total_peak)

    def batch(self, phase: RunPhase, step: int) -> dict[str, jax.Array]:
        """Returns the global batch of step `step` of the run."""
        rows = functools.partial(phase.train.batch, step - phase.first)
        return global_batch.global_batch(rows, self.program.rows, phase.config.batch_size)


@dataclasses.dataclass(frozen=True)
class CompiledPhase:
    """The compiled functions of a phase.

    All phases are compiled before the first step, so no unsaved progress waits for a compiler.
    """

    train: jax.stages.Compiled
    evaluate: jax.stages.Compiled
    start_phase: jax.stages.Compiled | None  # None: the phase has started already


def prepare(config: Config, workdir: Workdir, job: Job) -> RunContext:
    """Opens the store, plans all phases and checks them against the devices.

    Raises:
        UserError: the store, the configuration and the workdir are not compatible.
    """
    claim.check_before_start(workdir, config)
    store = open_store(config.data.store)
    check_vocabulary(config, store)
    config = config.with_paths(_from_any_folder(config.data.store), _from_any_folder(config.init))
    initial = find_initial(config, workdir, store)
    exit_on_truncated_map(store.path, store.mapped, STORAGE)
    with job.clock.activity("start"):  # JAX initializes its devices, together with all processes
        mesh = make_mesh(config.mesh)
    for phase in config.phases:
        global_batch.check_divides(mesh, phase.batch_size, phase.micro_batches)
    # All phases are planned now, so that an error in a late phase does not appear after a week.
    phases = tuple(
        RunPhase(
            index=index,
            config=phase,
            first=config.phase_ends[index] - phase.steps,
            train=phase_batches(config, store, store.train, phase),
            held_out=HeldOut(config, phase, store),
        )
        for index, phase in enumerate(config.phases)
    )
    if mesh.devices.flat[0].platform == "cpu":
        cpu.keep_memory()  # after planning, whose peak memory is needed only once
    phases[0].train.compile_ahead()  # while XLA compiles
    _print_size(store, phases, mesh, job)
    description = describe(
        config,
        store,
        [p.train.rows_per_epoch for p in phases],
        mesh=mesh.shape,
        device_kind=mesh.devices.flat[0].device_kind,
        init=initial.digest if initial else None,
        init_step=initial.step if initial else 0,
        init_origin=initial.origin if initial else "",
    )
    peers, data = job.peers, json.dumps(description["data"], sort_keys=True)
    if len(set(peers.all_gather_text("data", data))) > 1:
        raise UserError(
            f"{peers.name(peers.process_id)}: the content of {config.data.store} differs between "
            "machines (by digest); copy the same store to all of them"
        )
    if job.peers.is_first:
        _warn_if_not_exportable(config.model)
        _warn_of_single_sentences(config, store)
    program = make_step_functions(config, mesh, phases[0].held_out.corpus)
    _check_memory(program.abstract, mesh)
    return RunContext(config, workdir, store, program, mesh, phases, description, job, initial)


def _from_any_folder(path: str) -> str:
    """Returns the path to record: absolute, so that commands find it from any folder."""
    named = not path or is_remote(path) or path.startswith(hub.PREFIX)
    return path if named else os.path.abspath(path)


def with_steps(run: RunContext, steps: Sequence[int]) -> RunContext:
    """Returns the run with other steps in each phase; its data and its plans stay the same."""
    config = run.config.with_steps(steps)
    phases = tuple(
        dataclasses.replace(phase, config=new, first=end - new.steps)
        for phase, new, end in zip(run.phases, config.phases, config.phase_ends, strict=True)
    )
    return dataclasses.replace(
        run,
        config=config,
        phases=phases,
        program=make_step_functions(config, run.mesh, phases[0].held_out.corpus),
        description=run.description | {"config": to_dict(config)},
    )


def _print_size(
    store: TokenStore, phases: tuple[RunPhase, ...], mesh: jax.sharding.Mesh, job: Job
) -> None:
    devices = f"{count(mesh.size, 'device')} ({mesh.devices.flat[0].device_kind})"
    if job.peers.num_processes > 1:
        devices += f" in {job.peers.num_processes} processes"
    only = f"{phases[0]}; " if len(phases) == 1 else ""
    logger.info(f"{len(store.train.tokens):,} training tokens; {only}{devices}")


def _warn_if_not_exportable(model: ModelConfig) -> None:
    try:
        find_layout(model)
    except UserError as error:
        logger.warning(str(error))


def _warn_of_single_sentences(config: Config, store: TokenStore) -> None:
    """Warns if pairs teach nothing: a document of one sentence gets a random second one."""
    if config.data.pairing not in PAIRS:
        return
    single = float(np.mean(store.train.document_lengths == 1))
    if single > _MOST_SINGLE:
        logger.warning(
            f"{store.path}: {single:.0%} of the documents have one sentence, so almost all second "
            "sentences are random; consider --config.data.pairing=single"
        )


def _check_memory(state: Any, mesh: jax.sharding.Mesh) -> None:
    """Raises UserError if the training state alone exceeds the memory.

    On CPUs the allocation would succeed, and the system would kill a process on the first write.
    """
    per_device = sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(state)
    )
    devices = mesh.local_devices
    available: int | None
    if devices[0].platform == "cpu":  # all CPU devices share the machine's memory
        needed = per_device * len(devices)
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # bytes
    else:
        needed, available = per_device, (devices[0].memory_stats() or {}).get("bytes_limit")
    if available and needed > available:
        raise UserError(
            f"config.model: parameters and optimizer state need {needed / 1e9:,.1f} GB, but only "
            f"{available / 1e9:,.1f} GB are available; make the model smaller, or shard it over "
            "more devices (config.mesh.fsdp, config.mesh.tensor)"
        )


def compile_phase(run: RunContext, phase: RunPhase, first: int) -> CompiledPhase:
    """Compiles the functions of a phase; `first`: steps of the run done so far."""
    program, compiling = run.program, functools.partial(run.job.clock.activity, "compile")
    with compiling():
        train = program.compile_train(phase.train.batch(0, rows=[]), phase.config)
    with compiling():
        evaluate = phase.held_out.compile(program)
    with compiling():
        start_phase = program.compile_start_phase() if phase.first >= max(first, 1) else None
    return CompiledPhase(train, evaluate, start_phase)
