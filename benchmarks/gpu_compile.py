"""Compiles training steps for NVIDIA GPUs and prints their memory; needs no GPU.

    make .venv/gpu_compiler
    python benchmarks/gpu_compile.py                           # every row: seven minutes
    python benchmarks/gpu_compile.py --rows=1,4 --layers=2     # a quick check

    python benchmarks/gpu_compile.py --shipped                 # every shipped config: hours

Each row is a call of `bert-jax compile`, in a process of its own, one after the other. Memory is
that of one GPU as the compiler allocates it; nothing ran, and a run may choose other kernels. It
ends with an error if the memory of a row is not within 10 % of what was seen before; with another
number of layers nothing is compared.
Shipped configs keep their own first phase, on eight GPUs, with their layers in a loop: those that
start from a model take one of BERT-base's form, students a BERT with twice their layers as teacher.
glue, glue_small and sentences are left out: the rows of a task's step follow from its examples, and
`compile` takes steps of pretraining only.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import harness

from bert_jax.config.config_files import load, values_of
from bert_jax.config.shipped import shipped

GIB = 2**30
TOLERANCE = 0.1  # of the bytes that were seen before


@dataclasses.dataclass(frozen=True)
class Row:
    """The first phase of a shipped config, and the GPUs it is compiled for.

    model: the folder of the model to start from, "": none.
    seen: bytes of one GPU by an earlier compilation with JAX 0.10.2 (2026-11), outside this
        program; 0: none.
    """

    config: str
    topology: str
    changes: tuple[str, ...] = ()
    seen: float = 0.0
    model: str = ""

    def __str__(self) -> str:
        return ", ".join((self.config, self.topology, *self.changes))

    def words(self, layers: int) -> list[str]:
        init = [f"init={self.model}"] if self.model else []
        words = [f"--config.{change}" for change in (*self.changes, *init)]
        words += [f"--config.model.num_hidden_layers={layers}"] if layers else []
        return [f"--config={self.config}", f"--topology={self.topology}", "--phase=0", *words]


def rows_of(count: int, length: int) -> tuple[str, ...]:
    slots = {128: 20, 512: 77}[length]
    phase = {"batch_size": count, "seq_length": length, "max_predictions": slots}
    return tuple(f"phases[0].{name}={value}" for name, value in phase.items())


NO_DROPOUT = "model.attention_probs_dropout_prob=0.0"
ROWS = (
    Row("base", "h100-1", rows_of(128, 128), 9.2 * GIB),
    Row("base", "h100-1", rows_of(256, 128), 18.2e9),
    Row("base", "h100-8", rows_of(256, 128), 2.46e9),
    Row("large", "h100-8", rows_of(256, 128), 6.1 * GIB),
    Row("base", "h100-1", (*rows_of(64, 512), NO_DROPOUT), 12.8e9),
    Row("base", "h100-1", (*rows_of(64, 512), NO_DROPOUT, "compute.attention=xla"), 28.5e9),
    Row("base", "h100-1", rows_of(64, 512)),
)
TASKS = {"glue", "glue_small", "sentences"}


def shipped_rows(folder: Path) -> list[Row]:
    """Returns the rows of the shipped configs for pretraining, and writes config.json of BERT-base
    to a folder, which is all that is read of a model to start from."""
    from bert_jax.convert.hf_config import to_config_json

    model = to_config_json(load("base").model, pad_token_id=0)
    (folder / "config.json").write_text(json.dumps(model), "utf-8")
    names = sorted(set(shipped()) - TASKS)
    start = {name: str(folder) if values_of(name).get("init") else "" for name in names}
    loop = ("compute.unroll_layers=1",)
    return [Row(name, "h100-8", loop, model=start[name]) for name in names]


def main() -> None:
    parser = harness.parser(__doc__)
    every = ",".join(str(number) for number in range(1, len(ROWS) + 1))
    parser.add_argument("--rows", default=every, help="rows of the table, from 1")
    parser.add_argument("--layers", type=int, default=0, help="of all models (default: their own)")
    parser.add_argument("--shipped", action="store_true", help="the shipped configs instead")
    options = parser.parse_args()
    chosen = harness.some_of("rows", options.rows, every.split(","))
    with harness.errors_are_one_line():
        harness.find_gpu_compiler()
    print(harness.machine("jax", "jaxlib"), flush=True)
    print("\n| step | arguments, GiB | temporaries, GiB | in all, GiB | seen before | attention |")
    print("|---|---:|---:|---:|---:|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = [ROWS[int(number) - 1] for number in chosen]
        if options.shipped:
            rows = shipped_rows(Path(folder))
        if options.layers:
            rows = [dataclasses.replace(row, seen=0.0) for row in rows]
        compile_rows(rows, options.layers)


def compile_rows(rows: Sequence[Row], layers: int) -> None:
    """Prints the line of each row; ends the program with an error if one differs or fails."""
    others = []
    for row in rows:
        line, total = compiled(row, layers)
        print(line, flush=True)
        if not total:
            others.append(f"{row}: not compiled")
        elif row.seen and abs(total / row.seen - 1) > TOLERANCE:
            others.append(f"{row}: {total / GIB:.2f} GiB, {row.seen / GIB:.2f} before")
    if others:
        harness.fail("; ".join(others))


def compiled(row: Row, layers: int) -> tuple[str, int]:
    """Returns the line of a row of the table, and the bytes of one GPU, 0 if it failed."""
    command = [sys.executable, "-m", "bert_jax", "compile", *row.words(layers), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:  # 1 is also the exit code of a step that does not fit
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return f"| {row} | {why} | | | | |", 0
    (phase,) = json.loads(done.stdout)["phases"]
    memory = phase["memory"]
    arguments = sum(memory[kind] for kind in ("parameters", "optimizer", "batch"))
    sizes = (arguments, memory["activations and temporaries"], memory["total"])
    harness.record(**{str(row): memory})
    figures = " | ".join(f"{size / GIB:.2f}" for size in sizes)
    seen = f"{row.seen / GIB:.2f}" if row.seen else ""
    line = f"| {row} | {figures} | {seen} | {phase['attention'].partition(',')[0]} |"
    return line, memory["total"]


if __name__ == "__main__":
    main()
