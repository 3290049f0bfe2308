"""Time to detect a fault, steps lost to it, and the overhead of fault tolerance.

    python benchmarks/faults.py                # faults, then costs: about ten minutes on 4 cores
    python benchmarks/faults.py --part=faults --rounds=5

Needs the [dev] extra and a checkout: it runs the jobs of the tests. Two processes over loopback
train a small model; a fault is injected mid-run. Times are from the injection to the log line that
reports it, and to the exit of the last process that can exit. "lost" is the number of steps that a
resumed run repeats, with a checkpoint every `EVERY` steps.
"""

import dataclasses
import http.server
import itertools
import os
import random
import runpy
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness

ROOT = Path(__file__).resolve().parent.parent
EVERY = 20  # steps between two checkpoints
# Deadlines in seconds; the default ones are minutes.
PEER, STEP = 10.0, 20.0
# Makes a process hang on SIGUSR1, wherever its main thread is.
HANG = "import signal, time\nsignal.signal(signal.SIGUSR1, lambda *_: time.sleep(10**6))\n"


@dataclasses.dataclass(frozen=True)
class Fault:
    """inject: takes the job and the metadata server. line: part of the expected log line.
    code: expected exit code. dead: processes that can neither log nor exit on their own."""

    name: str
    inject: Callable[[Any, "Metadata"], None]
    line: str
    code: int
    dead: tuple[int, ...] = ()
    deadlines: dict[str, float] = dataclasses.field(default_factory=dict)


def to(number: signal.Signals, process: int) -> Callable[[Any, "Metadata"], None]:
    return lambda job, metadata: job.send(number, process)


def notice(job: Any, metadata: "Metadata") -> None:
    metadata.notice = "TERMINATE_ON_HOST_MAINTENANCE"


FAULTS = (
    Fault("SIGTERM to process 1", to(signal.SIGTERM, 1), "saved step", 42),
    Fault("maintenance notice (polled every 5 s)", notice, "saved step", 42),
    Fault("SIGKILL of process 1", to(signal.SIGKILL, 1), "is lost", 43, (1,)),
    Fault("SIGKILL of process 0", to(signal.SIGKILL, 0), "is lost", 43, (0,)),
    Fault(
        "SIGSTOP of process 1",
        to(signal.SIGSTOP, 1),
        "is lost",
        43,
        (1,),
        {"peer": PEER},
    ),
    Fault(
        "process 1 hangs in Python",
        to(signal.SIGUSR1, 1),
        "hangs",
        43,
        (),
        {"step": STEP, "data": STEP},
    ),
)


class Metadata:
    """A metadata server on loopback."""

    def __init__(self) -> None:
        outer, self.notice = self, "NONE"

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                value = outer.notice if "maintenance" in self.path else "FALSE"
                self.send_response(200)
                self.end_headers()
                self.wfile.write(value.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--part", choices=("all", "faults", "costs"), default="all")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions of each fault")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    print(harness.machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["BERT_JAX_CACHE"] = str(folder / "cache")
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "compiled")
        os.environ["JAX_PLATFORMS"] = "cpu"
        if options.part in ("all", "faults"):
            faults(folder, options.rounds)
        if options.part in ("all", "costs"):
            costs(folder)


def faults(folder: Path, rounds: int) -> None:
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(HANG)
    head = (
        f"{'fault':<40}{'deadlines':<28}{'log line s':>16}{'last exit s':>16}{'lost':>12}{'n':>3}"
    )
    print(f"\nmedian (max); a checkpoint every {EVERY} steps\n{head}")
    starts = []
    for fault in FAULTS:
        lines, ends, lost = [], [], []
        for number in range(rounds):
            workdir = folder / f"{fault.name} {number}"
            line, end, gone, start = once(fault, workdir, folder)
            lines.append(line)
            ends.append(end)
            lost.append(gone)
            starts.append(start)
        setting = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in fault.deadlines.items())
        columns = "".join(
            f"{f'{statistics.median(v):.{digits}f} ({max(v):.{digits}f})':>{width}}"
            for v, digits, width in ((lines, 1, 16), (ends, 1, 16), (lost, 0, 12))
        )
        harness.record(fault=fault.name, line=lines, end=ends, lost=lost)
        print(f"{fault.name:<40}{setting:<28}{columns}{rounds:>3}", flush=True)
    print(
        f"\nfrom the command to the first step, two processes, with a warm compilation cache: "
        f"{statistics.median(starts[1:]):.1f} s ({max(starts[1:]):.1f} s), n={len(starts) - 1}"
    )


