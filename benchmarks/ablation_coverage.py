"""Coverage of the intervals of an ablation's difference, in simulated reports.

    python benchmarks/ablation_coverage.py --resamples=1000 --out=coverage.jsonl
    python benchmarks/ablation_coverage.py --reports=400 --only=lognormal    # some cells, roughly
    python benchmarks/ablation_coverage.py --resamples=1000 --stopping  # seeds added until shown

A report is `bert_jax.ablation.statistics.compare` of a difference of zero: the mean over seeds of
values of documents ~ N(0, 1) plus one of the seed ~ N(0, seed sd²), weighted by documents' sizes.
Reports with fewer effective documents than a verdict needs are drawn again, as no verdict is given
on them. Power: how often a difference of `detectable` is shown, without Holm's correction.

Each cell is a line of `--out`; those that are there are not computed again. The first command, with
OPENBLAS_NUM_THREADS=1, makes the table of docs/ablations/coverage.md.

`--stopping`: equal variants whose report is made after every seed from the third to the tenth, and
how often one of these reports shows a difference.
"""

import dataclasses
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np

from bert_jax.ablation import statistics
from bert_jax.ablation.intervals import Interval, draw_weights
from bert_jax.metrics.spread import effective_documents

SIZES = {
    "equal": (0.0, (10, 20, 30, 100)),
    "lognormal 1": (1.0, (20, 40, 100)),
    "lognormal 1.5": (1.5, (40, 150)),
    "lognormal 2": (2.0, (100, 300)),
}  # standard deviation of the logarithm, numbers of documents
SEEDS, SEED_SDS = (3, 5, 8), (0.0, 0.1, 0.5)
METHODS = ("bootstrap", "student", "satterthwaite", "interval")
TYPICAL = 1000  # predictions in a document


