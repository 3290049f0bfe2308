"""Faults put into the product one at a time: does the default test suite notice?

    python tests/mutants.py                      # all: at most 75 minutes on two cores
    python tests/mutants.py --only=hand-03,drawn-11
    python tests/mutants.py --list               # and which tests of each run first
    python tests/mutants.py --draw=1 --count=40  # faults as mutant_drawing.py draws them

The faults are those of mutants.txt: by hand what would do harm, and drawn small changes of syntax.
Each worker has a copy of the tree. With a fault in it, it runs first the tests of the fault's room,
then the rest, to the first failure, 90 s in all. A test that fails without the fault too does not
count. Exit code 1 where fewer than 95 % of those by hand or 85 % of those drawn are caught, or one
survives for which the list has no line why nobody could notice.
"""

import argparse
import contextlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().with_name("support")))

from mutant_drawing import draw
from mutant_list import Fault, MutantError, ordered_tests, read

ROOT = Path(__file__).resolve().parent.parent
WANTED = {"by hand": 0.95, "drawn": 0.85}
# What may become of a fault.
CAUGHT, SURVIVED, OVER_TIME = "caught", "survived", "over time"
EXPLAINED, UNSURE, NOT_RUN = "explained", "unsure", "not run"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?(?:\[.*?\])?)(?: - .*)?$", re.MULTILINE)
_NONE_CHOSEN = 5  # pytest: all tests of these files are left out by default
_MARK = "BERT_JAX_MUTANTS"  # in the environment of everything that is started here


@dataclass(frozen=True)
class Result:
    fault: Fault
    verdict: str
    by: str = ""  # the test that noticed
    seconds: float = 0.0