def once(fault: Fault, workdir: Path, folder: Path) -> tuple[float, float, int, float]:
    """Returns seconds to the log line and last exit, lost steps, seconds to the first step."""
    from corpus import small_store
    from processes import Job, deep_config, newest_step
    from runs import complete_steps

    from bert_jax.data_pipeline.store.store import open_store

    store = folder / "store"
    config = deep_config(
        open_store(store) if store.exists() else small_store(store, documents=120), steps=100_000
    )
    config = dataclasses.replace(
        config,
        checkpoint=dataclasses.replace(config.checkpoint, every_steps=EVERY, keep=3),
        evaluation=dataclasses.replace(config.evaluation, every_steps=1000),
        deadlines=dataclasses.replace(config.deadlines, **fault.deadlines),
    )
    with serving() as metadata:
        path = os.pathsep.join((str(folder / "hook"), os.environ.get("PYTHONPATH", "")))
        env = {"GCE_METADATA_HOST": metadata.address, "PYTHONPATH": path}
        began = time.monotonic()
        with Job(config, workdir, folder, processes=2, devices=2, env=env) as job:
            job.wait_for(lambda: newest_step(workdir) > 0, "a step")
            started = time.monotonic() - began
            wanted = EVERY * 2 + random.randrange(EVERY)
            job.wait_for(lambda: newest_step(workdir) >= wanted, f"step {wanted}")
            fault.inject(job, metadata)
            injected = time.monotonic()
            alive = [p for i, p in enumerate(job.processes) if i not in fault.dead]
            logged = None
            while any(p.popen.poll() is None for p in alive):
                if logged is None and any(fault.line in p.said() for p in alive):
                    logged = time.monotonic() - injected
                if time.monotonic() > injected + 120:
                    raise SystemExit(f"{fault.name}: still running after 120 s\n{job.said()}")
                time.sleep(0.02)
            ended = time.monotonic() - injected
            codes = [p.popen.returncode for p in alive]
            if any(code != fault.code for code in codes) or fault.line not in job.said():
                raise SystemExit(f"{fault.name}: exit codes {codes}\n{job.said()}")
    done = newest_step(workdir)
    return ended if logged is None else logged, ended, done - complete_steps(workdir)[-1], started


@contextmanager
def serving() -> Iterator[Metadata]:
    metadata = Metadata()
    try:
        yield metadata
    finally:
        metadata.close()


def costs(folder: Path) -> None:
    """Times steps and saves: four layers, hidden size 256, vocabulary of 30,522."""
    print("\n4 layers, width 256, vocabulary 30,522, 16 rows of 128 tokens; seconds, median (max)")
    print(f"{'':<58}{'step':>16}{'save blocks':>16}")
    for devices in (1, 4):
        for name, distributed, every in (
            ("in-process collectives, no checkpoint", False, 10_000),
            ("gloo, no checkpoint", True, 10_000),
            ("gloo, a checkpoint every 5 steps", True, 5),
        ):
            steps, saves = measure(folder, devices, distributed, every)
            title = f"{name}, {devices} device{'s' * (devices > 1)}"
            harness.record(cost=title, steps=steps, saves=saves)
            print(f"{title:<58}{both(steps):>16}{both(saves):>16}", flush=True)


def both(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({max(values):.3f})" if values else ""


def measure(
    folder: Path, devices: int, distributed: bool, every: int
) -> tuple[list[float], list[float]]:
    """Returns seconds of each step, and seconds that each save but the last blocked the loop."""
    from corpus import small_store
    from processes import config_file

    from bert_jax.config.config_files import load
    from bert_jax.data_pipeline.store.store import open_store
    from bert_jax.metrics import run_records as metrics
    from bert_jax.workdir.layout import Workdir

    store = folder / "costs"
    opened = open_store(store) if store.exists() else small_store(store, documents=120)
    config = load("wiki_books_small")
    model = dataclasses.replace(
        config.model, vocab_size=opened.vocab_size, pad_vocab_to_multiple_of=30522
    )
    config = dataclasses.replace(
        config,
        model=model,
        data=dataclasses.replace(config.data, store=str(store)),
        phases=(dataclasses.replace(config.phases[0], steps=26, batch_size=16),),
        log_every_steps=1,
        checkpoint=dataclasses.replace(config.checkpoint, every_steps=every),
        evaluation=dataclasses.replace(config.evaluation, every_steps=10_000, batches=1),
    )
    workdir = folder / f"costs {devices} {distributed} {every}"
    path = config_file(config, folder / "costs.py")
    if distributed:
        words = ["-m", "bert_jax", "pretrain", f"--config={path}", f"--workdir={workdir}"]
        words.append(f"--cpu_devices={devices}")
    else:
        words = [__file__, "within", str(path), str(workdir), str(devices)]
    subprocess.run([sys.executable, *words], check=True, capture_output=True, timeout=300)
    records = list(metrics.records(Workdir.open(workdir).metrics))
    steps = [r["step_seconds"] for r in records if r["kind"] == "train"][4:-1]
    spent = [r["seconds"]["save"] for r in records if r["kind"] == "goodput"]
    saves = [b - a for a, b in itertools.pairwise(spent) if b > a]
    return steps, saves[:-1] if every < 26 else []


def within(given: str, workdir: str, devices: str) -> None:
    """Trains as a user's own program would: without `jax.distributed`."""
    from bert_jax.config.schema import Config
    from bert_jax.config.serialization import from_dict
    from bert_jax.runtime import cpu

    values = runpy.run_path(given)["get_config"]().to_dict()
    cpu.use_cpu_devices(int(devices))
    from bert_jax.training.loop import pretrain

    pretrain(from_dict(values, Config), workdir)


if __name__ == "__main__":
    if sys.argv[1:2] == ["within"]:
        within(*sys.argv[2:])
    else:
        main()
