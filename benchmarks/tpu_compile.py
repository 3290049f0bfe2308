"""Compiles the training step for TPUs and compares it with FlaxBertForPreTraining; needs no TPU.

    make .venv/libtpu .venv/peer                 # the compiler, and transformers 4.57 with Flax
    python benchmarks/tpu_compile.py                                    # everything: hours
    python benchmarks/tpu_compile.py --rows=1 --forms=0,1               # base at 128, minutes
    python benchmarks/tpu_compile.py --rows=1 --forms=1 --layers=2      # a quick check

Both sides train on the same shapes on four chips, data parallel: bfloat16, dropout on, AdamW, a
donated state. The peer is the unmodified transformers model, which computes vocabulary logits at
every position and drops the same attention probabilities in all heads and examples. Ours is the
step of `bert-jax pretrain`, with several unrollings of the layer loop (`compute.unroll_layers`).

The same compiler compiles each program in a separate process, one after the other. Cycles per step
are the compiler's estimate, multiplied by trip counts; nothing ran. It has no estimate for custom
kernels, random bits of `rbg` and collectives: these get a roofline estimate, reported separately.
"""

import argparse
import dataclasses
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import harness

from bert_jax.errors import UserError

SLOTS = {128: 20, 512: 77}  # masked positions per row; our head computes only these
GENERATORS = {"threefry": "threefry2x32", "rbg": "rbg"}
FORMS = {0: "unrolled", 1: "scanned"}  # of the loop over layers; n: n layers per iteration
GIB = 2**30

Job = dict[str, Any]  # a program to compile; later with its figures, or "error"


@dataclasses.dataclass(frozen=True)
class Row:
    """A model and its batch shape on a slice of four chips."""

    slice: str
    model: str  # a shipped config
    seq_length: int
    per_chip: int  # batch rows per chip

    def __str__(self) -> str:
        return f"{self.slice}, {self.model}, {self.per_chip} rows of {self.seq_length} per chip"


ROWS = (
    Row("v5e-4", "base", 128, 64),
    Row("v5e-4", "base", 512, 16),
    Row("v5e-4", "large", 128, 32),
    Row("v5e-4", "large", 512, 8),
    Row("v6e-4", "large", 512, 8),
)


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--rows", default="1,2,3,4,5", help="rows of the table, from 1")
    parser.add_argument("--forms", default="0,1,4", help="our compute.unroll_layers; 0 = all")
    parser.add_argument("--generators", default="threefry,rbg", help="of the peer; empty = none")
    parser.add_argument("--layers", type=int, help="number of layers, to shorten the models")
    parser.add_argument(
        "--peer",
        default=os.environ.get("BERT_JAX_PEER", str(harness.ROOT / ".venv/peer")),
        help="folder with transformers 4.57 (BERT_JAX_PEER)",
    )
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        do(json.loads(options.job))
        return
    try:
        jobs = plan(options)
        check(options)
    except (UserError, ValueError) as error:
        parser.exit(1, f"error: {error}\n")
    sys.exit(compare(jobs, options))


def plan(options: argparse.Namespace) -> list[tuple[Row, list[Job]]]:
    """Returns the programs to compile for each row, the peer first.

    Raises:
        ValueError: an option has an invalid value.
    """
    generators = harness.some_of("generators", options.generators, GENERATORS, least=0)
    rows = [ROWS[number - 1] for number in numbers("rows", options.rows, 1, len(ROWS))]
    forms = numbers("forms", options.forms, 0, 24)
    if options.layers is not None and options.layers < 1:
        raise ValueError(f"--layers={options.layers}: at least one layer is needed")
    sides: list[Job] = [{"generator": name} for name in generators]
    sides += [{"form": form} for form in forms]
    return [
        (row, [{"row": dataclasses.asdict(row), "layers": options.layers, **s} for s in sides])
        for row in rows
    ]


def numbers(flag: str, text: str, low: int, high: int) -> list[int]:
    """Parses "1,3"; raises ValueError for anything else or a number out of bounds."""
    given = [part.strip() for part in text.split(",") if part.strip()]
    for part in given:
        if not part.isdecimal() or not low <= int(part) <= high:
            raise ValueError(f"--{flag}={text}: give numbers from {low} to {high}, as in 1,2")
    return [int(part) for part in given]


def check(options: argparse.Namespace) -> None:
    """Locates the compiler (else UserError) and, if needed, the peer (else ValueError)."""
    harness.find_libtpu()
    if options.generators and not (Path(options.peer) / "transformers").is_dir():
        raise ValueError(
            f"--peer={options.peer}: no transformers there; `make .venv/peer` installs it, or give "
            "--generators= to skip the peer"
        )


def environment(peer: str | None) -> dict[str, str]:
    """Returns the environment of a compiling process. peer: folder of transformers, if needed."""
    # Drop the user's flags and caches: they would change the program or its compile time.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "JAX_", "LIBTPU_"))}
    path = os.pathsep.join(filter(None, [peer, os.environ.get("PYTHONPATH")]))
    return {**clean, "PYTHONPATH": path, "USE_TORCH": "0", "USE_TF": "0"}


def heading(peer: str | None) -> str:
    from bert_jax.aot import topology

    versions = f"libtpu {topology.version()}, {harness.machine('jax', 'flax')}"
    if peer:
        (found,) = distributions(name="transformers", path=[peer])
        versions += f", transformers {found.version}"
    return versions