class Copy:
    """A copy of the tree, in which one fault after the other is tried."""

    # Of all copies: a test of which it is known whether it passes without a fault.
    _passes: dict[str, bool]

    def __init__(self, folder: Path, passes: dict[str, bool]):
        self._root, self._scratch, self._passes = folder / "tree", folder / "tmp", passes
        self._id = f"{os.getpid()}-{folder.name}"
        self._written = int(time.time())
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout
        for name in filter(None, names.decode().split("\0")):
            if (ROOT / name).exists():
                (self._root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self._root / name, follow_symlinks=False)
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "PYTHON"))},
            "PYTHONPATH": str(self._root),
            "TMPDIR": str(self._scratch),
            "CI": "true",  # the same examples of a property each time
            _MARK: self._id,
        }
        self._check_imports()

    def _check_imports(self) -> None:
        """MutantError where something else than the copy would be imported."""
        self._scratch.mkdir()
        script = "import bert_jax; print(bert_jax.__path__[0])"
        said = subprocess.run(
            [sys.executable, "-c", script],
            cwd=self._scratch, env=self._environment, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        if Path(said.strip()).parent != self._root:
            raise MutantError(f"{said.strip()} would be tested, not its copy")

    def try_out(self, fault: Fault, seconds: float) -> Result:
        """What the tests say to a fault."""
        began = time.monotonic()
        file = self._root / fault.path
        text = file.read_text(encoding="utf-8")
        parts = ordered_tests(ROOT, fault.path)
        self._write(file, fault.put_into(text))
        try:
            verdict, by = self._judge(parts, began + seconds)
        finally:
            self._write(file, text)
        took = time.monotonic() - began
        if verdict == CAUGHT and not self._passes_without(by):
            verdict = UNSURE
        if verdict in (SURVIVED, OVER_TIME) and fault.why:
            verdict = EXPLAINED
        return Result(fault, verdict, by, took)

    def _judge(self, parts: tuple[list[str], list[str]], deadline: float) -> tuple[str, str]:
        for tests in filter(None, parts):
            code, said = self._pytest(tests, deadline)
            if code is None:
                return OVER_TIME, ""
            if code not in (0, _NONE_CHOSEN):
                failed = _FAILED.search(said)
                return CAUGHT, failed[1] if failed else f"pytest ends with {code}"
        return SURVIVED, ""

    def _passes_without(self, test: str) -> bool:
        """Whether a test that noticed a fault passes where there is none."""
        if not test.startswith("tests/"):
            return True
        if test not in self._passes:
            # A file that cannot be imported with the fault can without it.
            options = [] if "::" in test else ["--collect-only"]
            code, _ = self._pytest([test, *options], time.monotonic() + 180)
            self._passes[test] = code == 0
        return self._passes[test]

    def _write(self, file: Path, text: str) -> None:
        """Every time with another second: bytecode goes by the time of its file."""
        file.write_text(text, encoding="utf-8")
        self._written += 1
        os.utime(file, (self._written, self._written))

    def _pytest(self, words: list[str], deadline: float) -> tuple[int | None, str]:
        """Exit code, None where the time was over, and output of a run to the first failure."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(exist_ok=True)
        options = ["-x", "--tb=no", "-rfE", "-p", "no:cacheprovider", f"--rootdir={self._root}"]
        log = self._scratch / "pytest.log"  # a pipe would stay open as long as any process lives
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *options, *words],
                cwd=self._root, env=self._environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            code = process.wait(max(deadline - time.monotonic(), 0.1))
            return code, log.read_text(encoding="utf-8", errors="replace")
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            self.kill()
            process.wait()

    def kill(self) -> None:
        """Ends what was started here, and what that has started, whatever its group."""
        mark = f"{_MARK}={self._id}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)


def run(faults: list[Fault], workers: int, seconds: float, minutes: float) -> list[Result]:
    """What becomes of each fault; says so as it goes."""
    began, results = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="mutants", ignore_cleanup_errors=True) as folder:
        passes: dict[str, bool] = {}
        copies = [Copy(Path(folder) / f"copy-{i}", passes) for i in range(workers)]
        free: queue.Queue[Copy] = queue.Queue()
        for copy in copies:
            free.put(copy)
        stop = threading.Event()

        def one(fault: Fault) -> Result:
            if stop.is_set() or time.monotonic() - began > 60 * minutes - seconds:
                return Result(fault, NOT_RUN)
            copy = free.get()
            try:
                return copy.try_out(fault, seconds)
            finally:
                free.put(copy)

        with ThreadPoolExecutor(workers) as pool:
            try:
                for future in as_completed([pool.submit(one, fault) for fault in faults]):
                    results.append(future.result())
                    _say(results, len(faults), time.monotonic() - began)
            finally:
                stop.set()
                for copy in copies:
                    copy.kill()
    return sorted(results, key=lambda result: faults.index(result.fault))


def _say(results: list[Result], count: int, seconds: float) -> None:
    newest, done = results[-1], len(results)
    left = seconds / done * (count - done) / 60
    by = f" by {newest.by}" if newest.by else ""
    print(
        f"{done}/{count} {newest.fault.name} {newest.verdict}{by}, {newest.seconds:.0f} s; "
        f"{60 * done / seconds:.1f} a minute, {left:.0f} min left",
        flush=True,
    )


def summary(results: list[Result]) -> tuple[list[str], bool]:
    """The table, and whether enough was caught."""
    lines = [f"{'fault':<10}{'room':<26}{'verdict':<11}{'s':>4}  by"]
    for result in results:
        words = result.by or result.fault.why or f"{result.fault.path}: {result.fault.kind}"
        head = f"{result.fault.name:<10}{result.fault.room:<26}{result.verdict:<11}"
        lines.append(f"{head}{result.seconds:4.0f}  {words}")
    good = True
    for group, wanted in WANTED.items():
        those = [r.verdict for r in results if r.fault.is_drawn == (group == "drawn")]
        if not those:
            continue
        counts = Counter(those)
        share = counts[CAUGHT] / len(those)
        good &= share >= wanted
        said = ", ".join(f"{number} {verdict}" for verdict, number in counts.most_common())
        lines.append(f"{group}: {share:.0%} of {len(those)} caught (at least {wanted:.0%}); {said}")
    escaped = [r.fault.name for r in results if r.verdict not in (CAUGHT, EXPLAINED)]
    if escaped:
        lines.append(f"to be given a test or a line why: {', '.join(escaped)}")
    good &= all(r.verdict != SURVIVED for r in results)
    return lines, good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", help="names of faults, or how they begin: hand, drawn-1")
    parser.add_argument("--list", action="store_true", help="the faults and their first tests")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=90.0, help="for a fault")
    parser.add_argument("--minutes", type=float, default=75.0, help="in all")
    parser.add_argument("--draw", type=int, metavar="SEED", help="draws others")
    parser.add_argument("--count", type=int, default=40, help="how many are drawn")
    options = parser.parse_args()
    if options.draw is not None:
        print(*draw(ROOT, options.draw, options.count), sep="\n")
        return
    begins = tuple(options.only.split(",")) if options.only else ("",)
    try:
        faults = [fault for fault in read() if fault.name.startswith(begins)]
        if not faults:
            parser.error(f"there is no fault {options.only}")
        if options.list:
            for fault in faults:
                first = ", ".join(ordered_tests(ROOT, fault.path)[0][:3])
                print(f"{fault.name:<10}{fault.path}: {fault.kind} ({first}, …)")
            return
        for fault in faults:
            fault.put_into((ROOT / fault.path).read_text(encoding="utf-8"))
        results = run(faults, options.workers, options.seconds, options.minutes)
    except (MutantError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")
    lines, good = summary(results)
    print(*lines, sep="\n")
    sys.exit(not good)


if __name__ == "__main__":
    main()
