"""The worth of pretraining in tasks: fine-tuning from an encoder and from random weights.

    python benchmarks/finetune_learning.py --pretrained=RUN --data=REAL_DATA --out=FOLDER
    python benchmarks/finetune_learning.py --pretrained=RUN --published=RUN2 --tasks=sst2 …
    python benchmarks/finetune_learning.py --sentences=hutto_ICWSM_2014 --tasks=sentences …
    python benchmarks/finetune_learning.py --tasks=paragraphs --questions=2000 …

Needs the [finetune] extra. `--data` (default: $BERT_JAX_REAL_DATA) has glue/SST-2, glue/CoLA and
glue/RTE, and questions/squad-form-80-articles.json for `paragraphs`: which of four paragraphs of an
article answers a question, see paragraphs.py. `--sentences` is the unpacked
additional_resources/hutto_ICWSM_2014.tar.gz in the source archive of vaderSentiment 3.3.2: 23,703
sentences of reviews, newspapers and tweets with a score of their sentiment by people; a tenth is
held out. Runs are those of `bert-jax finetune`: SST-2 and paragraphs one epoch, the others three.
Random weights have the architecture, the initial values and the tokenizer of `--pretrained`.
`--published` is an encoder pretrained likewise from published initial values; it is fine-tuned on
SST-2 with the first seed.

Every run is a process of its own with all cores, one after another. Finished runs in `--out` are
kept, and one that was interrupted resumes, so the same command again does what is left. Differences
are paired by seed; the interval of 95 % holds Student's t over the seeds and a bootstrap of seeds
and held-out examples, see bert_jax/ablation/statistics.py. Of one seed, it is over examples only.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import paragraphs
from commands import run_command

COMMON = ("--config=glue", "--config.compute.dtype=float32", "--config.checkpoint.every_steps=200")
EPOCHS = {"sst2": 1, "cola": 3, "rte": 3, "sentences": 3, "paragraphs": 1}
FOLDERS = {"sst2": "SST-2", "cola": "CoLA", "rte": "RTE"}
SENTENCES = "*_GroundTruth.txt"
QUESTIONS = "questions/squad-form-80-articles.json"
RESAMPLES = 1000
PRETRAINED, RANDOM, PUBLISHED = "pretrained", "random", "published start"


@dataclasses.dataclass(frozen=True)
class Task:
    """A task, as the commands name its files.

    train, held_out: flags of `finetune`, and of `predict` for the held-out examples.
    """

    name: str
    train: tuple[str, ...]
    held_out: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Run:
    """A fine-tuned run: what it wrote to results.json and predicted for the held-out examples."""

    results: dict[str, Any]
    predictions: np.ndarray
    fill: str

    @property
    def metric(self) -> str:
        return self.results["metrics"][0]

    @property
    def value(self) -> float | None:
        return self.results["runs"][0][self.metric]


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--pretrained", required=True, help="a run, also as RUN@STEP")
    parser.add_argument("--published", help="a run from published initial values")
    parser.add_argument("--data", default=os.environ.get("BERT_JAX_REAL_DATA"), help="the folder")
    parser.add_argument("--sentences", type=Path, help="the folder of the scored sentences")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the runs")
    parser.add_argument("--tasks", default="sst2,cola,rte,sentences")
    parser.add_argument("--questions", type=int, default=2000, help="that `paragraphs` trains on")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=3e-4, help="peak learning rate")
    parser.add_argument("--epochs", type=float, help="instead of one for SST-2, else three")
    parser.add_argument("--cpu_devices", type=int, help="number of devices that share the rows")
    options = parser.parse_args()
    harness.at_least_one(options, "seeds")
    names = harness.some_of("tasks", options.tasks, EPOCHS)
    for task in [find_task(options, name) for name in names]:
        print(table(task, measure(options, task)), flush=True)


def find_task(options: argparse.Namespace, name: str) -> Task:
    """Returns a task; ends the program if its files are not there."""
    if name == "sentences":
        train, held_out = write_sentences(options.sentences, options.out.resolve())
        names = ("name=regression", f"data={train}", f"held_out={held_out}", "label=score")
        flags = tuple(f"--config.task.{word}" for word in names)
        return Task(name, flags, (f"--input={held_out}", "--text=text"))
    if not options.data:
        harness.fail(
            "--data is empty and BERT_JAX_REAL_DATA is not set; give the folder that has glue/"
        )
    if name == "paragraphs":
        source, folder = Path(options.data) / QUESTIONS, options.out.resolve() / "paragraphs"
        if not source.is_file():
            harness.fail(f"--data={options.data}: no {QUESTIONS}")
        paragraphs.write(source, folder, options.questions)
        flags = ("--config.task.name=multiple_choice", f"--config.task.data={folder}")
        return Task(name, flags, (f"--input={folder}", "--split=dev"))
    folder = Path(options.data).resolve() / "glue" / FOLDERS[name]
    if not folder.is_dir():
        harness.fail(f"--data={options.data}: no folder glue/{FOLDERS[name]}")
    flags = (f"--config.task.name={name}", f"--config.task.data={folder}")
    return Task(name, flags, (f"--input={folder}", "--split=dev"))


def write_sentences(folder: Path | None, out: Path) -> list[Path]:
    """Writes the scored sentences as two tables with a header, and returns their paths."""
    files = sorted(folder.glob(SENTENCES)) if folder else []
    if not files:
        harness.fail(
            f"--sentences={folder or ''}: no {SENTENCES}; unpack hutto_ICWSM_2014.tar.gz there"
        )
    lines = [line for file in files for line in file.read_text("utf-8").splitlines()]
    rows = [line.split("\t", 2)[1:] for line in lines]  # id, score, text
    order = np.random.default_rng(0).permutation(len(rows))
    paths = [out / "sentences_train.tsv", out / "sentences_held_out.tsv"]
    out.mkdir(parents=True, exist_ok=True)
    for path, chosen in zip(
        paths, (order[len(rows) // 10 :], order[: len(rows) // 10]), strict=True
    ):
        path.write_text("score\ttext\n" + "".join("\t".join(rows[i]) + "\n" for i in chosen))
    return paths


def starts(options: argparse.Namespace, task: Task) -> dict[str, tuple[tuple[str, ...], int]]:
    """Returns the flags of each start, and its number of seeds."""
    found = {
        PRETRAINED: ((f"--config.init={absolute(options.pretrained)}",), options.seeds),
        RANDOM: (random_weights(options.pretrained), options.seeds),
    }
    if options.published and task.name == "sst2":
        found[PUBLISHED] = ((f"--config.init={absolute(options.published)}",), 1)
    return found


def absolute(source: str) -> str:
    from bert_jax.workdir.layout import split_step

    path, step = split_step(source)
    return str(Path(path).resolve()) + (f"@{step}" if step is not None else "")


def random_weights(source: str) -> tuple[str, ...]:
    """Returns the flags of a model with the architecture and the tokenizer of another."""
    from bert_jax.config.serialization import flatten
    from bert_jax.training.resolve import find_architecture
    from bert_jax.workdir.layout import split_step

    model = find_architecture(source)
    if model is None:
        harness.fail(f"--pretrained={source}: no run, import or export")
    tokenizer = Path(split_step(source)[0]).resolve() / "tokenizer.json"
    random = {"word_initializer": "random", "output_bias_initializer": "zeros"}
    values = flatten({"config": {"model": dataclasses.asdict(model) | random}})
    flags = [f"--{key}={value}" for key, value in values.items()]
    return (f"--config.task.tokenizer={tokenizer}", *flags)


def measure(options: argparse.Namespace, task: Task) -> dict[str, list[Run]]:
    """Returns the runs of each start, a seed after another."""
    runs: dict[str, list[Run]] = {}
    chosen = starts(options, task)
    for seed in range(options.seeds):
        for name, (flags, seeds) in chosen.items():
            if seed < seeds:
                start = time.perf_counter()
                run = finetune(options, task, flags, seed)
                seconds = time.perf_counter() - start
                harness.record(task=task.name, start=name, seed=seed, **{run.metric: run.value})
                said = f"# {task.name}, {name}, seed {seed}: {run.metric} {shown(run.value)}"
                print(f"{said}, {seconds:.0f} s", flush=True)
                runs.setdefault(name, []).append(run)
    return runs


def finetune(options: argparse.Namespace, task: Task, start: Sequence[str], seed: int) -> Run:
    """Trains a run and predicts the held-out examples, unless it is there."""
    flags = [
        *COMMON, *task.train, *start, f"--config.seed={seed}",
        f"--config.task.epochs={options.epochs or EPOCHS[task.name]}",
        f"--config.optimizer.learning_rate={options.rate}",
    ]  # fmt: skip
    if options.cpu_devices:
        flags.append(f"--cpu_devices={options.cpu_devices}")
    digest = hashlib.sha256("\n".join(flags).encode()).hexdigest()[:16]
    workdir = options.out.resolve() / f"{task.name}-{digest}"
    predictions, log = workdir.with_suffix(".tsv"), workdir.with_suffix(".log")
    if not predictions.exists():
        run_command(["finetune", *flags, f"--workdir={workdir}"], log)
        words = [f"--model={workdir}", *task.held_out, f"--out={predictions}"]
        run_command(["predict", *words], log)
    fills = re.findall(r"([\d.]+%) real", log.read_text())
    results = json.loads((workdir / "results.json").read_text())
    return Run(results, read_predictions(task, predictions), fills[0] if fills else "")


def read_predictions(task: Task, path: Path) -> np.ndarray:
    """Returns the predicted classes, or the scores."""
    from bert_jax.finetune.tasks import glue

    words = [line.split("\t")[1] for line in path.read_text().splitlines()[1:]]
    if task.name not in glue.TASKS:
        return np.array(words, np.float64)
    about = glue.TASKS[task.name]
    return np.array([(about.values or about.labels).index(word) for word in words])


def read_held_out(task: Task) -> tuple[Any, np.ndarray]:
    """Returns the held-out examples and their labels."""
    from bert_jax.config.task_settings import TaskConfig
    from bert_jax.finetune.tasks.task_kinds import kind_of

    values = dict(word.removeprefix("--config.task.").split("=", 1) for word in task.train)
    config = TaskConfig(**values)
    kind = kind_of(config)
    examples = kind.read(config)[1]
    return examples.examples, np.array(kind.labels(examples))


def difference(labels: np.ndarray, ours: Sequence[Run], others: Sequence[Run]) -> str:
    """Returns the mean paired difference of the metric with its interval; a correlation that is not
    defined counts as 0."""
    from bert_jax.ablation.intervals import draw_weights, of_resamples, student_t
    from bert_jax.finetune.tasks.metrics import METRICS

    metric, count = METRICS[ours[0].metric], len(labels)
    pairs = list(zip(ours, others, strict=False))

    def differences(chosen: np.ndarray, seeds: Sequence[int]) -> np.ndarray:
        values = [
            [metric(labels[chosen], run.predictions[chosen]) or 0.0 for run in pairs[seed]]
            for seed in seeds
        ]
        return np.subtract(*np.transpose(values))

    student = student_t(differences(np.arange(count), range(len(pairs))))
    drawn = []
    for weights in draw_weights(len(pairs), count, RESAMPLES, np.random.default_rng(0)):
        for of_seeds, of_examples in zip(*weights, strict=True):
            seeds = np.flatnonzero(of_seeds)
            chosen = np.repeat(np.arange(count), of_examples.astype(int))
            drawn.append(np.average(differences(chosen, seeds), weights=of_seeds[seeds]))
    interval = of_resamples(np.array(drawn)).interval
    if len(pairs) > 1:
        interval = interval.holding(student.interval)
    said = "excludes 0" if interval.excludes_zero else "includes 0"
    return f"{student.mean:+.4f} ({interval.low:+.4f} to {interval.high:+.4f}, {said})"


def table(task: Task, runs: dict[str, list[Run]]) -> str:
    """Returns the Markdown table of a task: starts, majority answer and bag of words."""
    first, (examples, labels) = runs[PRETRAINED][0], read_held_out(task)
    seeds = [f"seed {seed}" for seed in range(len(runs[PRETRAINED]))]
    titles = [f"{task.name}, {first.metric}", *seeds, "median", "pretrained less this, 95 %"]
    rows = []
    for name, own in runs.items():
        values = [run.value for run in own]
        defined = [value for value in values if value is not None]
        cells = [*map(shown, values), *[""] * (len(seeds) - len(own))]
        median = shown(statistics.median(defined) if defined else None)
        against = "" if name == PRETRAINED else difference(labels, runs[PRETRAINED], own)
        rows.append([name, *cells, median, against])
    for name, measured in first.results["baselines"].items():
        rows.append([name, *[""] * len(seeds), shown(measured[first.metric]), ""])
    if task.name == "paragraphs":
        found = paragraphs.bm25([x.context for x in examples], [x.choices for x in examples])
        rows.append(["BM25", *[""] * len(seeds), shown(float((found == labels).mean())), ""])
    lines = [titles, ["---"] + ["---:"] * (len(seeds) + 1) + ["---"], *rows]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"\n{text}\n\n{len(labels):,} held-out examples; {first.fill} of positions are real.\n"


def shown(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.4f}"


if __name__ == "__main__":
    main()
