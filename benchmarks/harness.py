"""Shared by the benchmarks: options, the machine, interleaved rounds, stores, a training step, and
contenders in processes of their own.

The comparing process has a pipe to each contender: it writes a number of steps and reads a line of
JSON with the seconds that they took and their losses. A contender without a request blocks and uses
no CPU.
"""

import argparse
import ast
import atexit
import contextlib
import datetime
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

import numpy as np

from bert_jax.errors import UserError

K, T = TypeVar("K"), TypeVar("T")
Batch = dict[str, np.ndarray]
Losses = list[float]
Take = Callable[[int], Losses]  # trains for that number of steps, blocks until done
_figures: list[dict[str, Any]] = []  # what was recorded
ROOT = Path(__file__).resolve().parent.parent


def fail(problem: object) -> NoReturn:
    """Ends a benchmark with one line."""
    print(f"error: {problem}", file=sys.stderr)
    sys.exit(1)


@contextlib.contextmanager
def errors_are_one_line() -> Iterator[None]:
    """Ends the benchmark with one line at an error of the user, or of a contender."""
    try:
        yield
    except (UserError, ChildProcessError) as error:
        fail(error)


def parser(doc: str, **options: Any) -> argparse.ArgumentParser:
    """Returns the parser of a benchmark with this docstring; it has --json."""
    made = argparse.ArgumentParser(description=doc.split("\n")[0], **options)
    text = "print what was recorded as a line of JSON at the end"
    made.add_argument("--json", action="store_true", help=text)
    if "--json" in sys.argv[1:]:
        atexit.register(_print_figures)
    return made


def record(**figures: Any) -> None:
    """Notes figures, or what they are of, for --json."""
    _figures.append(figures)


def _print_figures() -> None:
    about = {"benchmark": Path(sys.argv[0]).name, "options": sys.argv[1:], "machine": machine()}
    if _figures:  # none of a benchmark that failed
        print(json.dumps({**about, "figures": _figures}, default=str))


def at_least_one(options: argparse.Namespace, *names: str) -> None:
    """Ends the benchmark if one of these options is given and is below 1."""
    for name in names:
        if (value := getattr(options, name)) is not None and value < 1:
            fail(f"--{name}={value}: at least 1 is needed")


def each_once(flag: str, values: Sequence[T]) -> list[T]:
    """Returns the values of an option; ends the benchmark at one that is given twice, which would
    make two runs of one name."""
    for value in values:
        if values.count(value) > 1:
            fail(f"--{flag}: {value} is given twice; give each value once")
    return [*values]


def some_of(flag: str, text: str, known: Collection[str], least: int = 1) -> list[str]:
    """Parses "a,b"; ends the benchmark at a name that is not known, at one that is given
    twice, or at fewer than `least`."""
    names = [name for name in text.split(",") if name]
    if len(names) < least:
        fail(f"--{flag} is empty: give some of {','.join(known)}")
    if unknown := [name for name in names if name not in known]:
        fail(f"--{flag}={unknown[0]}: give some of {','.join(known)}")
    return each_once(flag, names)


