"""`bert-jax doctor`: what this machine has, and what would fail."""

import dataclasses
from collections.abc import Sequence

from absl import flags

from bert_jax.commands.command import Command
from bert_jax.commands.paths import define_input
from bert_jax.exit_codes import FAILED


def _define_doctor(values: flags.FlagValues, words: Sequence[str]) -> None:
    define_input(values, "workdir", "folder of a run to be, which must be writable")
    define_input(values, "store", "token store that must be complete")
    flags.DEFINE_bool("json", False, "print one JSON object", flag_values=values)


def _run_doctor(values: flags.FlagValues, words: Sequence[str]) -> int | None:
    from bert_jax.reporting import doctor
    from bert_jax.runtime.log import plain

    findings, table = [], doctor.rows(values.workdir, values.store)
    width = max(len(row.check.name) for row in table)
    for finding in doctor.examine(table):
        findings.append(finding)
        if not values.json:  # as they come: some wait for a program
            print(
                plain(f"{finding.check:<{width}}  {finding.state:<6}  {finding.line}"), flush=True
            )
    failed = [finding.check for finding in findings if finding.state == doctor.FAILED]
    if values.json:
        import json

        print(json.dumps({"ok": not failed, "checks": [dataclasses.asdict(f) for f in findings]}))
    elif failed:
        print(f"a run would fail: {', '.join(failed)}")
    return FAILED if failed else None


COMMANDS = {
    "doctor": Command(
        "show what this machine has, and what would fail in a run or a launch",
        "bert-jax doctor",
        _define_doctor,
        _run_doctor,
        takes_modules=False,
    ),
}