def compare(jobs: list[tuple[Row, list[Job]]], options: argparse.Namespace) -> int:
    """Compiles all programs and prints a line after each; returns 1 if one failed."""
    peer = options.peer if options.generators else None
    results: list[Job] = []
    print(heading(peer), flush=True)
    if options.layers:
        print(f"SHORTENED: only {options.layers} layers", flush=True)
    for row, of_row in jobs:
        print(f"\n{row}\n{COLUMNS}", flush=True)
        first: Job | None = None  # the baseline of the ratios
        for job in of_row:
            result = {**job, **compile_apart(job, peer)}
            results.append(result)
            harness.record(**result)
            first = first or (result if "error" not in result else None)
            print(line(result, first), flush=True)
    return int(any("error" in result for result in results))


COLUMNS = (
    f"{'':<22}{'M cycles':>9}{'ratio':>7}{'unestimated':>15}{'sum':>9}{'ratio':>7}"
    f"{'collectives':>13}{'temporaries':>13}{'compile':>10}"
)


def line(result: Job, first: Job | None) -> str:
    """Returns a line of the table, with ratios to `first` (the peer, if compiled)."""
    name = name_of(result)
    if "error" in result or first is None:
        return f"{name:<22}failed: {result['error']}"
    own, other = result["cycles"], first["cycles"]
    rest = own + result["unestimated_cycles"]
    return (
        f"{name:<22}{own / 1e6:>9.2f}{own / other:>7.2f}"
        f"{result['unestimated_cycles'] / 1e6:>15.2f}{rest / 1e6:>9.2f}"
        f"{rest / (other + first['unestimated_cycles']):>7.2f}"
        f"{result['collective_cycles'] / 1e6:>13.2f}{result['temporaries'] / GIB:>9.2f} GiB"
        f"{result['cpu_seconds']:>8,.0f} s"
    )


def name_of(job: Job) -> str:
    if "generator" in job:
        return f"peer, {job['generator']}"
    form = job["form"]
    return f"bert_jax, {FORMS.get(form, f'{form} at a time')}"


def compile_apart(job: Job, peer: str | None) -> Job:
    """Runs a job in a separate process; returns its figures or the error."""
    with tempfile.TemporaryFile("w+") as log:
        done = subprocess.run(
            [sys.executable, __file__, f"--job={json.dumps(job)}"],
            env=environment(peer if "generator" in job else None),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return json.loads(done.stdout.splitlines()[-1])
        log.seek(0)
        lines = [text.strip() for text in log if text.strip()]
    errors = [text for text in lines if re.match(r"[\w.]+(Error|Exception):", text)]
    return {"error": (errors or lines or [f"exit code {done.returncode}"])[-1]}


def do(job: Job) -> None:
    """In the separate process: compiles one program, prints its figures as a line of JSON."""
    from bert_jax.aot import topology

    talk = harness.talk_apart()
    topology.prepare()  # before anything imports JAX
    talk.write(json.dumps(compiled(job)) + "\n")


def compiled(job: Job) -> dict[str, Any]:
    """Compiles one program and returns its figures."""
    from bert_jax.aot import topology
    from bert_jax.aot.cost import analysis
    from bert_jax.hardware import slices
    from bert_jax.parallel.mesh import make_mesh

    row = Row(**job["row"])
    of = slices.find(row.slice)
    config = config_of(row, of.devices, job)
    mesh = make_mesh(config.mesh, topology.devices(of))
    start = time.perf_counter()
    lowered = lower_peer(config, mesh, job) if "generator" in job else lower_ours(config, mesh)
    lowering = time.perf_counter() - start
    start, before = time.perf_counter(), cpu_seconds()
    program = lowered.compile()
    spent, wall = cpu_seconds() - before, time.perf_counter() - start
    memory = program.memory_analysis()
    accelerator = of.generation.accelerator
    found = analysis.analyse(
        program.as_text(), mesh_shape=dict(mesh.shape), accelerator=accelerator
    )
    return {
        "cycles": found.cycles,
        "unestimated_cycles": found.unestimated_seconds * accelerator.clock,
        "collective_cycles": (found.collective_seconds or 0.0) * accelerator.clock,
        "unestimated": [dataclasses.asdict(kind) for kind in found.unestimated],
        "collectives": [dataclasses.asdict(traffic) for traffic in found.collectives],
        "temporaries": memory.temp_size_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "cpu_seconds": spent,
        "wall_seconds": wall,
        "lowering_seconds": lowering,
    }


def config_of(row: Row, devices: int, job: Job) -> Any:
    """Returns the shipped config with the row's shapes."""
    from bert_jax.config.config_files import load

    config = load(row.model)
    layers = job["layers"] or config.model.num_hidden_layers
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, num_hidden_layers=layers),
        phases=(
            dataclasses.replace(
                config.phases[0],
                batch_size=row.per_chip * devices,
                seq_length=row.seq_length,
                max_predictions=SLOTS[row.seq_length],
            ),
        ),
        compute=dataclasses.replace(
            config.compute, dtype="bfloat16", unroll_layers=job.get("form", 0)
        ),
    )


def lower_ours(config: Any, mesh: Any) -> Any:
    from bert_jax.aot import lower

    return lower.lower(config, config.phases[0], mesh)


def lower_peer(config: Any, mesh: Any, job: Job) -> Any:
    import peer_flax

    (phase,) = config.phases
    return peer_flax.lower(
        mesh,
        hidden_size=config.model.hidden_size,
        layers=config.model.num_hidden_layers,
        heads=config.model.num_attention_heads,
        seq_length=phase.seq_length,
        rows=phase.batch_size,
        generator=GENERATORS[job["generator"]],
    )


def cpu_seconds() -> float:
    """Returns the CPU time of this process, all threads included."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
