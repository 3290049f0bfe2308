"""Sets up a run: plans its phases, builds the step functions, describes the run."""

import dataclasses
import functools
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from bert_jax.config.recorded import recorded
from bert_jax.config.schema import Config, ModelConfig, PhaseConfig
from bert_jax.convert.exportable import not_exportable
from bert_jax.distributed.job import Job
from bert_jax.errors import UserError, count
from bert_jax.hardware.accelerators import peak_flops
from bert_jax.metrics.flops import step_flops
from bert_jax.metrics.step_metrics import StepMetrics
from bert_jax.objectives.corpus import Corpus
from bert_jax.ops.attention import dispatch
from bert_jax.parallel import global_batch
from bert_jax.parallel.mesh import make_mesh
from bert_jax.runtime import cpu
from bert_jax.runtime.log import logger
from bert_jax.storage.remote import from_any_folder
from bert_jax.training import step as step_module
from bert_jax.training.fills import HeldOutFills
from bert_jax.training.hub_names import commits_of
from bert_jax.training.initial import InitialModel, find_initial
from bert_jax.training.run_data import PhaseData, RunData
from bert_jax.training.step import StepFunctions
from bert_jax.training.teacher import Teacher, find_teacher
from bert_jax.workdir import words_reached
from bert_jax.workdir.description import describe
from bert_jax.workdir.layout import Workdir


@dataclasses.dataclass(frozen=True)
class RunPhase:
    """A phase of a run and its data."""

    index: int
    config: PhaseConfig
    first: int  # updates done before this phase
    data: PhaseData

    @property
    def last(self) -> int:
        """Updates done at the end of this phase."""
        return self.first + self.config.steps

    def __str__(self) -> str:
        config, rows = self.config, self.data.train.rows_per_epoch
        epochs = config.steps * config.batch_size / rows
        fill_rate, bound = self.data.train.fill_rate()
        possible = f", at most {bound:.2%} possible" if config.examples_per_row > 1 else ""
        unit, shape = self.data.unit, self.data.read
        inside = "" if unit == "rows" else f"{config.batch_size:,} {unit} in "
        return (
            f"{count(config.steps, 'step')} of {inside}{count(shape.batch_size, 'row')} of "
            f"{config.row_tokens} tokens ({fill_rate:.2%} real{possible}), "
            f"{rows:,} {unit} per epoch, {epochs:.1f} epochs"
        )


@dataclasses.dataclass(frozen=True)
class RunContext:
    """Everything that a run needs: configuration, data, step functions, mesh and job."""

    config: Config
    workdir: Workdir
    data: RunData
    program: StepFunctions
    mesh: jax.sharding.Mesh
    phases: tuple[RunPhase, ...]
    description: dict[str, Any]
    job: Job
    initial: InitialModel | None  # that a new run starts from
    teacher: Teacher | None = None
    fills: HeldOutFills | None = None

    @property
    def teacher_model(self) -> ModelConfig | None:
        return self.teacher.model if self.teacher else None

    @functools.cached_property
    def steps_to_keep(self) -> Mapping[int, list[int]]:
        """Steps after which a checkpoint is kept, and the words that were seen there."""
        return words_reached.steps_to_keep(self.config, self.description)

    @functools.cached_property
    def frozen(self) -> tuple[Any, ...]:
        """The arguments of a training step after state and batch: the teacher's parameters."""
        if self.teacher is None:
            return ()
        shardings = jax.tree.map(lambda x: x.sharding, self.program.teacher)
        return (self.teacher.placed(shardings),)

    def step_metrics(self, phase: PhaseConfig) -> StepMetrics:
        """Returns an empty metrics accumulator for the steps of a phase."""
        peak = peak_flops(self.mesh.devices.flat[0].device_kind, self.config.compute.dtype)
        total_peak = peak * self.mesh.size if peak else None
        flops = step_flops(self.config, phase, self.teacher_model)
        return StepMetrics(self.data.sources, flops, total_peak)

    def batch(self, phase: RunPhase, step: int) -> dict[str, jax.Array]:
        """Returns the global batch of step `step` of the run."""
        rows = functools.partial(phase.data.train.batch, step - phase.first)
        return global_batch.global_batch(rows, self.program.rows, phase.data.shape.batch_size)


@dataclasses.dataclass(frozen=True)
class CompiledPhase:
    """The compiled functions of a phase.

    All phases are compiled before the first step, so no unsaved progress waits for a compiler.
    """

    train: jax.stages.Compiled
    evaluate: jax.stages.Compiled
    start_phase: jax.stages.Compiled | None  # None: the phase has started already


