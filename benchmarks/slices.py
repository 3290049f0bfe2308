"""Estimates a run's memory and time on a slice of every TPU generation; needs no TPU.

    make .venv/libtpu                                       # the compiler
    python benchmarks/slices.py                             # base and large, 16 chips each
    python benchmarks/slices.py --models=large --slices=v5e-64,v6e-64
    python benchmarks/slices.py --config.compute.unroll_layers=1  # layers in a loop

Prints a Markdown table, row by row. Each config is compiled unchanged, with the same global batch
everywhere; if it does not fit, with the first change that `bert-jax compile` suggests, named in the
row. A row takes minutes, and longer if all layers are unrolled (`compute.unroll_layers=0`), above
all for v5p, v6e and TPU7x.

Memory is what the compiler allocates. Everything else is the compiler's estimate, or derived from
one: nothing ran.
"""

import json
import subprocess
import sys
from typing import Any

import harness

from bert_jax.config.config_files import shipped
from bert_jax.errors import UserError, nearest
from bert_jax.hardware import slices

# Sixteen chips each. Names count cores, except v5e and v6e names, which count chips.
SLICES = ("v2-32", "v3-32", "v4-32", "v5e-16", "v5p-32", "v6e-16", "tpu7x-32")
GIB = 2**30
COLUMNS = (
    "config", "slice", "chips", "GiB", "of", "step, ms", "tokens/s per chip", "MFU", "hours",
    "chip-hours", "flags",
)  # fmt: skip


def main() -> None:
    parser = harness.parser(__doc__, epilog="--config.KEY=VALUE overrides a config value")
    parser.add_argument("--models", default="base,large", help="shipped configs")
    parser.add_argument("--slices", default=",".join(SLICES), help="default: %(default)s")
    options, overrides = parser.parse_known_args()
    if unknown := [word for word in overrides if not word.startswith("--config.")]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    with harness.errors_are_one_line():
        models, chosen = chosen_models(options.models), chosen_slices(options.slices)
        harness.find_libtpu()
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    failed = False
    for model in models:
        for of in chosen:
            try:
                for row in rows(model, of, overrides):
                    harness.record(**dict(zip(COLUMNS, row, strict=True)))
                    print(f"| {' | '.join(row)} |", flush=True)
            except UserError as error:
                failed = True
                print(f"error: {model} on {of.name}: {error}", file=sys.stderr)
    print(
        "\nGiB are what the compiler allocates per device, and its limit; tokens include padding; "
        "step, tokens/s, MFU and\nhours are the compiler's estimates: nothing ran."
    )
    sys.exit(int(failed))


def chosen_models(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in shipped():
            raise UserError(
                f"--models={text}: no shipped config {name!r}{nearest(name, shipped())}"
            )
    return names


def chosen_slices(text: str) -> list[slices.Slice]:
    try:
        return [slices.find(name) for name in text.split(",") if name]
    except ValueError as error:
        raise UserError(f"--slices: {error}") from None


def rows(model: str, of: slices.Slice, overrides: list[str]) -> list[list[str]]:
    """Returns the table cells of each phase.

    Raises:
        UserError: the config cannot run on the slice.
    """
    flags: list[str] = []
    report = compile_for(model, of, overrides)
    if not report["fits"]:
        flags = advised(report)
        report = compile_for(model, of, [*overrides, *flags]) if flags else report
    return [cells(report, phase, of, flags) for phase in report["phases"]]


def compile_for(model: str, of: slices.Slice, words: list[str]) -> dict[str, Any]:
    """Returns the report of `bert-jax compile --json`; exit code 1 means that it does not fit."""
    slice_axis = [f"--config.mesh.slice={of.count}"] if of.count > 1 else []
    done = subprocess.run(
        [sys.executable, "-m", "bert_jax", "compile", f"--config={model}", "--json",
         f"--topology={of.name}", *slice_axis, *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not done.stdout:
        message = (done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(message.removeprefix("error: "))
    return json.loads(done.stdout)


def advised(report: dict[str, Any]) -> list[str]:
    """Returns the first suggested change for each phase that does not fit, as flags."""
    changes: dict[str, Any] = {}
    for phase in report["phases"]:
        if phase["remedies"]:
            changes |= phase["remedies"][0]["changes"]
    return [f"--config.{key}={value}" for key, value in changes.items()]


def cells(
    report: dict[str, Any], phase: dict[str, Any], of: slices.Slice, flags: list[str]
) -> list[str]:
    several = len(report["phases"]) > 1
    memory, config = phase["memory"], phase["config"]
    speed, hours = phase["estimated_tokens_per_second"], phase["estimated_hours"]
    seconds, used = phase["estimated_step_seconds"], phase["estimated_utilization"]
    length = config["row_length"] or config["seq_length"]
    shape = f", {config['batch_size']:,} rows of {length}" if several else ""
    return [
        f"{report['config']}{shape}",
        of.name,
        f"{of.chips:,}",
        f"{memory['total'] / GIB:,.2f}",
        f"{memory['limit'] / GIB:,.2f}" if memory["limit"] else "?",
        number(seconds and 1e3 * seconds, ".2f") if phase["fits"] else "does not fit",
        number(speed and speed / of.chips, ",.0f"),
        number(used, ".1%"),
        number(hours, ",.1f"),
        number(hours and hours * of.chips, ",.0f"),
        " ".join(f"`{flag}`" for flag in flags),
    ]


def number(value: float | None, spec: str) -> str:
    """Formats a value, "?" if unknown."""
    return "?" if value is None else format(value, spec)


if __name__ == "__main__":
    main()