@dataclasses.dataclass(frozen=True)
class Cell:
    """A kind of report. fewest: effective documents that a report has."""

    sizes: str
    documents: int
    seeds: int
    seed_sd: float  # in standard deviations of a document's value
    values: str = "normal"
    fewest: float = statistics.FEWEST_DOCUMENTS

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Returns sums [S, D] and counts [D] of a report whose true difference is zero."""
        spread, _ = SIZES[self.sizes]
        while True:
            sizes = rng.lognormal(0.0, spread, self.documents) * TYPICAL
            counts = np.maximum(1.0, np.round(sizes))
            if effective_documents(counts) >= self.fewest:
                break
        if self.values == "normal":
            of_documents = rng.normal(size=self.documents)
        else:
            of_documents = rng.exponential(size=self.documents) - 1
        of_seeds = rng.normal(0.0, self.seed_sd, (self.seeds, 1))
        return (of_documents + of_seeds) * counts, counts


def cells() -> Iterator[Cell]:
    for sizes, (_, documents) in SIZES.items():
        for count in documents:
            for seeds in SEEDS:
                yield from (Cell(sizes, count, seeds, sd) for sd in SEED_SDS)
    yield from (Cell("equal", 5, seeds, sd, fewest=0) for seeds in (3, 8) for sd in (0.0, 0.5))
    for count in (10, 30, 100, 300):  # far from a normal distribution, seeds alike: the worst
        yield Cell("equal", count, 5, 0.0, values="exponential")


def simulate(cell: Cell, reports: int, resamples: int) -> dict[str, Any]:
    """Returns the share of reports whose intervals hold the truth, and the power."""
    rng = np.random.default_rng(zlib.crc32(repr(cell).encode()))
    # As in `compare`, where reports of as many seeds and documents draw the same.
    drawn = list(draw_weights(cell.seeds, cell.documents, resamples, np.random.default_rng(0)))
    held, shown, effective = dict.fromkeys(METHODS, 0), 0, 0.0
    for _ in range(reports):
        sums, counts = cell.draw(rng)
        found = statistics.compare_resampled(sums, counts, drawn)
        for method in METHODS:
            held[method] += not getattr(found, method).excludes_zero
        effective += found.effective_documents
        shift = statistics.detectable(
            cell.seed_sd,
            found.effective_documents**-0.5,
            cell.seeds,
            found.effective_documents,
        )
        low, high = found.interval
        shown += Interval(low + shift, high + shift).excludes_zero
    return {
        **dataclasses.asdict(cell),
        "reports": reports,
        "resamples": resamples,
        "effective_documents": effective / reports,
        **{method: count / reports for method, count in held.items()},
        "power": shown / reports,
    }


STOPPING = {"documents": 100, "seed_sd": 0.01, "document_sd": 0.03, "both_sd": 0.05}


def stopping(reports: int, resamples: int) -> dict[str, float]:
    """Returns the share of comparisons of equal variants that show a difference: with 3 seeds, with
    10, and with 3 to 10 seeds, added until one is shown."""
    documents, seeds = STOPPING["documents"], range(3, 11)
    rng = np.random.default_rng(0)
    drawn = {
        count: list(draw_weights(count, documents, resamples, np.random.default_rng(0)))
        for count in seeds
    }
    counts = np.full(documents, float(TYPICAL))
    shown = np.zeros((reports, len(seeds)), bool)
    for number in range(reports):
        values = (
            rng.normal(0, STOPPING["seed_sd"], (seeds[-1], 1))
            + rng.normal(0, STOPPING["document_sd"], documents)
            + rng.normal(0, STOPPING["both_sd"], (seeds[-1], documents))
        )
        for i, count in enumerate(seeds):
            found = statistics.compare_resampled(values[:count] * counts, counts, drawn[count])
            shown[number, i] = found.interval.excludes_zero
    until = shown.any(axis=1)
    return {"3 seeds": shown[:, 0].mean(), "10 seeds": shown[:, -1].mean(), "until": until.mean()}


def of_row(row: dict[str, Any], setting: dict[str, int]) -> Cell | None:
    """Returns the cell of a row of `--out`; None of one made with other settings."""
    if any(row[name] != value for name, value in setting.items()):
        return None
    return Cell(**{field.name: row[field.name] for field in dataclasses.fields(Cell)})


def table(rows: Iterable[tuple[Cell, dict[str, Any]]]) -> str:
    """Returns the Markdown table of cells: percentages."""
    header = ("sizes", "documents", "effective", "seeds", "seed sd", "bootstrap", "Student's t",
              "Satterthwaite", "all three", "power")  # fmt: skip
    lines = [" | ".join(header), " | ".join(["---"] * len(header))]
    for cell, row in rows:
        judged = row["effective_documents"] >= statistics.FEWEST_DOCUMENTS
        sizes = cell.sizes if cell.values == "normal" else f"{cell.sizes}, {cell.values} values"
        values = (
            sizes, f"{cell.documents:,}", f"{row['effective_documents']:.0f}", str(cell.seeds),
            f"{cell.seed_sd:g}", *(f"{row[method]:.1%}" for method in METHODS),
            f"{row['power']:.1%}" if judged else "",
        )  # fmt: skip
        lines.append(" | ".join(values))
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--reports", type=int, default=4000)
    parser.add_argument("--resamples", type=int, default=statistics.RESAMPLES)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="cells that have this text")
    parser.add_argument("--out", type=Path, help="file of finished cells, a line of JSON each")
    parser.add_argument("--stopping", action="store_true", help="seeds added until shown, instead")
    options = parser.parse_args()
    if min(options.reports, options.resamples, options.processes) < 1:
        parser.error("--reports, --resamples and --processes: give at least 1")
    if options.stopping:
        for what, share in stopping(options.reports, options.resamples).items():
            harness.record(what=what, share=share)
            print(f"{what}: {share:.1%} show a difference that is none")
        return
    wanted = [cell for cell in cells() if options.only in str(cell)]
    if not wanted:
        parser.error(f"--only={options.only}: in no cell; one is {next(cells())}")
    setting = {"reports": options.reports, "resamples": options.resamples}
    kept = options.out.read_text().splitlines() if options.out and options.out.exists() else []
    rows = {cell: row for row in map(json.loads, kept) for cell in [of_row(row, setting)]}
    left = [cell for cell in wanted if cell not in rows]
    with ProcessPoolExecutor(options.processes) as pool:
        for cell, row in zip(left, pool.map(partial(simulate, **setting), left), strict=True):
            rows[cell] = row
            if options.out:
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    harness.record(cells=[rows[cell] for cell in wanted])
    print(table([(cell, rows[cell]) for cell in wanted]))


if __name__ == "__main__":
    main()
