"""Traces of a few steps: `bert-jax pretrain --profile=FIRST:END`.

    <workdir>/profile/plugins/profile/<time>/<host>.xplane.pb         TensorBoard reads it
                                             perfetto_trace.json.gz   ui.perfetto.dev opens it

Each step is marked "train" with its number. A trace that cannot be taken or written does not end
the run.
"""

import dataclasses
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from etils import epath

from bert_jax.errors import UsageError, UserError
from bert_jax.runtime.console import console

FOLDER = "profile"  # in the workdir
_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class Steps:
    """Which steps to trace, counted from 0 as `data batch --step` counts them."""

    first: int
    end: int  # the first that is not traced any more

    @classmethod
    def parse(cls, text: str) -> "Steps":
        """Reads FIRST:END.

        Raises:
            UsageError: it is something else.
        """
        match = re.fullmatch(r"(\d+):(\d+)", text, re.ASCII)
        if match is None or int(match[1]) >= int(match[2]):
            raise UsageError(
                f"--profile={text}: give FIRST:END, two numbers of steps from 0, the second the "
                "larger one; 10:13 traces steps 10, 11 and 12"
            )
        return cls(int(match[1]), int(match[2]))

    def check(self, total_steps: int) -> None:
        """Raises UserError where a run of so many steps does not have them all."""
        if self.end > total_steps:
            raise UserError(
                f"--profile={self}: this run has steps 0 to {total_steps - 1}; "
                f"give an END of {total_steps} at most"
            )

    def __str__(self) -> str:
        return f"{self.first}:{self.end}"


class Profiler:
    """Traces the steps that are asked for, where this process does them; others cost nothing."""

    def __init__(self, workdir: epath.Path, steps: Steps | None):
        """steps: None for no trace, as in all processes but the first."""
        self._folder, self._steps = workdir / FOLDER, steps
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._first: int | None = None  # of the trace that is being taken

    def run(self, step: int, function: Callable[..., _Result], *args: Any) -> _Result:
        """function(*args), which is step `step`; the last one traced is waited for."""
        steps = self._steps
        if steps is None or not steps.first <= step < steps.end:
            return function(*args)
        import jax

        if self._first is None:
            self._start(step)
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            result = function(*args)
        if step == steps.end - 1 and self._first is not None:
            jax.block_until_ready(result)
            self._write(step)
        return result

    def close(self, done: int | None = None) -> None:
        """Writes a trace that is being taken; the run ends after `done` updates."""
        if self._first is not None:
            self._write(done - 1 if done else None)

    def _start(self, step: int) -> None:
        import jax

        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # every call in Python would hide the rest
        try:
            # Written here, then copied: JAX writes to no bucket, and where it cannot write, it can
            # take no other trace in this process.
            self._temporary = tempfile.TemporaryDirectory(prefix="bert-jax-profile-")
            jax.profiler.start_trace(
                self._temporary.name, create_perfetto_trace=True, profiler_options=options
            )
            self._first = step
        except Exception as error:
            self._give_up(error)

    def _write(self, last: int | None) -> None:
        import jax

        first, self._first = self._first, None
        try:
            jax.profiler.stop_trace()
            if self._temporary is not None:
                _copy(Path(self._temporary.name), self._folder)
        except Exception as error:
            self._give_up(error)
            return
        if self._temporary is not None:
            self._temporary.cleanup()
        until = "" if last is None else f" to {last}"
        console.print(f"traced steps {first}{until}: {self._folder}")

    def _give_up(self, error: Exception) -> None:
        said = str(error).partition("\n")[0] or type(error).__name__
        self._steps = None
        if self._temporary is not None:
            self._temporary.cleanup()
        console.print(f"warning: {self._folder}: no trace ({said}); training goes on")


def _copy(source: Path, target: epath.Path) -> None:
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        place = target / file.relative_to(source).as_posix()
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.read_bytes())