def setting(text: str) -> tuple[str, Any]:
    """Returns key and value of "--config.key=value"; the flag's beginning may be left out."""
    key, _, value = text.removeprefix("--config.").partition("=")
    try:
        return key, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return key, value  # a name


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def machine(*libraries: str) -> str:
    """Returns the processor, its load, the versions of Python and of libraries, and the day."""
    found = [processor(), f"Python {platform.python_version()}"]
    for name in libraries:
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    found.append(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return ", ".join([*found, f"{datetime.date.today()}"])


def find_libtpu() -> None:
    """Locates the TPU compiler, in .venv/libtpu if it is there; UserError if there is none."""
    from bert_jax.aot import topology

    local = ROOT / ".venv/libtpu/libtpu/libtpu.so"
    if local.exists():
        os.environ.setdefault(topology.LIBTPU_VARIABLE, str(local))
    topology.library()


def find_gpu_compiler() -> None:
    """Locates the GPU compiler, in .venv/gpu_compiler if there; UserError if there is none."""
    from bert_jax.aot import gpu_compiler

    local = ROOT / ".venv/gpu_compiler"
    if local.exists():
        os.environ.setdefault(gpu_compiler.GPU_COMPILER_VARIABLE, str(local))
    gpu_compiler.folder()


def rounds(measures: Mapping[K, Callable[[], T]], number: int) -> dict[K, list[T]]:
    """Returns the values of each measure; a round takes each once, so that all have the machine at
    equally good and bad times."""
    values: dict[K, list[T]] = {name: [] for name in measures}
    for _ in range(number):
        for name, measure in measures.items():
            values[name].append(measure())
    return values


def medians(measures: Mapping[K, Callable[[], float]], number: int) -> dict[K, float]:
    return {name: statistics.median(got) for name, got in rounds(measures, number).items()}


def seconds(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Returns the time that a call takes; wall-clock time by default."""
    start = clock()
    action()
    return clock() - start


def build_store(folder: Path, text: str = "python", entries: int = 8192, **options: Any) -> Path:
    """Builds a store, by default of the documentation of this Python; its vocabulary is trained.

    text: a source, as for `data build`.
    """
    from bert_jax.data_pipeline.sources import parse_source
    from bert_jax.data_pipeline.store_build import build, vocabulary

    source, path = parse_source(text), folder / "store"
    tokenizer = vocabulary.train_tokenizer([source], entries, progress=False)
    build.build_store([source], tokenizer, path, progress=False, **options)
    return path


def generate_store(folder: Path, documents: int = 500) -> Path:
    """Builds a store of random words, with sentences of realistic lengths."""
    draw = random.Random(0)
    words = ["".join(draw.choices("aeioubdklmnrst", k=draw.randint(2, 9))) for _ in range(3000)]
    lines = []
    for _ in range(documents):
        for _ in range(draw.randint(10, 60)):  # sentences
            chosen = draw.choices(words, k=draw.randint(5, 40))
            lines.append(" ".join(chosen).capitalize() + ".")
        lines.append("")
    text = folder / "text"
    text.mkdir()
    (text / "generated.txt").write_text("\n".join(lines))
    return build_store(folder, f"lines:{text}", 4096)


class Trainer:
    """The training step of a config's first phase, over and over on the same batches.

    Attributes:
        program, step: see `bert_jax.training.step`.
    """

    def __init__(self, config: Any, store: Any, batches: Sequence[Batch], devices: Any = None):
        """devices: those to train on; default: all."""
        import jax

        from bert_jax.objectives.corpus import Corpus
        from bert_jax.parallel.mesh import make_mesh
        from bert_jax.training.step import make_step_functions

        mesh, phase = make_mesh(config.mesh, devices), config.phases[0]
        with jax.set_mesh(mesh):
            self.program = make_step_functions(config, mesh, Corpus.of(store))
            self.step = self.program.compile_train(batches[0], phase)
            self.placed = [place(self.program, batch, phase.batch_size) for batch in batches]
            self.state = self.program.init()
        self.done = 0

    def start_step(self) -> Any:
        """Starts a step; returns its loss on the device."""
        self.state, metrics = self.step(self.state, self.placed[self.done % len(self.placed)])
        self.done += 1
        return metrics["loss"]

    def train(self, steps: int) -> Losses:
        return [float(loss) for loss in [self.start_step() for _ in range(steps)]]


def place(program: Any, batch: Batch, rows: int) -> Any:
    """Returns a batch on the devices of a program."""
    from bert_jax.parallel import global_batch

    return global_batch.global_batch(
        lambda wanted: {name: values[wanted] for name, values in batch.items()}, program.rows, rows
    )


def use_cores(count: int) -> None:
    """Pins this process, and those that it starts, to this many cores."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


class Contender:
    """A contender's process, seen from the comparing process."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]):
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def steps(self, count: int) -> tuple[float, Losses]:
        """Trains for `count` steps; returns their seconds and losses.

        Raises:
            ChildProcessError: the process has ended; its error is on standard error.
        """
        seconds, losses = self.ask(str(count))
        return seconds, losses

    def ask(self, question: str) -> Any:
        """Sends one line and returns the answer; raises ChildProcessError as `steps` does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{question}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the end of its output below is the error
        answer = self._process.stdout.readline()
        if not answer:
            raise ChildProcessError(f"a contender ended with exit code {self._process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        """Closes the pipe and waits for the process to exit."""
        self._process.communicate()


@contextlib.contextmanager
def contenders(
    commands: Mapping[K, Sequence[str]], **environment: object
) -> Iterator[dict[K, Contender]]:
    """Starts a contender for each command, in this environment."""
    values = {name: str(value) for name, value in environment.items()}
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(contextlib.closing(Contender(words, values)))
            for name, words in commands.items()
        }


def wall_and_cpu(times: Mapping[str, list[tuple[float, Losses]]]) -> dict[str, tuple[float, float]]:
    """Returns the median seconds and CPU seconds of each of two contenders, which answered with
    those first; and below "ratio" the medians of what the second took, over the first."""
    both = {name: [(wall, cpu) for wall, (cpu, *_) in got] for name, got in times.items()}
    pairs = zip(*both.values(), strict=True)
    both["ratio"] = [(other[0] / one[0], other[1] / one[1]) for one, other in pairs]
    return {
        name: (statistics.median(wall for wall, _ in got), statistics.median(cpu for _, cpu in got))
        for name, got in both.items()
    }


def talk_apart() -> TextIO:
    """Returns the stream for answers; redirects other standard output to standard error."""
    talk = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return talk


def answer(talk: TextIO, take: Take, others: dict[str, Callable[[], object]] | None = None) -> None:
    """Serves a contender's requests until standard input closes.

    others: answers to requests other than a number of steps.
    """
    for line in sys.stdin:
        question = line.strip()
        if others and question in others:
            reply = others[question]()
        else:
            start = time.perf_counter()
            losses = take(int(question))
            reply = [time.perf_counter() - start, losses]
        talk.write(json.dumps(reply) + "\n")


def write_batches(path: Path, batches: Sequence[Batch]) -> None:
    arrays = {f"{i} {name}": values for i, b in enumerate(batches) for name, values in b.items()}
    np.savez(path, **arrays)


def read_batches(path: Path) -> list[Batch]:
    """Reads the batches of `write_batches`."""
    batches: dict[int, Batch] = {}
    with np.load(path) as arrays:
        for key, values in arrays.items():
            number, _, name = key.partition(" ")
            batches.setdefault(int(number), {})[name] = values
    return [batches[i] for i in range(len(batches))]
