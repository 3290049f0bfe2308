"""Which of the equal ways to run a config is the fastest that fits, by the compiler's estimate.

One knob is turned at a time, the others left where they were best so far, until a whole round finds
nothing better: some twenty compilations instead of hundreds. Two knobs that help only together can
be missed. Smaller parts of a batch are tried until they are slower.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from jax.sharding import Mesh

from bert_jax.aot import topology
from bert_jax.aot.cost.memory import GIB, Memory
from bert_jax.aot.memory_advice import Change, bytes_with, with_changes
from bert_jax.aot.report import PhaseReport, phase_report
from bert_jax.config.schema import Config
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.errors import UserError
from bert_jax.launch.hardware.slices import Slice
from bert_jax.parallel import global_batch
from bert_jax.parallel.mesh import make_mesh
from bert_jax.runtime.console import clock

_MOST_FSDP = 8
_MOST_UNROLLED = 6  # layers: more take long to compile


@dataclasses.dataclass(frozen=True)
class Compiler:
    """What a search asks; each function raises UserError where the config does not go.

    measure: of a config and the number of a phase, what compiling its step gives.
    needed: of a config, a phase's number, what its step takes and a change: bytes of a device with
        the change, an estimate; None where it is not known.
    """

    measure: Callable[[Config, int], PhaseReport]
    needed: Callable[[Config, int, Memory, Change], int | None]


def compiler(of: Slice) -> Compiler:
    """libtpu, for slices.

    Raises:
        UserError: libtpu does not know them.
    """
    devices = topology.devices(of)

    def mesh(config: Config) -> Mesh:
        return make_mesh(config.mesh, devices)

    def measure(config: Config, index: int) -> PhaseReport:
        laid, phase = mesh(config), config.phases[index]
        global_batch.check_divides(laid, phase.batch_size, phase.micro_batches)
        return phase_report(config, index, of, laid)

    def needed(config: Config, index: int, memory: Memory, change: Change) -> int | None:
        return bytes_with(config, index, mesh(config), memory, change)

    return Compiler(measure, needed)


@dataclasses.dataclass(frozen=True)
class Trial:
    """One way to run the config.

    changes: of the config, by key. phases: what was compiled, up to the first that does not fit.
    refusal: why it is none to choose, None where it is one.
    """

    changes: Change
    phases: tuple[PhaseReport, ...] = ()
    refusal: str | None = None

    @property
    def seconds(self) -> float | None:
        """Of all steps of the phases; estimated by the compiler."""
        each = [p.step_seconds and p.phase.steps * p.step_seconds for p in self.phases]
        return None if self.refusal or not all(each) else sum(one for one in each if one)

    @property
    def tokens_per_second(self) -> float | None:
        """Of all devices over the phases, padding included."""
        tokens = sum(p.phase.steps * p.phase.batch_size * p.phase.row_tokens for p in self.phases)
        return tokens / self.seconds if self.seconds else None

    @property
    def needed(self) -> int:
        """Most bytes of a device in any phase; 0 where nothing was compiled."""
        return max((phase.memory.total for phase in self.phases), default=0)

    @property
    def flags(self) -> str:
        """What to add to the command line."""
        return flags(self.changes)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """tried: in the order of the search. left: what the time was over for."""

    tried: tuple[Trial, ...]
    left: tuple[Change, ...]
    seconds: float

    @property
    def ranked(self) -> tuple[Trial, ...]:
        """Those that fit, the fastest first."""
        fitting = (one for one in self.tried if one.tokens_per_second)
        return tuple(sorted(fitting, key=lambda one: -(one.tokens_per_second or 0)))

    @property
    def best(self) -> Trial | None:
        return next(iter(self.ranked), None)

    @property
    def refused(self) -> tuple[Trial, ...]:
        return tuple(one for one in self.tried if one.refusal)


def flags(changes: Change) -> str:
    return " ".join(f"--config.{key}={value}" for key, value in changes.items())


def knobs(
    config: Config, phases: Sequence[int], devices: int, also: Mapping[str, Sequence[Any]]
) -> Iterator[list[Change]]:
    """The values to try, by knob; the config's own among them does no harm.

    Args:
        phases: numbers of those that count. devices: of all slices.
        also: more values of keys of the config, by key.
    """
    model, mesh = config.model, config.mesh
    whole = max(1, mesh.slice) * max(1, mesh.tensor)  # what else of the devices is split
    for index in phases:
        rows = config.phases[index].batch_size // max(1, devices // max(1, mesh.tensor))
        parts = [2**k for k in range(rows.bit_length()) if rows % 2**k == 0]
        yield [{f"phases[{index}].micro_batches": n} for n in parts]
    rest = {} if -1 in (mesh.data, mesh.slice, mesh.tensor) else {"mesh.data": -1}
    sizes = [2**k for k in range(_MOST_FSDP.bit_length()) if devices // whole % 2**k == 0]
    yield [{"mesh.fsdp": n, **rest} for n in sizes if n != mesh.fsdp]
    policies = ("none", "dots_with_no_batch_dims_saveable", "full")
    yield [{"compute.remat": policy} for policy in policies]
    if model.attention_probs_dropout_prob == 0:
        yield [{"compute.attention": form} for form in ("auto", "xla")]
    layers = model.num_hidden_layers
    turns = [n for n in range(1, _MOST_UNROLLED + 1) if layers % n == 0 and n < layers]
    yield [{"compute.unroll_layers": n} for n in turns]
    for key, values in also.items():
        yield [{key: value} for value in values]


def search(
    config: Config,
    phases: Sequence[int],
    devices: int,
    compiler: Compiler,
    *,
    also: Mapping[str, Sequence[Any]],
    seconds: float,
    working: Callable[[str], AbstractContextManager[None]],
    now: Callable[[], float] = time.monotonic,
) -> Sweep:
    """Compiles one after the other until nothing is better, or the time is over.

    Args:
        phases: numbers of those that count, from 0.
        seconds: after which none is begun any more.
        working: is told what is being compiled, which of how many at most, and how long it takes.

    Raises:
        UserError: the config as it is does not go on the devices, or its time cannot be estimated.
    """
    return _Search(config, phases, devices, compiler, also, seconds, working, now).run()


def _parts(config: Config) -> int:
    """Of a step, in all phases."""
    return sum(phase.micro_batches for phase in config.phases)


class _Search:
    """`search` under way."""

    def __init__(
        self,
        config: Config,
        phases: Sequence[int],
        devices: int,
        compiler: Compiler,
        also: Mapping[str, Sequence[Any]],
        seconds: float,
        working: Callable[[str], AbstractContextManager[None]],
        now: Callable[[], float],
    ):
        self._config, self._phases, self._devices = config, phases, devices
        self._compiler, self._also = compiler, also
        self._seconds, self._working = seconds, working
        self._now, self._began = now, now()
        self._tried: dict[Config, Trial] = {}
        self._refused: dict[str, Trial] = {}  # what is no config, by its flags
        self._left: dict[Config, Change] = {}
        self._compiled = 0
        self._of_phase: dict[tuple[Config, int], PhaseReport] = {}

    def run(self) -> Sweep:
        first = self._compile(self._config, {}, len(list(self._ahead(self._config))))
        if not first.phases:
            raise UserError(first.refusal or "")
        if not first.refusal and first.seconds is None:
            raise UserError(
                "--sweep: how fast the network between slices of this generation is is not known, "
                "so there are no times to compare"
            )
        config, best = self._config, first
        if first.refusal:
            advice = [remedy.changes for remedy in first.phases[-1].remedies]
            config, best = self._turn(config, best, advice, 0)
        while True:
            start = best
            ahead = list(knobs(config, self._phases, self._devices, self._also))
            for i, knob in enumerate(ahead):
                config, best = self._turn(config, best, knob, sum(map(len, ahead[i + 1 :])))
            if best is start or self._left:
                break
        tried = (*self._tried.values(), *self._refused.values())
        return Sweep(tried, tuple(self._left.values()), self._spent)

    def _ahead(self, config: Config) -> Iterator[Change]:
        for knob in knobs(config, self._phases, self._devices, self._also):
            yield from knob

    def _turn(
        self, config: Config, best: Trial, knob: Sequence[Change], later: int
    ) -> tuple[Config, Trial]:
        """The best of a knob's values, and of the one that it has.

        Args:
            later: how many more may be compiled after this knob.
        """
        found, result = config, best
        for i, change in enumerate(knob):
            try:
                other = with_changes(config, change)
            except UserError as error:
                changes = {**best.changes, **change}
                self._refused[flags(changes)] = Trial(changes, refusal=str(error))
                continue
            one = self._try(other, config, best, change, len(knob) - i + later)
            if not one or not one.tokens_per_second:
                continue
            if one.tokens_per_second > (result.tokens_per_second or 0):
                found, result = other, one
            elif _parts(other) > _parts(config):
                break  # in still smaller parts it is slower still
        return found, result

    def _try(
        self, other: Config, config: Config, best: Trial, change: Change, ahead: int
    ) -> Trial | None:
        """What comes of a config, unless the time is over; it is the best so far with a change."""
        if other in self._tried:
            return self._tried[other]
        changes = self._changes(other)
        if self._spent >= self._seconds:
            self._left[other] = changes
            return None
        for phase in best.phases:
            total = self._estimated(config, phase, change)
            if total is not None and phase.memory.limit and total > phase.memory.limit:
                says = f"not compiled: {total / GIB:,.2f} GiB of {phase.memory.limit / GIB:,.2f}"
                self._tried[other] = Trial(changes, refusal=f"{says} by estimate")
                return self._tried[other]
        return self._compile(other, changes, ahead)

    def _estimated(self, config: Config, phase: PhaseReport, change: Change) -> int | None:
        return self._compiler.needed(config, phase.index, phase.memory, change)

    def _compile(self, config: Config, changes: Change, ahead: int) -> Trial:
        reports: list[PhaseReport] = []
        refusal = None
        what = flags(changes) or "the config as it is"
        self._compiled += 1
        with self._working(f"{self._progress(ahead)}: {what}"):
            for index in self._phases:
                try:
                    reports.append(self._measure(config, index))
                except UserError as error:
                    refusal = str(error)
                    break
                memory = reports[-1].memory
                if not memory.fits:
                    limit = f" of {memory.limit / GIB:,.2f}" if memory.limit else ""
                    refusal = f"does not fit: {memory.total / GIB:,.2f} GiB{limit}"
                    break
        self._tried[config] = Trial(changes, tuple(reports), refusal)
        return self._tried[config]

    def _measure(self, config: Config, index: int) -> PhaseReport:
        """Each phase's step once, however the other phases are."""
        alone = dataclasses.replace(config, phases=(config.phases[index],))
        if (alone, index) not in self._of_phase:
            self._of_phase[alone, index] = self._compiler.measure(config, index)
        return self._of_phase[alone, index]

    def _progress(self, ahead: int) -> str:
        """Which of how many at most, and how long."""
        done = self._compiled - 1
        most = done + max(1, ahead)
        left = self._seconds - self._spent
        if done:
            left = min(left, (most - done) * self._spent / done)
        times = f"{clock(self._spent)} so far, at most {clock(max(0.0, left))} left"
        return f"compiling {self._compiled} of at most {most} ({times})"

    def _changes(self, config: Config) -> Change:
        before, after = (flatten(to_dict(c)) for c in (self._config, config))
        return {key: value for key, value in after.items() if value != before[key]}

    @property
    def _spent(self) -> float:
        return self._now() - self._began
