"""Sentence vectors of a run and of random values, before and after training: two tables.

    python benchmarks/vector_runs.py --pretrained=RUN --data=REAL_DATA --out=FOLDER
    python benchmarks/vector_runs.py --pretrained=RUN --minilm=FOLDER --store=STORE --seeds=3 …

`--data` (default: $BERT_JAX_REAL_DATA) has glue/STS-B and questions/squad-form-80-articles.json.
The commands are those of a user: `bert-jax finetune --config=sentences`, `evaluate --model`.

stsb: scored pairs train on STS-B's train split, and the vectors are measured on its dev split. The
loss, cosine or CoSENT, is chosen by this rule: each trains once, from `--pretrained` with the first
seed, on train without the tenth that `finetune` holds out; the one with the higher Spearman on that
tenth trains all runs, and at equal values the cosine. dev is not read for this choice.

articles: in-batch negatives train on the questions of 64 of 80 articles with their paragraphs, and
the questions of the other 16 search all paragraphs, see question_retrieval.py.

Starts are `--pretrained`, and random values with its architecture and tokenizer, other ones for
each seed. "before" is the mean of the token states of a start, of texts cut as in training: step 0
of the run with the first seed. With `--store`, sentences of a token store without labels train the
pretrained model, too, once: each with itself (SimCSE), and with the next one of its document.

What is measured is kept in `--out`: the same command again does what is left, and `--out`/table.md
has at any time what is there, seed after seed.
"""

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
import question_retrieval
import task_runs
from commands import run_command
from task_runs import Job, Task

TESTS = {
    "stsb": ("Spearman", "Pearson"),
    "articles": ("nDCG@10", "recall@1", "recall@10", "MRR@10"),
}
LOSSES = ("cosine", "cosent")  # of scored pairs; the first one at equal values
PRETRAINED, RANDOM = "pretrained", "random values"
# The rate, by width, and the dtype are those of glue_small.
RECIPE = (
    "--config.optimizer.base_width=256", "--config.compute.dtype=float32",
    "--config.log_every_steps=10", "--config.checkpoint.keep_start=True",
)  # fmt: skip
Values = dict[str, float]  # of each measure


@dataclasses.dataclass(frozen=True)
class Training:
    """Training whose vectors are measured.

    Attributes:
        row: of the table; the seeds of a recipe have one.
        before: the row of its start; "" if that is not measured.
        tests: on which they are measured.
    """

    row: str
    before: str
    tests: tuple[str, ...]
    seed: int
    job: Job


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--pretrained", required=True, help="a run, also as RUN@STEP")
    parser.add_argument("--minilm", help="a finished sentence encoder of others, the upper row")
    parser.add_argument("--store", help="token store whose sentences train without labels")
    parser.add_argument("--data", default=os.environ.get("BERT_JAX_REAL_DATA"), help="the folder")
    parser.add_argument("--out", type=Path, required=True, help="the folder of runs and results")
    parser.add_argument("--tests", default=",".join(TESTS), help=f"some of {','.join(TESTS)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", default="3e-4", help="of a model 256 wide")
    parser.add_argument("--stsb_steps", type=int, default=90, help="each of 64 pairs")
    parser.add_argument("--articles_steps", type=int, default=24, help="each of 64 pairs")
    parser.add_argument("--unlabeled_steps", type=int, default=60, help="each of 64 pairs")
    parser.add_argument("--devices", type=int, default=1, help="simulated devices of the CPU")
    options = parser.parse_args()
    names = ("seeds", "devices", "stsb_steps", "articles_steps", "unlabeled_steps")
    harness.at_least_one(options, *names)
    tests = harness.some_of("tests", options.tests, list(TESTS))
    paths = {test: find_test(options, test) for test in tests}
    measure(options, paths)


def find_test(options: argparse.Namespace, test: str) -> Path:
    """Returns what `evaluate` reads; ends the program if it is not there."""
    if test == "stsb":
        folder = task_runs.given(options.data) / "glue" / "STS-B"
        if not folder.is_dir():
            harness.fail(f"--data={options.data}: no folder glue/STS-B")
        return folder.resolve()
    source = task_runs.given(options.data) / task_runs.QUESTIONS
    if not source.is_file():
        harness.fail(f"--data={options.data}: no {task_runs.QUESTIONS}")
    folder = options.out.resolve() / "articles"
    if not (folder / "qrels" / "test.tsv").exists():  # which is written last
        print(f"# {question_retrieval.write(source, folder)}", flush=True)
    return folder


