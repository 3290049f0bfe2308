"""Prepare a run: its data, its functions on the devices, its description."""

import dataclasses
import functools
import json
import math
import os
from typing import Any

import jax
from etils import epath

from bert_jax.config.schema import Config, PhaseConfig
from bert_jax.data_pipeline.batch import Batches
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.store.watched_files import exit_if_cut
from bert_jax.distributed.job import Job
from bert_jax.errors import STORAGE, UserError
from bert_jax.launch.hardware.accelerators import peak_flops
from bert_jax.metrics.flops import step_flops
from bert_jax.metrics.step_metrics import StepMetrics
from bert_jax.parallel import global_batch
from bert_jax.parallel.mesh import make_mesh
from bert_jax.runtime import cpu
from bert_jax.runtime.console import console
from bert_jax.training import claim
from bert_jax.training.batches import phase_batches
from bert_jax.training.evaluate import HeldOut
from bert_jax.training.step import StepFunctions, make_step_functions
from bert_jax.workdir import description as workdir


def check_vocabulary(config: Config, store: TokenStore) -> None:
    """Raises UserError where the model and the store do not have the same number of ids."""
    if config.model.vocab_size != store.vocab_size:
        raise UserError(
            f"config.model.vocab_size={config.model.vocab_size}, but ids in {store.path} go up to "
            f"{store.vocab_size - 1}; pass --config.model.vocab_size={store.vocab_size}"
        )


@dataclasses.dataclass(frozen=True)
class RunPhase:
    """A phase of a run with its data."""

    index: int
    config: PhaseConfig
    first: int  # updates done when it starts
    train: Batches
    held_out: HeldOut

    @property
    def last(self) -> int:
        """Updates done when it ends."""
        return self.first + self.config.steps

    def __str__(self) -> str:
        config, rows = self.config, self.train.rows_per_epoch
        epochs = config.steps * config.batch_size / rows
        fill, bound = self.train.fill()
        possible = f", packed {bound:.2%} at most" if config.examples_per_row > 1 else ""
        return (
            f"{config.steps:,} steps of {config.batch_size:,} rows of {config.row_tokens} tokens "
            f"({fill:.2%} real{possible}), {rows:,} rows an epoch, {epochs:.1f} epochs"
        )


@dataclasses.dataclass(frozen=True)
class RunContext:
    """A run in progress."""

    config: Config
    folder: epath.Path
    store: TokenStore
    program: StepFunctions
    mesh: jax.sharding.Mesh
    phases: tuple[RunPhase, ...]
    description: dict[str, Any]
    job: Job

    def step_metrics(self, phase: PhaseConfig) -> StepMetrics:
        """Empty metrics of the steps of a phase."""
        peak = peak_flops(self.mesh.devices.flat[0].device_kind, self.config.compute.dtype)
        whole = peak * self.mesh.size if peak else None
        return StepMetrics(self.store.sources, step_flops(self.config, phase), whole)

    def batch(self, phase: RunPhase, step: int) -> dict[str, jax.Array]:
        """The batch of step `step` of the run."""
        rows = functools.partial(phase.train.batch, step - phase.first)
        return global_batch.global_batch(rows, self.program.rows, phase.config.batch_size)


@dataclasses.dataclass(frozen=True)
class CompiledPhase:
    """The functions of a phase, compiled before the first step of a run: nothing unsaved ever
    waits for a compiler."""

    train: jax.stages.Compiled
    evaluate: jax.stages.Compiled
    start_phase: jax.stages.Compiled | None  # None: nothing left to start


def prepare(config: Config, folder: epath.Path, job: Job) -> RunContext:
    """Opens the store, plans all phases, checks that all of it fits.

    Raises:
        UserError: the store, the configuration and the folder do not fit together.
    """
    claim.check_first(folder, config)
    store = open_store(config.data.store)
    check_vocabulary(config, store)
    exit_if_cut(store.path, store.mapped, STORAGE)
    with job.clock.activity("start"):  # JAX starts its devices here, together with all processes
        mesh = make_mesh(config.mesh)
    for phase in config.phases:
        global_batch.check_divides(mesh, phase.batch_size, phase.micro_batches)
    # All phases are planned now: what does not work should not be found out after a week.
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
        cpu.keep_memory()  # not before: planning takes a lot once
    phases[0].train.compile_ahead()  # while XLA compiles
    peers = job.peers
    devices = f"{mesh.size} devices ({mesh.devices.flat[0].device_kind})"
    if peers.num_processes > 1:
        devices += f" in {peers.num_processes} processes"
    only = f"{phases[0]}; " if len(phases) == 1 else ""
    console.print(f"{len(store.train.tokens):,} training tokens; {only}{devices}")
    description = workdir.describe(
        config,
        store,
        [p.train.rows_per_epoch for p in phases],
        mesh=mesh.shape,
        device_kind=mesh.devices.flat[0].device_kind,
    )
    data = json.dumps(description["data"], sort_keys=True)
    if len(set(peers.all_gather_text("data", data))) > 1:
        raise UserError(
            f"{peers.name(peers.process_id)}: {config.data.store} is not the same store on every "
            "machine (by digest); give all of them the same one"
        )
    program = make_step_functions(config, mesh, phases[0].held_out.corpus)
    _check_memory(program.abstract, mesh)
    return RunContext(
        config=config,
        folder=folder,
        store=store,
        program=program,
        mesh=mesh,
        phases=phases,
        description=description,
        job=job,
    )


def _check_memory(state: Any, mesh: jax.sharding.Mesh) -> None:
    """Raises UserError where not even the state fits: on a CPU nothing would refuse it, and the
    system would kill some process once it is written to."""
    of_device = sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(state)
    )
    here = mesh.local_devices
    there: int | None
    if here[0].platform == "cpu":  # they share the machine's
        needed, there = of_device * len(here), _machine_memory()
    else:
        needed, there = of_device, (here[0].memory_stats() or {}).get("bytes_limit")
    if there and needed > there:
        raise UserError(
            f"config.model: parameters and what the optimizer keeps take {needed / 1e9:,.1f} GB "
            f"where there are {there / 1e9:,.1f} GB; make the model smaller, or split it over more "
            "devices (config.mesh.fsdp, config.mesh.tensor)"
        )


def _machine_memory() -> int:
    """Bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def compile_phase(run: RunContext, phase: RunPhase, first: int) -> CompiledPhase:
    """The functions of a phase; `first`: steps of the run that are done."""
    program, doing = run.program, functools.partial(run.job.clock.activity, "compile")
    with doing():
        train = program.compile_train(phase.train.batch(0, rows=[]), phase.config)
    with doing():
        evaluate = phase.held_out.compile(program)
    with doing():
        starts = program.compile_start_phase() if phase.first >= max(first, 1) else None
    return CompiledPhase(train, evaluate, starts)
