"""The rate and the steps of `glue_small`, chosen on a part of the training rows of SST-2.

    python benchmarks/finetune_recipe.py --models=RUN,RUN2 --data=REAL_DATA --out=FOLDER --at_once=2

Rows of SST-2 are phrases of one another, so that rows set aside at random have been seen in part.
Here whole groups are set aside: two rows are in one group if one has the other in it, as a sequence
of words, or if a chain of such rows joins them. Of each group that is set aside the longest row is
scored, since dev has whole sentences, and its other rows are not trained on. Phrases of one and two
words, which would join nearly all rows to one group, join none; those that a scored row has in it
are not trained on either. dev is never read.

For each model and number of rows, every rate and number of steps is tried with every seed, which
also draws what is set aside and what is trained on. A rate is that of a model 256 wide, as in the
config. The table has the mean accuracy over the seeds; below it is the best recipe of each model
and of all together, by the mean over the numbers of rows.
"""

import argparse
import itertools
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import harness
import numpy as np
import task_runs
from task_runs import Job, Task

SHORTEST = 3  # words of a phrase that joins rows
Recipe = tuple[str, str]  # rate and steps, as typed


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--models", required=True, help="runs, imports or exports: RUN,RUN2@STEP")
    parser.add_argument("--data", default=os.environ.get("BERT_JAX_REAL_DATA"), help="the folder")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the runs")
    parser.add_argument("--rows", default="1000,4000", help="that are trained on")
    parser.add_argument("--groups", type=int, default=1000, help="that are set aside")
    parser.add_argument("--rates", default="1.5e-4,3e-4,6e-4", help="peak rates at width 256")
    parser.add_argument("--steps", default="250,500", help="of a run")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--at_once", type=int, default=1, help="runs, each on one core")
    options = parser.parse_args()
    harness.at_least_one(options, "seeds", "at_once", "groups")
    models, rates, steps = (
        harness.each_once(flag, getattr(options, flag).split(","))
        for flag in ("models", "rates", "steps")
    )
    rows, recipes = task_runs.numbers("rows", options.rows), [*itertools.product(rates, steps)]
    tasks = divide(options, rows)
    jobs = {
        (model, count, recipe, seed): job(number, model, tasks[count, seed], count, recipe, seed)
        for seed in range(options.seeds)
        for count in rows
        for number, model in enumerate(models)
        for recipe in recipes
    }
    found: dict[tuple[str, int | None, Recipe], list[float]] = {}
    finished = task_runs.run_all(list(jobs.values()), options.out, options.at_once)
    for (model, count, recipe, _), run in zip(jobs, finished, strict=True):
        found.setdefault((model, count, recipe), []).append(run.value or 0.0)
    print(table(models, rows, recipes, {key: statistics.mean(x) for key, x in found.items()}))


def divide(
    options: argparse.Namespace, rows: Sequence[int | None]
) -> dict[tuple[int | None, int], Task]:
    """Returns the task of each number of rows and each seed, with files of its own."""
    source = task_runs.glue_folder(options.data, "sst2") / "train.tsv"
    title, *lines = source.read_text("utf-8").removesuffix("\n").split("\n")
    texts = [tuple(line.split("\t")[0].split()) for line in lines]
    groups, tasks = group(texts), dict[tuple[int | None, int], Task]()
    for seed in range(options.seeds):
        train, scored = split(texts, groups, options.groups, seed)
        for count in rows:
            if count and count > len(train):
                harness.fail(f"--rows={count}: {len(train):,} are left to train on")
            folder = options.out.resolve() / "data" / f"{count or 'all'}-{options.groups}-{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            for name, chosen in (("train", train[:count]), ("dev", scored)):
                text = "\n".join([title, *(lines[row] for row in chosen), ""])
                (folder / f"{name}.tsv").write_text(text, "utf-8")
            tasks[count, seed] = task_runs.glue_task("sst2", folder)
    return tasks