def measure(options: argparse.Namespace, paths: dict[str, Path]) -> None:
    """Measures all models, and writes the tables after each."""
    steps = ", ".join(f"{test} {getattr(options, f'{test}_steps')}" for test in paths)
    about = f"Steps of 64 pairs: {steps}. {harness.machine('jax', 'bm25s')}"
    rows: dict[str, dict[str, list[Values]]] = {test: {} for test in paths}
    notes: list[str] = []
    loss = choose_loss(options, paths["stsb"], notes) if "stsb" in paths else ""
    for training in trainings(options, paths, loss):
        start = time.perf_counter()
        for test, found in trained(options, training, paths).items():
            rows[test].setdefault(training.row, []).append(found[training.row])
            for row, values in found.items():
                rows[test].setdefault(row, [values])
            harness.record(row=training.row, seed=training.seed, test=test, **found[training.row])
        seconds = time.perf_counter() - start
        print(f"# {training.row}, seed {training.seed}: {seconds:.0f} s", flush=True)
        save(options.out, rows, notes, about)
    if options.minilm:
        for test, path in paths.items():
            log = options.out / "runs" / f"MiniLM-{test}.log"
            found = evaluated(options, {options.minilm: "MiniLM"}, test, path, log)
            rows[test]["MiniLM"] = [found["MiniLM"]]
        save(options.out, rows, notes, about)
    print((options.out / "table.md").read_text())


def choose_loss(options: argparse.Namespace, folder: Path, notes: list[str]) -> str:
    """Returns the loss of scored pairs with the higher Spearman on a tenth of train."""
    found: dict[str, float] = {}
    for loss in LOSSES:
        settings = stsb_settings(folder / "train.tsv", loss)
        job = make_job(options, f"choice-{loss}", "stsb", settings, PRETRAINED, 0)
        path = kept(options, job)
        if not path.exists():
            workdir = finetune(options, job)
            (run,) = json.loads((workdir / "results.json").read_text())["runs"]
            finish(path, workdir, {"spearman": run["spearman"] or 0.0})
        found[loss] = json.loads(path.read_text())["spearman"]
        harness.record(choice=loss, spearman=found[loss])
    best = max(LOSSES, key=lambda loss: found[loss])
    listed = ", ".join(f"{loss} {value:.4f}" for loss, value in found.items())
    notes.append(f"Loss of scored pairs: {best}; Spearman on a tenth of train: {listed}.")
    return best


def trainings(options: argparse.Namespace, paths: dict[str, Path], loss: str) -> Iterator[Training]:
    """Yields what is trained, a seed after another, so that the first ones already make a table."""
    for seed in range(options.seeds):
        for test, path in paths.items():
            is_stsb = test == "stsb"
            settings = stsb_settings(path, loss) if is_stsb else {"data": path / "train.jsonl"}
            for start in (PRETRAINED, RANDOM):
                name = f"{test}-{start.split()[0]}-{seed}"
                # Paragraphs fill a text of 128 tokens; longer rows have fewer empty places.
                flags = () if is_stsb else ("--config.phases[0].row_length=512",)
                job = make_job(options, name, test, settings, start, seed, flags)
                before = "" if seed else f"{start}, before"
                yield Training(f"{start}, after", before, (test,), seed, job)
        for pairs in ("same", "neighbors") if options.store and not seed else ():
            settings = {
                "name": "store_pairs", "data": Path(options.store).resolve(), "pairs": pairs,
                "most_pairs": 20_000,
            }  # fmt: skip
            flags = ("--config.model.hidden_dropout_prob=0.1",)
            name = f"unlabeled-{pairs}-{seed}"
            job = make_job(options, name, "unlabeled", settings, PRETRAINED, seed, flags)
            row = f"{PRETRAINED}, after sentences without labels, {pairs}"
            yield Training(row, "", tuple(paths), seed, job)


def stsb_settings(path: Path, loss: str) -> dict[str, object]:
    return {"name": "scored_pairs", "data": path, "highest_score": 5, "loss": loss}


