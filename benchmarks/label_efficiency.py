"""What pretraining is worth in tasks, by the number of labelled rows: a table and a figure.

    python benchmarks/label_efficiency.py --pretrained=RUN --data=REAL_DATA --out=FOLDER --at_once=2
    python benchmarks/label_efficiency.py --pretrained=RUN --other=RUN2 --counted=RUN3@0 \\
        --minilm=FOLDER --sentences=hutto_ICWSM_2014 --tasks=sst2,cola,sentences …
    python benchmarks/label_efficiency.py --pretrained=RUN --tasks=paragraphs --rows=1500 \\
        --config=glue --epochs=1 --rate=3e-4 …

Needs the [finetune] extra. `--data` (default: $BERT_JAX_REAL_DATA) has glue/SST-2,
glue/CoLA and glue/RTE, and questions/squad-form-80-articles.json for `paragraphs`: which of four
paragraphs of an article answers a question, see paragraphs.py. `--sentences` is the unpacked
additional_resources/hutto_ICWSM_2014.tar.gz in the source archive of vaderSentiment 3.3.2: 23,703
sentences of reviews, newspapers and tweets with a score of their sentiment by people; a tenth is
held out.

For each number of rows, seed and start there is a run of `bert-jax finetune`, and its metric on
dev. The rows are drawn from train by the seed, the same for all starts, and fewer are among more.
Starts: `--pretrained`; random weights with its architecture, positional heads and tokenizer, and
otherwise published initial values; and, with the rows of `--others_at`, `--other`, another
pretrained run, shown by the name of its folder, `--counted`, one without pretraining whose words
come from counts, such as step 0 of a run, and `--minilm`, a model of others. Beside them are the
baselines of the task, from the same rows.

The table of a task is also in `--out`/TASK.md, its curve in TASK.svg: the mean of the seeds with
their range. How runs are kept, resumed and compared: task_runs.py.
"""

import argparse
import dataclasses
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

import harness
import numpy as np
import task_runs
from task_runs import Job, Run, Task

PRETRAINED, RANDOM = "pretrained", "random weights"
OTHERS = {"other": "other: {}", "counted": "counted only", "minilm": "MiniLM"}  # {}: its folder


@dataclasses.dataclass(frozen=True)
class Point:
    """A task with a number of rows: one draw of them, and the runs of each start, of each seed."""

    rows: int | None  # as asked for
    draws: list[Task]
    runs: dict[str, list[Run]]


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--pretrained", required=True, help="a run, RUN@STEP, or hf:OWNER/NAME")
    parser.add_argument("--other", help="another pretrained run to compare with")
    parser.add_argument("--counted", help="a model without pretraining, such as RUN@0")
    parser.add_argument("--minilm", help="a model of others")
    parser.add_argument("--data", default=os.environ.get("BERT_JAX_REAL_DATA"), help="the folder")
    parser.add_argument("--sentences", type=Path, help="the folder of the scored sentences")
    parser.add_argument("--out", type=Path, required=True, help="the folder of runs and results")
    parser.add_argument("--tasks", default="sst2", help=f"some of {','.join(task_runs.TASKS)}")
    parser.add_argument("--rows", default="250,1000,4000,16000", help="of train, or all")
    parser.add_argument("--others_at", default="1000,4000", help="rows of the other starts")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--config", default="glue_small")
    parser.add_argument("--rate", type=float, help="instead of the config's")
    parser.add_argument("--epochs", type=float, help="instead of the config's")
    parser.add_argument("--at_once", type=int, default=1, help="runs, each on one core")
    options = parser.parse_args()
    harness.at_least_one(options, "seeds", "at_once")
    others = [flag for flag in OTHERS if getattr(options, flag)]
    rows, others_at = (
        task_runs.numbers(flag, getattr(options, flag)) for flag in ("rows", "others_at")
    )
    if others and not {*rows} & {*others_at}:
        harness.fail(
            f"--{others[0]} has no effect: --rows={options.rows} has none of "
            f"--others_at={options.others_at}; name some of them there"
        )
    for name in harness.some_of("tasks", options.tasks, task_runs.TASKS):
        if not (points := measure(options, name)):
            continue
        text = table(name, points)
        print(text, flush=True)
        (options.out / f"{name}.md").write_text(text)
        (options.out / f"{name}.svg").write_text(figure(points))


