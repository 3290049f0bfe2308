"""What a teacher and a generator are worth at equal FLOPs, judged by tasks alone.

    python benchmarks/network_runs.py --store=STORE --teacher=RUN@4000 --data=REAL_DATA --out=FOLDER
    python benchmarks/network_runs.py --store=STORE --teacher=RUN@4000 --minilm=FOLDER --at_once=2 …

Pretraining: full sentences, one seed each, the start and the optimizer of `--config`, all with the
FLOPs of `--steps` steps of the first; a warmup of a tenth. A step of two networks counts both.

masked tokens: the model of `--config`.
half, no teacher: half of its layers.
half, teacher: half of its layers, which start as evenly spread ones of `--teacher`, with
    embeddings and head; divergence and cosine at the masked positions. The FLOPs of the teacher
    are counted.
half, teacher not counted: the same with as many steps as without a teacher.
replaced tokens: ELECTRA; the generator has half of the width, with two heads of four.

Each is fine-tuned by `glue_small` for SST-2 with `--rows` of its rows and for CoLA with all rows.
A seed draws rows and order, the same for all starts.

With `--minilm`, a BERT of transformers such as all-MiniLM-L6-v2, a student of its layers 0, 2 and 4
is fine-tuned for SST-2 with the same rows: by labels alone, and with that model, fine-tuned on
these rows, as teacher.

`--starts` takes some of these beside the first, by the names of their folders; a later command adds
others.
A run's minutes are its steps times the median seconds of one: without compilation and evaluations,
and without interruptions, but with what other programs took.
Finished runs are kept in `--out`, and interrupted ones resume: the same command again does what is
left. How runs are compared: task_runs.py. The smallest difference is that which such a comparison
shows with a power of 80 %, see bert_jax/ablation/statistics.py.
"""

import argparse
import dataclasses
import json
import os
import shutil
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import harness
import numpy as np
import task_runs
from commands import Clock
from task_runs import Job, Run, Task

MASKED, ALONE, TAUGHT, FREE, REPLACED = STARTS = (
    "masked tokens", "half, no teacher", "half, teacher", "half, teacher not counted",
    "replaced tokens",
)  # fmt: skip
NAMES = [task_runs.slug(start) for start in STARTS]  # of their folders
MINILM, BY_LABELS, BY_TEACHER = "MiniLM", "MiniLM's student, labels", "MiniLM's student, teacher"
PAIRS = (  # that are compared: the second one is subtracted
    (REPLACED, MASKED), (ALONE, MASKED), (TAUGHT, MASKED), (FREE, MASKED), (TAUGHT, ALONE),
    (FREE, ALONE), (BY_LABELS, MINILM), (BY_TEACHER, MINILM), (BY_TEACHER, BY_LABELS),
)  # fmt: skip
MINILM_LAYERS = (0, 2, 4)  # that its student keeps
TASKS = ("sst2", "cola")
Settings = dict[str, Any]
Runs = dict[str, list[Run]]  # by start


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """A run to be pretrained: its steps, and the FLOPs of one with all networks."""

    settings: Settings
    steps: int
    step_flops: float


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--store", type=Path, required=True, help="the token store of all runs")
    parser.add_argument("--teacher", required=True, help="RUN@STEP, of the sizes of --config")
    parser.add_argument("--minilm", type=Path, help="a finished encoder of others, for SST-2")
    parser.add_argument("--data", default=os.environ.get("BERT_JAX_REAL_DATA"), help="the folder")
    parser.add_argument("--out", type=Path, required=True, help="the folder of runs and results")
    parser.add_argument("--config", default="wiki_books_small")
    parser.add_argument("--steps", type=int, default=2000, help="of the model on masked tokens")
    parser.add_argument("--rows", type=int, default=4000, help="of SST-2")
    parser.add_argument("--seeds", type=int, default=5, help="of a fine-tuning")
    parser.add_argument("--tasks", default=",".join(TASKS), help=f"some of {','.join(TASKS)}")
    parser.add_argument("--starts", default=",".join(NAMES), help=f"some of {','.join(NAMES)}")
    parser.add_argument("--at_once", type=int, default=1, help="fine-tunings, each on one core")
    options = parser.parse_args()
    harness.at_least_one(options, "steps", "rows", "at_once")
    if options.seeds < 3:
        harness.fail(f"--seeds={options.seeds}: at least 3 are needed for an interval")
    names = harness.some_of("tasks", options.tasks, TASKS)
    tasks = {name: [find_task(options, name, seed) for seed in seeds(options)] for name in names}
    chosen = harness.some_of("starts", options.starts, NAMES)
    plan = {
        start: each
        for start, each in budgets(options).items()
        if start == MASKED or task_runs.slug(start) in chosen
    }
    pretrain(options, plan)
    folders = {start: str(workdir(options, start)) for start in plan}
    tables = []
    for name, drawn in tasks.items():
        runs = fine_tune(options, drawn, folders)
        if options.minilm and name == "sst2":
            runs |= teach(options, drawn)
        tables.append(table(options, name, drawn, runs, plan))
        print(tables[-1], flush=True)
        (options.out / "table.md").write_text("".join(tables))


