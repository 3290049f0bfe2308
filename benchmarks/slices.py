"""What a run would take on a slice of every TPU generation, by the compiler; needs no TPU.

    make .venv/libtpu                                       # the compiler
    python benchmarks/slices.py                             # base and large, 16 chips each
    python benchmarks/slices.py --models=large --slices=v5e-64,v6e-64
    python benchmarks/slices.py --config.compute.unroll_layers=1  # layers in a loop

Prints a table in Markdown, a row when it is known. Each config is compiled as it is, its global
batch the same everywhere; where it does not fit, with the first change that `bert-jax compile`
advises and that does, which the row names. A row takes minutes; where all layers are laid out
(`compute.unroll_layers=0`) more of them, above all for v5p, v6e and TPU7x.

Memory is what the compiler allots. Everything else is an estimate of the compiler's, or follows
from one: nothing was run.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bert_jax.config.files import shipped
from bert_jax.config.serialization import nearest
from bert_jax.errors import UserError
from bert_jax.launch.hardware import slices

ROOT = Path(__file__).resolve().parent.parent
# Sixteen chips each. Names count cores, but of v5e and v6e chips.
SLICES = ("v2-32", "v3-32", "v4-32", "v5e-16", "v5p-32", "v6e-16", "tpu7x-32")
GIB = 2**30
COLUMNS = (
    "config", "slice", "chips", "GiB", "of", "step, ms", "tokens/s a chip", "MFU", "hours",
    "chip-hours", "with",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], epilog="--config.KEY=VALUE overrides a value"
    )
    parser.add_argument("--models", default="base,large", help="shipped configs")
    parser.add_argument("--slices", default=",".join(SLICES), help="by default %(default)s")
    options, overrides = parser.parse_known_args()
    if unknown := [word for word in overrides if not word.startswith("--config.")]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        models, chosen = chosen_models(options.models), chosen_slices(options.slices)
        find_compiler()
    except UserError as error:
        parser.exit(1, f"error: {error}\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    failed = False
    for model in models:
        for of in chosen:
            try:
                for row in rows(model, of, overrides):
                    print(f"| {' | '.join(row)} |", flush=True)
            except UserError as error:
                failed = True
                print(f"error: {model} on {of.name}: {error}", file=sys.stderr)
    print(
        "\nGiB are of a device as the compiler allots them and may allot; tokens count padding; "
        "step, tokens/s, MFU and\nhours are the compiler's estimates, and nothing ran."
    )
    sys.exit(int(failed))


def chosen_models(said: str) -> list[str]:
    names = [name for name in said.split(",") if name]
    for name in names:
        if name not in shipped():
            raise UserError(
                f"--models={said}: no shipped config {name!r}{nearest(name, shipped())}"
            )
    return names


def chosen_slices(said: str) -> list[slices.Slice]:
    try:
        return [slices.find(name) for name in said.split(",") if name]
    except ValueError as error:
        raise UserError(f"--slices: {error}") from None


def find_compiler() -> None:
    """Raises UserError where there is none."""
    from bert_jax.aot import topology

    local = ROOT / ".venv/libtpu/libtpu/libtpu.so"
    if local.exists():
        os.environ.setdefault(topology.COPY, str(local))
    topology.library()


def rows(model: str, of: slices.Slice, overrides: list[str]) -> list[list[str]]:
    """The cells of each phase.

    Raises:
        UserError: the config and the slice do not go together.
    """
    flags: list[str] = []
    report = compile_for(model, of, overrides)
    if not report["fits"]:
        flags = advised(report)
        report = compile_for(model, of, [*overrides, *flags]) if flags else report
    return [cells(report, phase, of, flags) for phase in report["phases"]]


def compile_for(model: str, of: slices.Slice, words: list[str]) -> dict[str, Any]:
    """What `bert-jax compile --json` says, which exits with 1 where something does not fit."""
    slice_axis = [f"--config.mesh.slice={of.count}"] if of.count > 1 else []
    done = subprocess.run(
        [sys.executable, "-m", "bert_jax", "compile", f"--config={model}", "--json",
         f"--topology={of.name}", *slice_axis, *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not done.stdout:
        said = (done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(said.removeprefix("error: "))
    return json.loads(done.stdout)


def advised(report: dict[str, Any]) -> list[str]:
    """The first advice for each phase that does not fit, as flags."""
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


def number(value: float | None, form: str) -> str:
    """A question mark where it is not known."""
    return "?" if value is None else format(value, form)


if __name__ == "__main__":
    main()
