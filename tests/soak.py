"""A run that is disturbed again and again, and must end with the bits of one that never was.

    python tests/soak.py --kills=50                     # 50 faults; a few minutes on four cores
    python tests/soak.py --kills=50 --processes=1,2,4 --seed=1 --workdir=soak

Faults come at random moments, from the first line of a start to a save in progress: SIGKILL of one
process, SIGTERM, SIGSTOP (continued once the others have ended), and bits flipped in the newest
checkpoint while the run is down. Each restart has a random number of processes, with the same
devices in total. Exit code 1 where bits differ, a process hangs, an exit code or a line is not what
it should be, or a restart does not go on from the newest good checkpoint.
"""

import argparse
import dataclasses
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().with_name("support")))

from absl import logging
from corpus import small_store
from processes import Job, assert_same_bits, deep_config
from runs import complete_steps, list_quarantined

from bert_jax.config.schema import Config
from bert_jax.exit_codes import DONE, LOST, STOPPED
from bert_jax.metrics import run_records
from bert_jax.workdir.layout import Workdir

KINDS = {"SIGKILL": 6, "SIGTERM": 2, "SIGSTOP": 1, "bit flip": 1}  # how often, of ten
HANGS = 240.0  # seconds after which what should have ended is taken to hang
_LONG = 6 * 3600.0  # the same, for a whole run