def prepare(config: Config, workdir: Workdir, job: Job, data: RunData) -> RunContext:
    """Plans all phases and checks them against the devices; config: as `resolve` returns it.

    Raises:
        UserError: the data, the configuration and the workdir are not compatible.
    """
    given = config.init
    config = dataclasses.replace(config, init=from_any_folder(given))
    initial = find_initial(config, workdir, data, given)
    teacher = find_teacher(config, data)
    with job.clock.activity("start"):  # JAX initializes its devices, together with all processes
        mesh = make_mesh(config.mesh)
    # All phases are planned now, so that an error in a late phase does not appear after a week.
    phases = tuple(
        RunPhase(
            index=index,
            config=phase,
            first=config.phase_ends[index] - phase.steps,
            data=data.phase(config, phase, mesh),
        )
        for index, phase in enumerate(config.phases)
    )
    if mesh.devices.flat[0].platform == "cpu":
        cpu.keep_memory()  # after planning, whose peak memory is needed only once
    phases[0].data.train.compile_ahead()  # while XLA compiles
    _print_size(data, phases, mesh, job)
    description = describe(
        config,
        data,
        [p.data.train.rows_per_epoch for p in phases],
        [p.data.read for p in phases],
        mesh=mesh.shape,
        device_kind=mesh.devices.flat[0].device_kind,
        init=initial.digest if initial else None,
        init_step=initial.step if initial else 0,
        init_origin=initial.origin if initial else "",
        digests={**data.digests, **({"teacher": teacher.digest} if teacher else {})},
        files=data.files,
        teacher=teacher.model if teacher else None,
        hub=commits_of(config),
        words_per_step=[p.data.words_per_step for p in phases],
    )
    if initial and initial.words is not None:
        description[words_reached.BEFORE] = initial.words
    _check_same_data(description, data.path, job)
    words_reached.check(config, description, data.path)
    if job.peers.is_first:
        if line := not_exportable(config):
            logger.warning(line)
        data.warn(config)
    _print_attention(config, phases, mesh)
    program = step_module.make_step_functions(
        config, mesh, phases[0].data.held_out.corpus, teacher.model if teacher else None
    )
    _check_memory((program.abstract, program.teacher), mesh)
    return RunContext(
        config, workdir, data, program, mesh, phases, description, job, initial, teacher,
        data.fills(config),
    )  # fmt: skip


def _check_same_data(
    description: Mapping[str, Any], path: os.PathLike[str] | str, job: Job
) -> None:
    """Raises UserError if the processes read data of different content."""
    content = [description.get(name) for name in ("data", "words_per_step", words_reached.BEFORE)]
    peers, digests = job.peers, json.dumps(content, sort_keys=True)
    if len(set(peers.all_gather_text("data", digests))) > 1:
        raise UserError(
            f"{peers.name(peers.process_id)}: the content of {path} differs between "
            "machines (by digest); copy the same files to all of them"
        )


def with_outputs(run: RunContext) -> RunContext:
    """Returns the run with what its data compute once, see `RunData.with_outputs`; all processes of
    the job call it, after the workdir was claimed."""
    with run.job.clock.activity("data"):
        data = run.data.with_outputs(run.config, run.workdir, run.job)
    if data is run.data:
        return run
    phases = tuple(
        dataclasses.replace(phase, data=data.phase(run.config, phase.config, run.mesh))
        for phase in run.phases
    )
    return dataclasses.replace(run, data=data, phases=phases)


def with_steps(run: RunContext, steps: Sequence[int]) -> RunContext:
    """Returns the run with other steps in each phase; its plans stay the same, and its data unless
    their mask rate depends on the number of steps."""
    config = run.config.with_steps(steps)
    phases = tuple(
        dataclasses.replace(
            phase,
            config=new,
            first=end - new.steps,
            data=phase.data if new.mask_rate_end is None else run.data.phase(config, new, run.mesh),
        )
        for phase, new, end in zip(run.phases, config.phases, config.phase_ends, strict=True)
    )
    return dataclasses.replace(
        run,
        config=config,
        phases=phases,
        program=step_module.make_step_functions(
            config, run.mesh, phases[0].data.held_out.corpus, run.teacher_model
        ),
        description=run.description | {"config": recorded(config)},
    )


def _print_size(
    data: RunData, phases: tuple[RunPhase, ...], mesh: jax.sharding.Mesh, job: Job
) -> None:
    more = cpu.more_devices([*mesh.devices.flat])
    devices = f"{count(mesh.size, 'device')} ({mesh.devices.flat[0].device_kind}{more})"
    if job.peers.num_processes > 1:
        devices += f" in {job.peers.num_processes} processes"
    only = f"{phases[0]}; " if len(phases) == 1 else ""
    logger.info(f"{data}; {only}{devices}")


def _print_attention(config: Config, phases: tuple[RunPhase, ...], mesh: jax.sharding.Mesh) -> None:
    notes = (dispatch.gpu_note(config, phase.data.read, mesh) for phase in phases)
    for note in dict.fromkeys(filter(None, notes)):
        logger.info(note)
    if note := dispatch.memory_note(config, mesh):
        logger.warning(note)


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
    compiling = functools.partial(run.job.clock.activity, "compile")
    config, data = run.config.with_model_of(phase.config), phase.data

    def with_corpus(corpus: Corpus) -> StepFunctions:
        return step_module.make_step_functions(config, run.mesh, corpus, run.teacher_model)

    is_same = config.model == run.config.model
    program = run.program if is_same else with_corpus(data.held_out.corpus)
    trained = with_corpus(data.corpus) if data.corpus else program
    with compiling():
        train = trained.compile_train(data.train.batch(0, rows=[]), data.shape)
    with compiling():
        evaluate = data.held_out.compile(program)
    with compiling():
        start_phase = program.compile_start_phase() if phase.first >= max(first, 1) else None
    return CompiledPhase(train, evaluate, start_phase)