def seeds(options: argparse.Namespace) -> range:
    return range(options.seeds)


def find_task(options: argparse.Namespace, name: str, seed: int) -> Task:
    rows = options.rows if name == "sst2" else None
    return task_runs.find_task(options, name, rows, seed) or harness.fail(
        f"--rows={rows}: {name} has fewer"
    )


def spread(layers: int, kept: int) -> list[int]:
    """Returns evenly spread layers: 0, 2, 4, 7, 9, 11 of 12, as DistilBERT's."""
    return np.linspace(0, layers - 1, kept).round().astype(int).tolist()


def variants(model: Any, teacher: str) -> dict[str, Settings]:
    """Returns the settings of each pretraining beside those of the config."""
    half = model.num_hidden_layers // 2
    student = {"model.num_hidden_layers": half}
    layers = ",".join(map(str, spread(model.num_hidden_layers, half)))
    taught = {
        **student, "teacher": teacher, "distillation.teacher_layers": layers,
        "distillation.positions": "masked",
    }  # fmt: skip
    replaced = {
        "model.layout": "electra", "data.replaced_tokens": True,
        "data.masking": "with_replacement", "data.mask_share": 0.85, "data.random_share": 0.0,
        "model.generator.hidden_size": model.hidden_size // 2,
        "model.generator.num_attention_heads": model.num_attention_heads // 2,
        "model.generator.intermediate_size": model.intermediate_size // 2,
    }  # fmt: skip
    return dict(zip(STARTS, ({}, student, taught, taught, replaced), strict=True))