def make_job(
    options: argparse.Namespace,
    name: str,
    what: str,
    settings: Mapping[str, object],
    start: str,
    seed: int,
    flags: Sequence[str] = (),
) -> Job:
    """Returns a job with the recipe, the steps of `what` and the values of a start."""
    steps = getattr(options, f"{what}_steps")
    first = (
        task_runs.random_weights(options.pretrained)
        if start == RANDOM
        else (f"--config.init={task_runs.absolute(options.pretrained)}",)
    )
    own = (f"--config.optimizer.learning_rate={options.rate}", f"--config.seed={seed}")
    limited = {**settings, "fewest_steps": steps, "most_steps": steps}
    return Job(name, "sentences", Task(what, limited, ()), (*RECIPE, *own, *first, *flags))


def kept(options: argparse.Namespace, job: Job) -> Path:
    """Returns the file of what is measured of a run; another recipe has another one."""
    return options.out.resolve() / "runs" / f"{job.name}-{job.digest}.json"


def finetune(options: argparse.Namespace, job: Job) -> Path:
    """Trains, or resumes; returns the workdir."""
    workdir = kept(options, job).with_suffix("")
    if not (workdir / "results.json").exists():
        words = [*job.words, f"--cpu_devices={options.devices}", f"--workdir={workdir}"]
        run_command(words, workdir.with_suffix(".log"))
    return workdir


def finish(path: Path, workdir: Path, found: dict[str, Any]) -> None:
    """Keeps what is measured, and removes the checkpoints."""
    from bert_jax.storage import atomic

    atomic.write_text(path, json.dumps(found, indent=2) + "\n")
    shutil.rmtree(workdir)  # of a small model some 100 MB


def trained(
    options: argparse.Namespace, training: Training, paths: dict[str, Path]
) -> dict[str, dict[str, Values]]:
    """Returns the values on each test of a training, by row; trains unless they are kept."""
    path = kept(options, training.job)
    if not path.exists():
        workdir = finetune(options, training.job)
        found = {}
        for test in training.tests:
            log = path.with_name(f"{path.stem}-{test}.log")
            rows = {str(workdir): training.row, f"{workdir}@0": training.before}
            found[test] = evaluated(options, rows, test, paths[test], log)
        finish(path, workdir, found)
    return json.loads(path.read_text())


def evaluated(
    options: argparse.Namespace, rows: Mapping[str, str], test: str, path: Path, log: Path
) -> dict[str, Values]:
    """Returns the measures of a model, of its start if it has one, and of baselines without a
    model; kept in `log`. A correlation that is not defined counts as 0.

    rows: of the model and what stands beside it; "" leaves one out.
    """
    model, *_ = rows
    flag = "scored_pairs" if test == "stsb" else "retrieval"
    words = ["evaluate", f"--model={model}", f"--{flag}={path}", "--json"]

    def lines() -> list[str]:
        return [one for one in log.read_text().splitlines() if one.startswith("{")]

    if not (log.exists() and lines()):
        run_command([*words, f"--cpu_devices={options.devices}"], log)
    found: dict[str, Values] = {}
    for one in json.loads(lines()[-1])["rows"]:
        if name := rows.get(one["model"], one["model"]):
            found.setdefault(name, {})[one["measure"]] = one["value"] or 0.0
    return found


def save(
    out: Path, rows: dict[str, dict[str, list[Values]]], notes: Sequence[str], about: str
) -> None:
    """Writes the tables of what is measured so far."""
    from bert_jax.storage import atomic

    parts = [table(test, rows[test]) for test in rows if rows[test]]
    atomic.write_text(out / "table.md", "\n\n".join([*parts, *notes, f"{about}."]) + "\n")


def place(row: str) -> tuple[int, bool]:
    """Orders rows: each start before and after, then baselines, then MiniLM."""
    start = row.split(",")[0]
    known = [PRETRAINED, RANDOM]
    return (known.index(start) if start in known else 2 + (row == "MiniLM"), "before" not in row)


def table(test: str, rows: dict[str, list[Values]]) -> str:
    """Returns a table with the mean over the seeds, and their range if there are several."""
    measures = TESTS[test]

    def cell(values: Sequence[float]) -> str:
        mean = f"{statistics.fmean(values):.4f}"
        return mean if len(values) < 2 else f"{mean} ({min(values):.4f} to {max(values):.4f})"

    lines = [[test, "seeds", *measures], ["---", "---:", *["---"] * len(measures)]]
    for row in sorted(rows, key=place):
        found = rows[row]
        cells = [cell([values[measure] for values in found]) for measure in measures]
        lines.append([row, str(len(found)) if "after" in row else "", *cells])
    return task_runs.table(lines)


if __name__ == "__main__":
    with harness.errors_are_one_line():
        main()