class SoakError(Exception):
    """Something that was promised did not happen."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """One, and what it cost."""

    kind: str
    during: str  # "start", "steps": whether the attempt had trained yet
    processes: int
    seconds: float | None  # until the last process that was not hit had ended
    steps: int  # trained, to be trained again


class Soak:
    """The run under test."""

    def __init__(self, config: Config, folder: Path, counts: Sequence[int], seed: int):
        self._config, self._folder, self._counts = config, folder, counts
        self._random = random.Random(seed)
        self.workdir = folder / "disturbed"
        self.faults: list[Fault] = []
        self.attempts = 0
        self._flipped: int | None = None  # step
        self._started = 2.0  # seconds from a start to the first step, as last seen

    def run(self, faults: int) -> None:
        """Until it has finished.

        Raises:
            SoakError: something that was promised did not happen.
        """
        while True:
            hits = faults > len(self.faults)
            if self._attempt(faults - len(self.faults)) == DONE:
                break
            if not hits:
                raise SoakError("an attempt that nobody disturbed did not finish")
            if faults > len(self.faults):
                self._perhaps_flip()
        if faults > len(self.faults):
            raise SoakError(f"finished after {len(self.faults)} faults of {faults}")

    def _attempt(self, faults_left: int) -> int:
        """Starts the processes, disturbs them where a fault is left; DONE if the run finished."""
        self.attempts += 1
        count, before = self._random.choice(self._counts), self._starts()
        good = [step for step in complete_steps(self.workdir) if step != self._flipped]
        # A flipped bit may be one that nothing depends on.
        there = {self._flipped} & set(complete_steps(self.workdir))
        began = time.monotonic()
        with Job(self._config, self.workdir, self._folder, processes=count) as job:
            try:
                if not faults_left:
                    codes = job.codes(_LONG)
                    self._expect(codes == [DONE] * count, f"exit codes {codes} at the end")
                else:
                    codes = self._disturb(job, began, faults_left, good[-1] if good else 0)
            except BaseException:
                print(job.said(), flush=True)
                raise
        if len(starts := self._starts()) > len(before):
            expected = {good[-1] if good else 0, *there}
            self._expect(
                starts[-1] in expected, f"went on from step {starts[-1]}, not one of {expected}"
            )
        return DONE if codes == [DONE] * count else LOST

    def _disturb(self, job: Job, began: float, faults_left: int, first: int) -> list[int]:
        """Waits for a random moment, does it, waits for the end; the exit codes."""
        target = None
        if self._random.random() < 0.7:  # so many steps later that all faults find their place
            mean = (self._config.total_steps - first) / (faults_left + 1)
            target = first + self._random.randint(1, max(1, int(1.4 * mean)))
        trained = self._wait(job, began, target, first)
        codes = [p.popen.poll() for p in job.processes]
        if all(code is not None for code in codes):
            self._expect(codes == [DONE] * len(codes), f"exit codes {codes} of themselves")
            return codes
        kinds = {k: n for k, n in KINDS.items() if k != "bit flip"}
        if len(job.processes) == 1:
            del kinds["SIGSTOP"]  # nobody would notice
        (kind,) = self._random.choices(list(kinds), list(kinds.values()))
        hit = self._random.randrange(len(job.processes))
        struck = time.monotonic()
        job.send(signal.Signals[kind], hit)
        others = [p for index, p in enumerate(job.processes) if index != hit]
        for process in others if kind == "SIGSTOP" else job.processes:
            process.popen.wait(HANGS)
        seconds = time.monotonic() - struck if others or kind == "SIGTERM" else None
        if kind == "SIGSTOP":
            job.send(signal.SIGCONT, hit)
        codes = job.codes(HANGS)
        if codes == [DONE] * len(codes):
            return codes  # it had finished meanwhile
        self._check(job, kind, hit, codes)
        reached = max((r["step"] for r in self._records() if r["kind"] == "train"), default=0)
        kept = max(complete_steps(self.workdir), default=0)
        lost = max(reached - kept, 0) if trained else 0
        self._note(
            Fault(kind, "steps" if trained else "start", len(job.processes), seconds, lost),
            f"host-{hit} of {len(job.processes)}, exit codes {codes}, at step {reached}",
        )
        return codes

    def _wait(self, job: Job, began: float, target: int | None, first: int) -> bool:
        """Until the moment to disturb, or the end; whether this attempt has trained by then."""
        starts = len(self._starts())
        pause = self._random.random()
        latest = began + pause * 1.2 * self._started
        step, trained, looked = first, False, 0.0
        while any(p.popen.poll() is None for p in job.processes):
            now = time.monotonic()
            if now - looked > 0.1:
                looked = now
                if len(self._starts()) > starts:
                    after = self._since_start()
                    if after and not trained:
                        trained, self._started = True, now - began
                    step = max(after, default=first)
            if now - began > HANGS + _LONG * trained:
                raise SoakError("no first step in time")
            if target is None and now >= latest:
                break
            if target is not None and step >= target:
                time.sleep(0.2 * pause)  # anywhere between two steps, and into a save
                break
            time.sleep(0.01)
        return trained

    def _check(self, job: Job, kind: str, hit: int, codes: list[int]) -> None:
        """Exit codes and lines are what they should be."""
        others = [code for index, code in enumerate(codes) if index != hit]
        said = "".join(p.said() for i, p in enumerate(job.processes) if i != hit)
        allowed = {
            "SIGKILL": ({-signal.SIGKILL, LOST}, {LOST}),
            # Before Python listens, the signal ends the process at once.
            "SIGTERM": ({STOPPED, -signal.SIGTERM}, {STOPPED, LOST}),
            "SIGSTOP": ({LOST}, {LOST}),
        }[kind]
        self._expect(codes[hit] in allowed[0], f"{kind}: exit codes {codes}, hit host-{hit}")
        self._expect(set(others) <= allowed[1], f"{kind}: exit codes {codes}, hit host-{hit}")
        if others and kind != "SIGTERM":
            named = f"host-{hit} (process {hit})" in said or f"missing: process {hit}" in said
            named |= hit == 0 and "process 0" in said
            self._expect(named, f"{kind}: nobody named host-{hit}")

    def _perhaps_flip(self) -> None:
        """Now and then flips a bit in the newest checkpoint, where another good one is there."""
        steps = complete_steps(self.workdir)
        if self._flipped in steps or len(steps) < 2:
            return
        if self._random.random() > KINDS["bit flip"] / (sum(KINDS.values()) - KINDS["bit flip"]):
            return
        folder = Workdir.open(self.workdir).checkpoints / str(steps[-1])
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        file = self._random.choice([path for path in files if path.stat().st_size])
        content = bytearray(file.read_bytes())
        bit = self._random.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        file.write_bytes(content)
        self._flipped = steps[-1]
        where = f"bit {bit} of {file.relative_to(folder)} of step {steps[-1]}"
        self._note(Fault("bit flip", "down", 0, None, steps[-1] - steps[-2]), where)

    def _note(self, fault: Fault, where: str) -> None:
        self.faults.append(fault)
        seconds = "" if fault.seconds is None else f", noticed in {fault.seconds:.1f} s"
        print(
            f"{len(self.faults):3}. {fault.kind} ({fault.during}): {where}{seconds}, "
            f"{fault.steps} steps lost",
            flush=True,
        )

    def _records(self) -> list[dict[str, Any]]:
        return list(run_records.records(Workdir.open(self.workdir).metrics))

    def _starts(self) -> list[int]:
        """The steps that attempts went on from."""
        return [r["step"] for r in self._records() if r["kind"] == "start"]

    def _since_start(self) -> list[int]:
        """The steps trained since the newest start."""
        kinds = [(r["kind"], r["step"]) for r in self._records()]
        newest = max(i for i, (kind, _) in enumerate(kinds) if kind == "start")
        return [step for kind, step in kinds[newest:] if kind == "train"]

    @staticmethod
    def _expect(condition: bool, otherwise: str) -> None:
        if not condition:
            raise SoakError(otherwise)


def table(soak: Soak, verdict: str) -> str:
    """What happened, by kind of fault."""
    lines = [
        f"{'fault':<10}{'number':>8}{'noticed, s':>16}{'steps lost':>14}",
        f"{'':<10}{'':>8}{'median':>10}{'max':>6}{'median':>8}{'max':>6}",
    ]
    for kind in KINDS:
        those = [fault for fault in soak.faults if fault.kind == kind]
        if not those:
            continue
        seconds = [fault.seconds for fault in those if fault.seconds is not None]
        times = f"{statistics.median(seconds):10.1f}{max(seconds):6.1f}" if seconds else " " * 16
        steps = [fault.steps for fault in those]
        lines.append(
            f"{kind:<10}{len(those):8}{times}{statistics.median(steps):8.0f}{max(steps):6}"
        )
    starting = sum(fault.during == "start" for fault in soak.faults)
    moved = len(list_quarantined(soak.workdir))
    lines += [
        f"{len(soak.faults)} faults, {starting} of them before the first step of an attempt; "
        f"{soak.attempts - 1} restarts; {moved} checkpoints moved to quarantine",
        verdict,
    ]
    return "\n".join(lines)


def soak_config(folder: Path, steps: int) -> Config:
    """Four layers, dropout, packed rows; saved every 5 steps, evaluated every 25."""
    store = small_store(folder / "store", documents=120)
    config = deep_config(store, steps=steps)
    return dataclasses.replace(
        config,
        checkpoint=dataclasses.replace(config.checkpoint, every_steps=5, keep=3),
        evaluation=dataclasses.replace(config.evaluation, every_steps=25),
        deadlines=dataclasses.replace(config.deadlines, start=60.0, peer=10.0),
    )


def disturb(folder: Path, *, kills: int, counts: Sequence[int], seed: int, steps: int) -> Soak:
    """The undisturbed run and the other one; says how it went.

    Raises:
        SoakError, AssertionError: something that was promised did not happen.
    """
    config = soak_config(folder, steps)
    began = time.monotonic()
    with Job(config, folder / "undisturbed", folder, processes=counts[0]) as job:
        assert job.codes(_LONG) == [DONE] * counts[0]
    print(f"{steps} steps undisturbed in {time.monotonic() - began:.0f} s", flush=True)
    soak = Soak(config, folder, counts, seed)
    try:
        soak.run(kills)
        assert_same_bits(folder / "undisturbed", soak.workdir)
    except BaseException as error:
        print(table(soak, f"FAILED: {error}"), flush=True)
        raise
    took = time.monotonic() - began
    print(table(soak, f"all bits as undisturbed; {took:.0f} s in all"), flush=True)
    return soak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=50, help="faults")
    parser.add_argument("--processes", default="1,2,4", help="numbers to choose from at each start")
    parser.add_argument("--steps", type=int, help="of the run (default: 10 for each fault)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--workdir", type=Path, help="to keep what is left behind")
    options = parser.parse_args()
    logging.set_verbosity(logging.ERROR)  # Orbax misses a file that it does not need
    counts = [int(count) for count in options.processes.split(",")]
    folder = options.workdir or Path(tempfile.mkdtemp(prefix="soak"))
    print(f"seed {options.seed}, in {folder}", flush=True)
    # Programs compiled once serve all attempts, as in a real job.
    os.environ.setdefault("BERT_JAX_CACHE", str(folder / "cache"))
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "cache" / "compiled"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    try:
        disturb(
            folder,
            kills=options.kills,
            counts=counts,
            seed=options.seed,
            steps=options.steps or 10 * options.kills,
        )
    except (SoakError, AssertionError) as error:
        sys.exit(f"error: {error}")
    if not options.workdir:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
