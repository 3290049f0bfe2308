"""`make audit` with a pip-audit that answers what a test wants: no service is asked here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

AUDIT = Path(__file__).resolve().parents[2] / ".ci" / "audit.py"
BAD = {"name": "jinja2", "version": "2.4.1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.5"]}]}
CLEAN = {"name": "jax", "version": "0.10.2", "vulns": []}
UNKNOWN = {"name": "jax", "skip_reason": "Dependency not found on PyPI"}
HIT = {"name": "numpy", "version": "2.4.6", "vulns": [{"id": "PYSEC-9", "fix_versions": []}]}


def audit(folder: Path, answers: dict[str, object]) -> tuple[int, str]:
    """Exit code and output. answers: "SERVICE bad" for the famous release, "SERVICE" for the locks;
    a text is an error, no answer an unreachable service."""
    tool = folder / "pip-audit"
    tool.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        f"answers = json.loads({json.dumps(json.dumps(answers))})\n"
        "service = next(w.split('=')[1] for w in sys.argv if 'service=' in w)\n"
        "key = service + (' bad' if sys.argv[-1].endswith('bad.txt') else '')\n"
        "answer = answers.get(key, 'Traceback\\n  ...\\nConnectionError: no route')\n"
        "if isinstance(answer, str):\n"
        "    sys.exit(answer)\n"
        "print(json.dumps({'dependencies': answer, 'fixes': []}))\n"
        "sys.exit(any('vulns' in d and d['vulns'] for d in answer))\n"
    )
    tool.chmod(0o755)
    done = subprocess.run(
        [sys.executable, AUDIT],
        env={**os.environ, "PIP_AUDIT": str(tool)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({}, "pypi: ConnectionError: no route; osv: ConnectionError: no route"),
        # A mirror of files: passes over what it does not know, and calls that no vulnerability.
        ({"pypi bad": [UNKNOWN], "pypi": [CLEAN]}, "pypi: it has no data on jinja2==2.4.1"),
        ({"pypi bad": [BAD], "pypi": "gone meanwhile"}, "gone meanwhile"),
    ],
)
@pytest.mark.processes
def test_where_no_service_knows_it_says_so_and_passes(answers, said, tmp_path) -> None:
    code, out = audit(tmp_path, answers)
    assert code == 0
    assert out.startswith("audit: not possible here: ")
    assert said in out
    assert out.count("\n") == 1


@pytest.mark.parametrize("service", ["pypi", "osv"])
@pytest.mark.processes
def test_a_vulnerability_fails_and_is_named(service, tmp_path) -> None:
    code, out = audit(tmp_path, {f"{service} bad": [BAD], service: [CLEAN, HIT]})
    assert code == 1
    assert "numpy 2.4.6: PYSEC-9, fixed in no release yet" in out
    assert f"audit: 2 packages checked with {service}, 1 with vulnerabilities" in out


@pytest.mark.processes
def test_packages_that_the_service_does_not_know_are_named(tmp_path) -> None:
    clean = {**CLEAN, "name": "optax"}
    code, out = audit(tmp_path, {"pypi bad": [BAD], "pypi": [clean, UNKNOWN]})
    assert code == 0
    assert "not known to pypi: jax" in out
    assert "audit: 1 packages checked with pypi, 0 with vulnerabilities" in out
