"""Profiler traces of a few steps: `bert-jax pretrain --profile=FIRST:END`.

    Workdir.profile/plugins/profile/<time>/<host>.xplane.pb         for TensorBoard
                                           perfetto_trace.json.gz   for ui.perfetto.dev

Each step is annotated as "train" with its number. Training continues if a trace cannot be taken or
written.
"""

import dataclasses
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
from etils import epath

from bert_jax.errors import UsageError, UserError
from bert_jax.runtime.log import logger

_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class Steps:
    """The steps to trace, counted from 0 as in `data batch --step`."""

    first: int
    end: int  # exclusive

    @classmethod
    def parse(cls, text: str) -> "Steps":
        """Parses FIRST:END.

        Raises:
            UsageError: the text has another format, or FIRST >= END.
        """
        match = re.fullmatch(r"(\d+):(\d+)", text, re.ASCII)
        if match is None or int(match[1]) >= int(match[2]):
            raise UsageError(
                f"--profile={text}: give FIRST:END, step numbers counted from 0 with FIRST < END; "
                "10:13 traces steps 10, 11 and 12"
            )
        return cls(int(match[1]), int(match[2]))

    def check(self, total_steps: int) -> None:
        """Raises UserError if a run of `total_steps` does not include all of these steps."""
        if self.end > total_steps:
            raise UserError(
                f"--profile={self}: this run has steps 0 to {total_steps - 1}; "
                f"give an END of at most {total_steps}"
            )

    def __str__(self) -> str:
        return f"{self.first}:{self.end}"


class Profiler:
    """Traces the requested steps if this process runs them; other steps have no overhead."""

    def __init__(self, folder: epath.Path, steps: Steps | None):
        """steps: None for no trace, as in every process but the first."""
        self._folder, self._steps = folder, steps
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._first: int | None = None  # first step of the trace in progress

    def run(self, step: int, function: Callable[..., _Result], *args: Any) -> _Result:
        """Returns function(*args), the step `step`; blocks until the last traced step is done."""
        steps = self._steps
        if steps is None or not steps.first <= step < steps.end:
            return function(*args)
        if self._first is None:
            self._start(step)
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            result = function(*args)
        if step == steps.end - 1 and self._first is not None:
            jax.block_until_ready(result)
            self._write(step)
        return result

    def close(self, done: int | None = None) -> None:
        """Writes the trace in progress, if any; the run ends after `done` updates."""
        if self._first is not None:
            self._write(done - 1 if done else None)

    def _start(self, step: int) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # Python calls would hide the other events
        try:
            # Written to a local folder, then copied: JAX cannot write to buckets, and after a
            # failed write it cannot start another trace in this process.
            self._temporary = tempfile.TemporaryDirectory(prefix="bert-jax-profile-")
            jax.profiler.start_trace(
                self._temporary.name, create_perfetto_trace=True, profiler_options=options
            )
            self._first = step
        except Exception as error:
            self._give_up(error)

    def _write(self, last: int | None) -> None:
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
        logger.info(f"traced steps {first}{until}: {self._folder}")

    def _give_up(self, error: Exception) -> None:
        reason = str(error).partition("\n")[0] or type(error).__name__
        self._steps = None
        if self._temporary is not None:
            self._temporary.cleanup()
        logger.warning(f"{self._folder}: no trace ({reason}); training continues")


def _copy(source: Path, target: epath.Path) -> None:
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        place = target / file.relative_to(source).as_posix()
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.read_bytes())
