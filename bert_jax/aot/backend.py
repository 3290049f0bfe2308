"""A kind of hardware: compiling for it without having it, and what reports say of it."""

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bert_jax.hardware.targets import Target

if TYPE_CHECKING:
    import jax

    from bert_jax.aot.cost.analysis import Analysis
    from bert_jax.aot.cost.gpu_analysis import GpuAnalysis
    from bert_jax.aot.report_data import PhaseReport, Report
    from bert_jax.reporting.sections import Part, Section


T = TypeVar("T", bound=Target)


class Backend(abc.ABC, Generic[T]):
    """A kind of hardware; its row in `backends.BACKENDS` makes `bert-jax compile` take it.

    refuses: whether its compiler refuses programs that need more than the memory.
    place: where a run would be, in words.
    estimates: whether its compiler estimates the time. Otherwise there are lower bounds, the search
        has no hours, and candidates have their layers in a loop, which compiles faster.
    ranking: what the times of the search are, in words.
    """

    refuses: bool
    place: str
    estimates: bool
    ranking: str

    @abc.abstractmethod
    def prepare(self) -> None:
        """Configures this process to compile and to use only the CPU.

        Call it before JAX initializes its backends, and preferably before importing JAX, which
        reads some environment variables only on import.

        Raises:
            UserError: the compiler is not found.
        """

    @abc.abstractmethod
    def compiler(self) -> str:
        """Returns the name and version of the compiler."""

    def versions(self, compiler: str) -> Mapping[str, str]:
        """Returns versions that JSON has by a key of their own. compiler: see `compiler`."""
        return {}

    @abc.abstractmethod
    def devices(self, target: T) -> Sequence["jax.Device"]:
        """Returns the JAX devices; they are descriptions that cannot hold arrays.

        Raises:
            UserError: the compiler does not know them.
        """

    @abc.abstractmethod
    def analyse(
        self, text: str, mesh_shape: Mapping[str, int], target: T
    ) -> "Analysis | GpuAnalysis":
        """Returns what is known of a compiled program. text: its optimized HLO."""

    @abc.abstractmethod
    def kind(self, target: T) -> Mapping[str, Any]:
        """Returns what JSON has of the hardware, beside its name and numbers."""

    @abc.abstractmethod
    def hardware(self, target: T) -> str:
        """Returns the number and kind of its devices, in words."""

    @abc.abstractmethod
    def device(self, target: T) -> str:
        """Returns the word for one device."""

    @abc.abstractmethod
    def note(self, compiler: str) -> str:
        """Returns what the numbers of a report are. compiler: its name and version."""

    def of_memory(self, target: T) -> Sequence["Part"]:
        """Returns what is said of the limit of the memory."""
        return ()

    @abc.abstractmethod
    def sections(self, phase: "PhaseReport", target: T) -> Iterator["Section"]:
        """Yields the time of a phase, and where it goes."""

    @abc.abstractmethod
    def run_time(self, report: "Report") -> str:
        """Returns the time of all phases of a report that fits, in words."""

    @abc.abstractmethod
    def train_command(self, target: T, words: str) -> str:
        """Returns the command that trains there. words: that give the config."""