def group(texts: Sequence[tuple[str, ...]]) -> np.ndarray:
    """Returns the group of each row, the index of its first row."""
    firsts: dict[tuple[str, ...], int] = {}
    for row, words in enumerate(texts):
        if len(words) >= SHORTEST:
            firsts.setdefault(words, row)
    parents = list(range(len(texts)))

    def root(row: int) -> int:
        while parents[row] != row:
            parents[row] = row = parents[parents[row]]
        return row

    for row, words in enumerate(texts):
        for phrase in phrases(words, SHORTEST):
            if (inside := firsts.get(phrase)) is not None:
                low, high = sorted((root(row), root(inside)))
                parents[high] = low
    return np.array([root(row) for row in range(len(texts))])


def phrases(words: tuple[str, ...], shortest: int) -> list[tuple[str, ...]]:
    ends = range(1, len(words) + 1)
    return [words[first:end] for end in ends for first in range(end - shortest + 1)]


def split(
    texts: Sequence[tuple[str, ...]], groups: np.ndarray, count: int, seed: int
) -> tuple[list[int], list[int]]:
    """Returns the rows to train on, in an order drawn at random, and the longest row of each of
    `count` groups."""
    draw = np.random.default_rng(seed)
    lengths = np.array([len(words) for words in texts])
    longest: dict[int, int] = {}
    for row in np.argsort(-lengths, kind="stable").tolist():
        longest.setdefault(int(groups[row]), row)
    able = [first for first, row in longest.items() if lengths[row] >= SHORTEST]
    if count >= len(able):
        harness.fail(f"--groups={count}: there are {len(able):,}, and some are to be trained on")
    aside = set(draw.permutation(able)[:count].tolist())
    scored = sorted(longest[first] for first in aside)
    seen = {phrase for row in scored for phrase in phrases(texts[row], 1)}
    left = [
        row
        for row, words in enumerate(texts)
        if int(groups[row]) not in aside and words not in seen
    ]
    return draw.permutation(left).tolist(), scored


def job(number: int, model: str, task: Task, rows: int | None, recipe: Recipe, seed: int) -> Job:
    rate, steps = recipe
    flags = (
        f"--config.init={task_runs.absolute(model)}",
        f"--config.optimizer.learning_rate={rate}", f"--config.task.most_steps={steps}",
        f"--config.task.fewest_steps={steps}", f"--config.seed={seed}",
    )  # fmt: skip
    name = f"model{number}-{rows or 'all'}-{rate}-{steps}-{seed}"
    return Job(name, "glue_small", task, flags)


def table(
    models: Sequence[str],
    rows: Sequence[int | None],
    recipes: Sequence[Recipe],
    means: Mapping[tuple[str, int | None, Recipe], float],
) -> str:
    """Returns the Markdown table, and the best recipes below it."""
    titles = [f"{task_runs.said(count)} rows" for count in rows]
    lines = [["model", "rate at width 256", "steps", *titles, "mean"]]
    lines.append(["---"] + ["---:"] * (len(titles) + 3))
    scores: dict[str, dict[Recipe, float]] = {}
    for model, recipe in itertools.product(models, recipes):
        values = [means[model, count, recipe] for count in rows]
        scores.setdefault(model, {})[recipe] = statistics.mean(values)
        cells = [f"{value:.4f}" for value in (*values, statistics.mean(values))]
        lines.append([model, *recipe, *cells])
    scores["all models"] = {
        recipe: statistics.mean(scores[model][recipe] for model in models) for recipe in recipes
    }
    best = [
        f"{model}: best at a rate of {rate} and {steps} steps, {of[rate, steps]:.4f}"
        for model, of in scores.items()
        for rate, steps in [max(of, key=of.__getitem__)]
    ]
    return "\n".join(["", task_runs.table(lines), "", *best, "", f"{harness.machine('jax')}."])


if __name__ == "__main__":
    with harness.errors_are_one_line():
        main()
