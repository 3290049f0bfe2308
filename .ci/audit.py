"""Checks the locked packages for known vulnerabilities, if a vulnerability service is reachable.

    python .ci/audit.py [options of pip-audit, such as --ignore-vuln=PYSEC-2024-1]

pip-audit runs in .venv-audit. It skips packages that its service does not know and then reports no
vulnerabilities; an index that only mirrors files knows none. So a service is used only if it knows
the vulnerabilities of a notoriously vulnerable release. Exits with 1 if a locked package has one,
and with 0 and a message if no service is usable. $PIP_AUDIT is the path of another pip-audit.
"""

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-audit"
PIP_AUDIT = "pip-audit==2.10.1"
KNOWN_BAD = "jinja2==2.4.1"  # CVE-2014-1402 and several later ones
SERVICES = ("pypi", "osv")
# Timeouts in seconds; in total under two minutes.
INSTALL, ASK, AUDIT = 50, 10, 45


def run(command: list[str], seconds: int) -> tuple[str, str]:
    """Returns a program's standard output, and the reason if it is empty."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return "", f"timed out after {seconds} s"
    except OSError as error:
        return "", f"{command[0]}: {error.strerror}"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return done.stdout, lines[-1].strip() if lines else f"exit code {done.returncode}"


def ask(
    tool: str, service: str, requirements: list[Path], seconds: int, options: list[str]
) -> tuple[list[dict], str]:
    """Returns a service's result for each package in the files, and the reason if there is none."""
    files = [word for file in requirements for word in ("-r", str(file))]
    flags = ["--no-deps", "--disable-pip", "--format=json", "--progress-spinner=off"]
    timeout = f"--timeout={ASK}"
    out, why = run(
        [tool, f"--vulnerability-service={service}", *flags, timeout, *options, *files], seconds
    )
    try:
        return json.loads(out)["dependencies"], why
    except (ValueError, KeyError):
        return [], why


def install() -> tuple[str, str]:
    """Returns the path of pip-audit, or why it is not available."""
    tool, stamp = ENVIRONMENT / "bin" / "pip-audit", ENVIRONMENT / PIP_AUDIT
    if stamp.exists():
        return str(tool), ""
    try:
        venv.create(ENVIRONMENT, clear=True, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return "", f"cannot create {ENVIRONMENT} ({error})"
    python = str(ENVIRONMENT / "bin" / "python")
    quiet = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    _, why = run([python, "-m", "pip", "install", *quiet, PIP_AUDIT], INSTALL)
    if not tool.exists():
        return "", f"cannot install {PIP_AUDIT} ({why})"
    stamp.touch()
    return str(tool), ""


def find_service(tool: str) -> tuple[str, str]:
    """Returns a service that knows KNOWN_BAD's vulnerabilities, or why none is usable."""
    reasons = []
    with tempfile.TemporaryDirectory() as folder:
        bad = Path(folder) / "bad.txt"
        bad.write_text(f"{KNOWN_BAD}\n")
        for service in SERVICES:
            found, why = ask(tool, service, [bad], ASK, [])
            if found and found[0].get("vulns"):
                return service, ""
            reason = f"it has no data on {KNOWN_BAD}" if found else why
            reasons.append(f"{service}: {reason}")
    return "", "; ".join(reasons)


def main(options: list[str]) -> int:
    tool, why = os.environ.get("PIP_AUDIT", ""), ""
    if not tool:
        tool, why = install()
    service = ""
    if tool:
        service, why = find_service(tool)
    packages: list[dict] = []
    if service:
        locks = sorted((ROOT / "requirements").glob("*.txt"))
        packages, why = ask(tool, service, locks, AUDIT, options)
    if not packages:
        print(f"audit: not possible here: {why}")
        return 0
    skipped = sorted({p["name"] for p in packages if "skip_reason" in p})
    bad = {p["name"]: p for p in packages if p.get("vulns")}
    for name, package in sorted(bad.items()):
        for one in package["vulns"]:
            fixed = ", ".join(one.get("fix_versions", [])) or "no release yet"
            print(f"{name} {package['version']}: {one['id']}, fixed in {fixed}")
    if skipped:
        print(f"not known to {service}: {', '.join(skipped)}")
    checked = len({p["name"] for p in packages}) - len(skipped)
    print(f"audit: {checked} packages checked with {service}, {len(bad)} with vulnerabilities")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
