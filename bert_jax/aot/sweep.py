"""Searches for the fastest equivalent settings of a config that fit, by the compiler's estimate.

The search is a coordinate descent: it varies one knob at a time, with the others at their best
values so far, until a full round finds nothing better. That takes some twenty compilations instead
of hundreds, but can miss two knobs that only help together. Smaller micro-batches are tried until
they are slower.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from bert_jax.aot import backends
from bert_jax.aot.compile_report import phase_report
from bert_jax.aot.cost.memory import GIB, Memory
from bert_jax.aot.memory_advice import Change, bytes_with, flags, with_changes
from bert_jax.aot.report_data import PhaseReport
from bert_jax.aot.sweep_results import Sweep, Trial
from bert_jax.config.schema import Config
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.errors import UserError
from bert_jax.hardware.targets import Target
from bert_jax.parallel.mesh import make_mesh
from bert_jax.runtime.console import clock

UNCHANGED = "the unchanged config"
_MOST_FSDP = 8
_MOST_UNROLLED = 6  # layers: more take long to compile


@dataclasses.dataclass(frozen=True)
class Compiler:
    """The functions that a search calls; each raises UserError if the config cannot run.

    measure: (config, phase index) -> the report of compiling its step.
    needed: (config, phase index, memory of its step, change) -> estimated bytes per device with the
        change; None if unknown.
    """

    measure: Callable[[Config, int], PhaseReport]
    needed: Callable[[Config, int, Memory, Change], int | None]


def compiler(target: Target) -> Compiler:
    """Returns the functions of a search that compile for a target; UserError if it is unknown, or
    how fast its devices reach each other."""
    row = target.accelerator
    if (target.devices > 1 and row.ici_bandwidth is None) or (
        target.devices > target.linked and row.dcn_bandwidth is None
    ):
        raise UserError(
            "--sweep: the bandwidth between these chips, slices or hosts is unknown, so there are "
            "no times to compare; choose a single one"
        )
    devices = backends.of(target).devices(target)

    def measure(config: Config, index: int) -> PhaseReport:
        return phase_report(config, index, target, make_mesh(config.mesh, devices))

    def needed(config: Config, index: int, memory: Memory, change: Change) -> int | None:
        return bytes_with(config, index, make_mesh(config.mesh, devices), memory, change)

    return Compiler(measure, needed)


def knobs(
    config: Config, phases: Sequence[int], devices: int, also: Mapping[str, Sequence[Any]]
) -> Iterator[list[Change]]:
    """Yields the changes to try, by knob; the config's own values may be among them.

    Args:
        phases: indices of the phases to optimize. devices: number of devices of all slices.
        also: additional values to try, by config key.
    """
    model, mesh = config.model, config.mesh
    other_axes = max(1, mesh.slice) * max(1, mesh.tensor)  # not available to fsdp
    for index in phases:
        rows = config.phases[index].batch_size // max(1, devices // max(1, mesh.tensor))
        parts = [2**k for k in range(rows.bit_length()) if rows % 2**k == 0]
        yield [{f"phases[{index}].micro_batches": n} for n in parts]
    rest = {} if -1 in (mesh.data, mesh.slice, mesh.tensor) else {"mesh.data": -1}
    sizes = [2**k for k in range(_MOST_FSDP.bit_length()) if devices // other_axes % 2**k == 0]
    yield [{"mesh.fsdp": n, **rest} for n in sizes if n != mesh.fsdp]
    policies = ("none", "dots_with_no_batch_dims_saveable", "full")
    yield [{"compute.remat": policy} for policy in policies]
    if model.attention_probs_dropout_prob == 0:
        yield [{"compute.attention": name} for name in ("auto", "xla")]
    layers = model.num_hidden_layers
    unrolled = [n for n in range(1, _MOST_UNROLLED + 1) if layers % n == 0 and n < layers]
    yield [{"compute.unroll_layers": n} for n in unrolled]
    for key, values in also.items():
        yield [{key: value} for value in values]


def _parts(config: Config) -> int:
    """Returns the number of micro-batches, summed over the phases."""
    return sum(phase.micro_batches for phase in config.phases)


@dataclasses.dataclass
class Search:
    """Compiles candidates one after the other until none is better or the time limit is reached.

    phases: indices of the phases to optimize, from 0. devices: number of devices of all slices.
    also: additional values to try, by config key.
    seconds: time limit; no compilation starts after it.
    working: context manager around each compilation; takes its description with progress and
        remaining time.
    """

    config: Config
    phases: Sequence[int]
    devices: int
    compiler: Compiler
    _: dataclasses.KW_ONLY
    also: Mapping[str, Sequence[Any]]
    seconds: float
    working: Callable[[str], AbstractContextManager[None]]
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._began = self.now()
        self._tried: dict[Config, Trial] = {}
        self._refused: dict[str, Trial] = {}  # invalid configs, by their flags
        self._left: dict[Config, Change] = {}
        self._compiled = 0
        self._of_phase: dict[tuple[Config, int], PhaseReport] = {}

    def run(self) -> Sweep:
        """Returns the result of the search.

        Raises:
            UserError: the unchanged config cannot run on the devices.
        """
        first = self._compile(self.config, {}, sum(map(len, self._knobs(self.config))))
        if not first.phases:
            raise UserError(first.refusal or "")
        config, best = self.config, first
        if first.refusal:
            advice = [remedy.changes for remedy in first.phases[-1].remedies]
            config, best = self._vary(config, best, advice, 0)
        while True:
            start = best
            ahead = self._knobs(config)
            for i, knob in enumerate(ahead):
                config, best = self._vary(config, best, knob, sum(map(len, ahead[i + 1 :])))
            if best is start or self._left:
                break
        tried = (*self._tried.values(), *self._refused.values())
        return Sweep(tried, tuple(self._left.values()), self._spent)

    def _knobs(self, config: Config) -> list[list[Change]]:
        return list(knobs(config, self.phases, self.devices, self.also))

    def _vary(
        self, config: Config, best: Trial, knob: Sequence[Change], later: int
    ) -> tuple[Config, Trial]:
        """Returns the best of a knob's values, its current value included.

        Args:
            later: number of candidates left after this knob.
        """
        best_config, result = config, best
        for i, change in enumerate(knob):
            try:
                other = with_changes(config, change)
            except UserError as error:
                changes = {**best.changes, **change}
                self._refused[flags(changes)] = Trial(changes, refusal=str(error))
                continue
            trial = self._try(other, config, best, change, len(knob) - i + later)
            if not trial or not trial.tokens_per_second:
                continue
            if trial.tokens_per_second > (result.tokens_per_second or 0):
                best_config, result = other, trial
            elif _parts(other) > _parts(config):
                break  # even smaller micro-batches are slower still
        return best_config, result

    def _try(
        self, other: Config, config: Config, best: Trial, change: Change, ahead: int
    ) -> Trial | None:
        """Returns the trial of the best config so far with a change; None after the time limit."""
        if other in self._tried:
            return self._tried[other]
        changes = self._changes(other)
        if self._spent + self._kept >= self.seconds:
            self._left[other] = changes
            return None
        for phase in best.phases:
            total = self.compiler.needed(config, phase.index, phase.memory, change)
            if total is not None and phase.memory.limit and total > phase.memory.limit:
                reason = f"not compiled: {total / GIB:,.2f} GiB of {phase.memory.limit / GIB:,.2f}"
                self._tried[other] = Trial(changes, refusal=f"{reason} by estimate")
                return self._tried[other]
        return self._compile(other, changes, ahead)

    def _compile(self, config: Config, changes: Change, ahead: int) -> Trial:
        what = flags(changes) or UNCHANGED
        self._compiled += 1
        with self.working(f"{self._progress(ahead)}: {what}"):
            reports, refusal = self._reports(config)
        self._tried[config] = Trial(changes, tuple(reports), refusal)
        return self._tried[config]

    def _reports(self, config: Config) -> tuple[list[PhaseReport], str | None]:
        """Returns the reports of the phases, up to the first that does not fit, and why the config
        is ruled out; None if it is not."""
        reports: list[PhaseReport] = []
        for index in self.phases:
            try:
                reports.append(self._measure(config, index))
            except UserError as error:
                return reports, str(error)
            memory = reports[-1].memory
            if not memory.fits:
                limit = f" of {memory.limit / GIB:,.2f}" if memory.limit else ""
                return reports, f"does not fit: {memory.total / GIB:,.2f} GiB{limit}"
        return reports, None

    def _measure(self, config: Config, index: int) -> PhaseReport:
        """Compiles a phase's step, once for all configs that differ only in other phases."""
        single_phase = config.with_only(config.phases[index])
        if (single_phase, index) not in self._of_phase:
            self._of_phase[single_phase, index] = self.compiler.measure(config, index)
        return self._of_phase[single_phase, index]

    def _progress(self, ahead: int) -> str:
        """Returns the count of compilations and the time, elapsed and left."""
        done = self._compiled - 1
        most = done + max(1, ahead)
        left = self.seconds - self._spent
        if done:
            left = min(left, (most - done) * self._spent / done)
        times = f"{clock(self._spent)} so far, at most {clock(max(0.0, left))} left"
        return f"compiling {self._compiled} of at most {most} ({times})"

    def _changes(self, config: Config) -> Change:
        before, after = (flatten(to_dict(c)) for c in (self.config, config))
        return {key: value for key, value in after.items() if value != before[key]}

    @property
    def _kept(self) -> float:
        """Seconds before the time limit in which no candidate is begun any more."""
        return 0.0

    @property
    def _spent(self) -> float:
        return self.now() - self._began