def budgets(options: argparse.Namespace) -> dict[str, Pretraining]:
    """Returns what is pretrained; UserError if the teacher is not there or of other sizes."""
    from bert_jax.metrics.flops import step_flops
    from bert_jax.training.resolve import find_architecture, load

    common = {"data.pairing": "full_sentences", "data.store": str(options.store.resolve())}
    path = task_runs.absolute(options.teacher)
    teacher = find_architecture(path)
    if teacher is None:
        harness.fail(f"--teacher={options.teacher}: no run, import or export")
    first = load(options.config).model
    for key in ("hidden_size", "num_hidden_layers"):
        if (found := getattr(teacher, key)) != (own := getattr(first, key)):
            harness.fail(f"--teacher={options.teacher}: its {key} is {found}, not {own}")
    plan: dict[str, Pretraining] = {}
    for start, own in variants(first, path).items():
        config = load(options.config, {**common, **own})
        (phase,) = config.phases
        counted = step_flops(config, phase, teacher if start == TAUGHT else None)
        per_step = step_flops(config, phase, teacher if "teacher" in own else None)
        of_first = plan[MASKED].step_flops if plan else counted
        steps = round(options.steps * of_first / counted)
        scaled = {"phases[0].steps": steps, "optimizer.warmup_steps": max(1, steps // 10)}
        plan[start] = Pretraining({**common, **own, **scaled}, steps, per_step)
    return plan


def workdir(options: argparse.Namespace, start: str) -> Path:
    return options.out.resolve() / "pretrained" / task_runs.slug(start)


def pretrain(options: argparse.Namespace, plan: Mapping[str, Pretraining]) -> None:
    """Makes the runs that are left."""
    from bert_jax.metrics.run_records import read_records
    from bert_jax.workdir.layout import Workdir

    request = {
        "config": options.config, "steps": options.steps,
        "store": task_runs.content_digest(str(options.store.resolve())),
        "teacher": task_runs.content_digest(task_runs.absolute(options.teacher)),
    }  # fmt: skip
    clock = Clock(options.out / "pretrained" / "clock.json", request)
    for start, each in plan.items():
        folder = workdir(options, start)
        settings = [f"--config.{key}={value}" for key, value in each.settings.items()]
        words = ["pretrain", f"--config={options.config}", *settings, f"--workdir={folder}"]
        metrics = Workdir.open(folder).metrics
        clock.run(folder.name, words, lambda path=metrics: bool(read_records(path, "finished")))


def fine_tune(
    options: argparse.Namespace, drawn: list[Task], starts: Mapping[str, str]
) -> dict[str, list[Run]]:
    """Returns the runs of each start, of each seed; a seed after another."""
    planned = [
        (start, make_job(start, task, seed, source))
        for seed, task in enumerate(drawn)
        for start, source in starts.items()
    ]
    return gather(options, planned)


def gather(options: argparse.Namespace, planned: list[tuple[str, Job]]) -> Runs:
    found: Runs = {}
    jobs = [job for _, job in planned]
    finished = task_runs.run_all(jobs, options.out, options.at_once)
    for (start, _), run in zip(planned, finished, strict=True):
        found.setdefault(start, []).append(run)
    return found


def make_job(start: str, task: Task, seed: int, source: str, *flags: str) -> Job:
    name = f"{task.name}-{task_runs.slug(start)}-{seed}"
    own = [f"--config.init={task_runs.absolute(source)}", f"--config.seed={seed}", *flags]
    return Job(name, "glue_small", task, (*own,))


def teach(options: argparse.Namespace, drawn: list[Task]) -> Runs:
    """Returns the runs of MiniLM and of its student, with and without it as teacher."""
    student = str(cut(options.minilm, options.out.resolve() / "minilm_student"))
    teachers = [
        dataclasses.replace(make_job(MINILM, task, seed, str(options.minilm)), keeps_model=True)
        for seed, task in enumerate(drawn)
    ]
    found = gather(options, [(MINILM, teacher) for teacher in teachers])
    planned = []
    for seed, task in enumerate(drawn):
        flag = f"--config.task.teacher={teachers[seed].workdir(options.out)}"
        planned.append((BY_LABELS, make_job(BY_LABELS, task, seed, student)))
        planned.append((BY_TEACHER, make_job(BY_TEACHER, task, seed, student, flag)))
    return found | gather(options, planned)


def cut(model: Path, out: Path) -> Path:
    """Writes a BERT of transformers with some of its layers; returns the folder."""
    from safetensors.numpy import load_file, save_file

    config = json.loads((model / "config.json").read_text())
    mark, found = "encoder.layer.", {}
    for name, value in load_file(model / "model.safetensors").items():
        before, _, after = name.partition(mark)
        number, _, rest = after.partition(".")
        if not after:
            found[name] = value
        elif int(number) in MINILM_LAYERS:
            found[f"{before}{mark}{MINILM_LAYERS.index(int(number))}.{rest}"] = value
    shutil.copytree(model, out, dirs_exist_ok=True)
    save_file(found, out / "model.safetensors", metadata={"format": "pt"})
    config["num_hidden_layers"] = len(MINILM_LAYERS)
    (out / "config.json").write_text(json.dumps(config))
    return out


def table(
    options: argparse.Namespace,
    name: str,
    drawn: list[Task],
    runs: Runs,
    plan: Mapping[str, Pretraining],
) -> str:
    """Returns two Markdown tables of a task: the starts and the baselines, and the comparisons."""
    kind, _, _, held_out = drawn[0].read()
    labels = np.array(kind.labels(held_out))
    metric = runs[MASKED][0].metric
    lines = [
        [name, "steps", "PFLOP", "minutes", f"{metric}, median", "of the seeds"],
        ["---", *["---:"] * 4, "---"],
    ]
    baselines = [task_runs.baselines(task) for task in drawn]
    for start, own in {
        **runs,
        **{one: [x[one] for x in baselines] for one in baselines[0]},
    }.items():
        values = [run.value or 0.0 for run in own]
        median = task_runs.shown(statistics.median(values))
        listed = " ".join(map(task_runs.shown, values))
        lines.append([start, *spent(options, start, plan), median, listed])
        harness.record(task=name, start=start, values=values)
    pairs = [["difference", "mean, 95 %", "shown with a power of 80 %"], ["---", "---", "---:"]]
    for ours, other in PAIRS:
        if {ours, other} <= runs.keys():
            found = task_runs.compare(labels, runs[ours], runs[other])
            pairs.append([f"{ours} less {other}", str(found), f"{found.detectable:.4f}"])
            harness.record(task=name, ours=ours, other=other, **dataclasses.asdict(found))
    about = f"{len(labels):,} held-out examples. {harness.machine('jax')}."
    return f"\n{task_runs.table(lines)}\n\n{task_runs.table(pairs)}\n\n{about}\n"


def spent(options: argparse.Namespace, start: str, plan: Mapping[str, Pretraining]) -> list[str]:
    """Returns steps, FLOPs and minutes of a start, "" of one that is not pretrained here."""
    if start not in plan:
        return ["", "", ""]
    from bert_jax.metrics.run_records import read_records
    from bert_jax.workdir.layout import Workdir

    each = plan[start]
    records = read_records(Workdir.open(workdir(options, start)).metrics, "train")
    minutes = each.steps * statistics.median(one["step_seconds"] for one in records) / 60
    return [f"{each.steps:,}", f"{each.steps * each.step_flops / 1e15:.3f}", f"{minutes:.0f}"]


if __name__ == "__main__":
    with harness.errors_are_one_line():
        main()