def starts(options: argparse.Namespace, rows: int | None) -> dict[str, tuple[str, ...]]:
    """Returns the flags of each start that is measured with this number of rows."""
    found = {
        PRETRAINED: (f"--config.init={task_runs.absolute(options.pretrained)}",),
        RANDOM: task_runs.random_weights(options.pretrained),
    }
    if rows in task_runs.numbers("others_at", options.others_at):
        for flag, name in OTHERS.items():
            if source := getattr(options, flag):
                path = task_runs.absolute(source)
                found[name.format(Path(path).name)] = (f"--config.init={path}",)
    return found


def measure(options: argparse.Namespace, name: str) -> list[Point]:
    """Returns the runs of a task, with each number of rows that it has."""
    points = []
    for rows in task_runs.numbers("rows", options.rows):
        draws = [task_runs.find_task(options, name, rows, seed) for seed in range(options.seeds)]
        if found := [task for task in draws if task]:
            points.append(Point(rows, found, {}))
        else:
            print(f"# {name} has fewer than {rows} rows", flush=True)
    # A seed after another, so that the first ones already show a curve.
    planned = [
        (point, start, job(options, point, start, flags, seed))
        for seed in range(options.seeds)
        for point in points
        for start, flags in starts(options, point.rows).items()
    ]
    finished = task_runs.run_all([each for _, _, each in planned], options.out, options.at_once)
    for (point, start, _), run in zip(planned, finished, strict=True):
        point.runs.setdefault(start, []).append(run)
    for point in points:
        found = [task_runs.baselines(task) for task in point.draws]
        point.runs.update({one: [each[one] for each in found] for one in found[0]})
    return points


def job(
    options: argparse.Namespace, point: Point, start: str, flags: Sequence[str], seed: int
) -> Job:
    task, start = point.draws[seed], task_runs.slug(start)
    name = f"{task.name}-{point.rows or 'all'}-{start}-{seed}"
    own = [
        "--config.compute.dtype=float32", "--config.checkpoint.every_steps=200",
        f"--config.seed={seed}", *flags,
    ]  # fmt: skip
    if options.rate:
        own.append(f"--config.optimizer.learning_rate={options.rate}")
    if options.epochs:
        own.append(f"--config.task.epochs={options.epochs}")
    return Job(name, options.config, task, tuple(own))


def table(name: str, points: Sequence[Point]) -> str:
    """Returns the Markdown table of a task: starts and baselines with each number of rows."""
    kind, _, _, held_out = points[0].draws[0].read()
    labels, first = np.array(kind.labels(held_out)), points[0].runs[PRETRAINED][0]
    seeds = [f"seed {seed}" for seed in range(len(points[0].draws))]
    titles = ["rows", f"{name}, {first.metric}", *seeds, "median", "pretrained less this, 95 %"]
    lines = [titles, ["---:", "---"] + ["---:"] * (len(seeds) + 1) + ["---"]]
    for point in points:
        ours = point.runs[PRETRAINED]
        for start, runs in point.runs.items():
            values = [run.value for run in runs]
            defined = [value for value in values if value is not None]
            median = task_runs.shown(statistics.median(defined) if defined else None)
            against = "" if start == PRETRAINED else str(task_runs.compare(labels, ours, runs))
            lines.append(
                [task_runs.said(point.rows), start, *map(task_runs.shown, values), median, against]
            )
    said = f"{len(labels):,} held-out examples; {first.fill} of positions are real"
    return f"\n{task_runs.table(lines)}\n\n{said}. {harness.machine('jax')}.\n"


def figure(points: Sequence[Point]) -> str:
    """Returns the curves of a task as SVG: the metric by the number of training rows."""
    from bert_jax.reporting import plots

    lines: dict[str, tuple[list[float], list[list[float]]]] = {}
    for point in points:
        _, _, train, _ = point.draws[0].read()
        for start, runs in point.runs.items():
            if values := [run.value for run in runs if run.value is not None]:
                x, y = lines.setdefault(start, ([], []))
                x.append(len(train.examples))
                y.append(values)
    metric = points[0].runs[PRETRAINED][0].metric
    return plots.bands(lines, xlabel="labelled rows", ylabel=metric, log=True)


if __name__ == "__main__":
    with harness.errors_are_one_line():
        main()
