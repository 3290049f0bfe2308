"""Everything that is done to bert-jax on purpose, in one table: cases by kind, none silent.

    python tests/attack.py                       # all kinds: more than an hour on two cores
    python tests/attack.py --only=stores,caches
    python tests/attack.py --kills=50            # faults of a run; soak.py has more options

A case fails where what is promised does not happen: something damaged is used, a traceback or a
signal ends a command, files of others change, bits differ. Exit code 1 where one does. Tests that
hold many cases say how many (`record_property("cases", …)`), any other test is one.
"""

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

HERE = Path(__file__).parent
KINDS = {
    "checkpoints": "test_fault_matrix test_corruption test_checkpoint_faults "
    "test_checkpoint_identity",
    "buckets": "test_remote_checkpoints test_remote",
    "stores": "test_store_corruption test_verify test_store_changes",
    "builds": "test_build_leftovers test_left_out test_formats",
    "caches": "test_machine_code test_digested_files test_compile_cache",
    "disks": "test_full_disk test_power_loss",
    "workdirs": "test_workdir test_workdir_lock",
    "text": "test_hostile_text test_hostile_names test_fuzz_tokenizers",
    "words": "test_fuzz test_security",
    "terminals": "test_streams test_stops test_launch_local",
}


def run_tests(names: str) -> tuple[int, int, int, float]:
    """Cases, failures, skipped tests and seconds of all tests in some files, the long ones too."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        files = [str(*HERE.glob(f"*/{name}.py")) for name in names.split()]
        options = ["-m", "not torch", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *files, *options], cwd=HERE.parent, check=False
        )
        if not report.exists():
            sys.exit(done.returncode)
        suite = ET.parse(report).getroot()[0]
    cases = 0
    for case in suite.iter("testcase"):
        if case.find("skipped") is None:
            said = [p.get("value") for p in case.iter("property") if p.get("name") == "cases"]
            cases += int(said[0] or 1) if said else 1
    failures = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    return cases, failures, int(suite.get("skipped", 0)), float(suite.get("time", 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", help=f"kinds, of: kills, {', '.join(KINDS)}")
    parser.add_argument("--kills", type=int, default=25, help="faults of the run under test")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else ["kills", *KINDS]
    unknown = set(chosen) - {"kills", *KINDS}
    if unknown:
        parser.error(f"there is no kind {unknown.pop()!r}")
    rows, failed = [], False
    for kind in chosen:
        if kind == "kills":
            words = [str(HERE / "soak.py"), f"--kills={options.kills}"]
            code = subprocess.run([sys.executable, *words], cwd=HERE.parent, check=False).returncode
            row = (options.kills, int(code != 0), 0, 0.0)
        else:
            row = run_tests(KINDS[kind])
        failed |= row[1] > 0
        rows.append(f"{kind:<12}{row[0]:>8,}{row[1]:>8}{row[2]:>9}{row[3]:>9.0f}")
    print(f"{'kind':<12}{'cases':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}", *rows, sep="\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
