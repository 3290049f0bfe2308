"""Fine-tuned runs that are compared: tasks with some of their rows, the runs, paired differences.

A run is a process of `bert-jax finetune`, then one of `predict`, with all cores; or several runs at
once, each with one core: for small models two of them are faster than one after another. What is
compared of a finished run is kept in a folder, and one that was interrupted resumes, so the same
command again does what is left. Differences are paired by seed; the interval of 95 % holds
Student's t over the seeds and a bootstrap of seeds and held-out examples, see
bert_jax/ablation/statistics.py. Of one seed, it is over examples only.
"""

import dataclasses
import functools
import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
import numpy as np
import paragraphs
from commands import ONE_CORE, run_command, run_each

if TYPE_CHECKING:
    from bert_jax.ablation.intervals import Interval

FOLDERS = {"sst2": "SST-2", "cola": "CoLA", "rte": "RTE"}  # in glue/
TASKS = (*FOLDERS, "sentences", "paragraphs")
SENTENCES = "*_GroundTruth.txt"
QUESTIONS = "questions/squad-form-80-articles.json"
RESAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class Task:
    """A task with its files, and the held-out examples as `predict` names them."""

    name: str
    settings: Mapping[str, object]  # of config.task
    held_out: tuple[str, ...]

    def read(self) -> tuple[Any, Any, Any, Any]:
        """Returns its kind, its settings, its training and its held-out examples."""
        from bert_jax.config.task_settings import TaskConfig
        from bert_jax.finetune.tasks.task_kinds import kind_of

        config = TaskConfig(**{key: str(value) for key, value in self.settings.items()})
        kind = kind_of(config)
        return kind, config, *kind.read(config)


@dataclasses.dataclass(frozen=True)
class Run:
    """The metric and the predictions of a run, or of a baseline, for the held-out examples."""

    metric: str
    value: float | None
    predictions: np.ndarray
    fill: str = ""


@dataclasses.dataclass(frozen=True)
class Job:
    """A run to be: its name, which is that of its files, its config, task and further flags.

    keeps_model: its workdir stays, for others that need the model.
    """

    name: str
    config: str
    task: Task
    flags: tuple[str, ...]
    keeps_model: bool = False

    def workdir(self, out: Path) -> Path:
        """Returns its folder, which `finished` removes unless the model is kept."""
        return out.resolve() / "runs" / f"{self.name}-{self.digest}"

    @property
    def words(self) -> list[str]:
        settings = [f"--config.task.{key}={value}" for key, value in self.task.settings.items()]
        return ["finetune", f"--config={self.config}", *self.flags, *settings]

    @property
    def digest(self) -> str:
        """Of the command, with the content of the files that it names in place of their paths, and
        the values of its config: another recipe makes another run, another folder does not."""
        from bert_jax.config.config_files import load
        from bert_jax.config.serialization import to_dict
        from bert_jax.storage.digest import json_digest

        words = [word for word in self.words if not word.startswith("--config=")]
        return json_digest([[*map(without_path, words)], to_dict(load(self.config))])[:12]


def without_path(word: str) -> str:
    """Returns a flag with a digest of what lies at the path that is its value; others unchanged."""
    from bert_jax.workdir.layout import split_step

    flag, _, value = word.partition("=")
    path = Path(split_step(value)[0])
    return f"{flag}={content_digest(value)}" if path.is_absolute() and path.exists() else word


@functools.cache
def content_digest(source: str) -> str:
    """Returns the digest of a file, of the files of a folder or of a checkpoint of a run, or of the
    manifest of a token store, which has digests of the rest."""
    from bert_jax.storage.digest import file_digest, json_digest
    from bert_jax.workdir.layout import Workdir, split_step

    path, step = split_step(absolute(source))
    folder = Path(path) if step is None else Path(Workdir.open(path).checkpoints) / str(step)
    if folder.is_file():
        return file_digest(folder)
    if (manifest := folder / "manifest.json").is_file():
        return file_digest(manifest)
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return json_digest([(file.relative_to(folder).as_posix(), file_digest(file)) for file in files])


def glue_folder(data: str | None, name: str) -> Path:
    """Returns the folder of a task of GLUE; ends the program if it is not there."""
    folder = given(data) / "glue" / FOLDERS[name]
    if not folder.is_dir():
        harness.fail(f"--data={data}: no folder glue/{FOLDERS[name]}")
    return folder.resolve()


def given(data: str | None) -> Path:
    if not data:
        harness.fail("--data is empty and BERT_JAX_REAL_DATA is not set; give the folder")
    return Path(data)


def find_task(options: Any, name: str, rows: int | None, seed: int) -> Task | None:
    """Returns a task with rows drawn at random from its training rows, or with all; None if it has
    fewer. Ends the program if its files are not there.

    options: data, sentences and out.
    """
    own = options.out.resolve() / "data" / f"{name}-{rows or 'all'}-{seed}"
    if name == "paragraphs":
        source = given(options.data) / QUESTIONS
        if not source.is_file():
            harness.fail(f"--data={options.data}: no {QUESTIONS}")
        paragraphs.write(source, own, rows)
        settings = {"name": "multiple_choice", "data": own}
        return Task(name, settings, (f"--input={own}", "--split=dev"))
    if name == "sentences":
        train, held_out = write_sentences(options.sentences, own.with_name("sentences"))
        drawn = draw(train, own / train.name, 1, rows, seed)
        columns = {"name": "regression", "held_out": held_out, "label": "score"}
        return drawn and Task(
            name, {**columns, "data": drawn}, (f"--input={held_out}", "--text=text")
        )
    folder = glue_folder(options.data, name)
    return draw_glue(name, folder, own, rows, seed) if rows else glue_task(name, folder)


def glue_task(name: str, folder: Path) -> Task:
    return Task(name, {"name": name, "data": folder}, (f"--input={folder}", "--split=dev"))


def draw_glue(name: str, folder: Path, own: Path, rows: int, seed: int) -> Task | None:
    """Returns a task of GLUE in a folder with some of its training rows; None if it has fewer."""
    from bert_jax.finetune.tasks import glue
    from bert_jax.finetune.tasks.splits import find_split

    about = glue.TASKS[name]
    (train,) = find_split(name, folder, about.files, "train")
    titles = 0 if train.name in about.columns else 1
    if draw(train, own / train.name, titles, rows, seed) is None:
        return None
    for path in find_split(name, folder, about.files, "dev"):
        shutil.copyfile(path, own / path.name)
    return glue_task(name, own)


def draw(source: Path, path: Path, titles: int, rows: int | None, seed: int) -> Path | None:
    """Writes rows of a table drawn at random, of which fewer are the first of more; returns the
    path, that of the table if all are taken, or None if it has fewer."""
    if rows is None:
        return source
    lines = source.read_text("utf-8").removesuffix("\n").split("\n")
    if rows > len(lines) - titles:
        return None
    chosen = np.random.default_rng(seed).permutation(len(lines) - titles)[:rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines[:titles], *(lines[titles + i] for i in chosen), ""]), "utf-8")
    return path


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
    parts = order[len(rows) // 10 :], order[: len(rows) // 10]
    paths = [out / "train.tsv", out / "held_out.tsv"]
    out.mkdir(parents=True, exist_ok=True)
    for path, chosen in zip(paths, parts, strict=True):
        path.write_text("score\ttext\n" + "".join("\t".join(rows[i]) + "\n" for i in chosen))
    return paths


def absolute(source: str) -> str:
    """Returns the absolute path of a model, of a run with the step of its newest checkpoint: what
    is trained further is another model, with results of its own. A name on the hub stays."""
    from bert_jax.checkpoint.catalog import complete_steps
    from bert_jax.storage import hub
    from bert_jax.workdir.layout import Workdir, split_step

    if hub.is_hub(source):
        return source
    path, step = split_step(source)
    workdir = Workdir.open(Path(path).resolve())
    if step is None and workdir.is_run():
        step = max(complete_steps(workdir.checkpoints), default=None)
    return str(workdir.path) + (f"@{step}" if step is not None else "")


def random_weights(source: str) -> tuple[str, ...]:
    """Returns the flags of a model with the architecture, the positional heads and the tokenizer of
    another, and otherwise published initial values: no counts, and no layer near the identity."""
    from bert_jax.config.serialization import flatten
    from bert_jax.configs.ablations import RANDOM_WORDS
    from bert_jax.storage import hub
    from bert_jax.training.resolve import find_architecture
    from bert_jax.workdir.layout import split_step

    model = find_architecture(source)
    if model is None:
        harness.fail(f"--pretrained={source}: no run, import or export")
    folder = Path(split_step(source)[0]).resolve()
    tokenizer = source if hub.is_hub(source) else folder / "tokenizer.json"
    values = flatten({"model": dataclasses.asdict(model)}) | RANDOM_WORDS
    flags = [f"--config.{key}={value}" for key, value in values.items()]
    return (f"--config.task.tokenizer={tokenizer}", *flags)


def run_all(jobs: Sequence[Job], out: Path, at_once: int) -> Iterator[Run]:
    """Yields the run of each job, in their order, and shows its metric."""

    def run(job: Job) -> tuple[Run, float]:
        start = time.perf_counter()
        return finished(job, out, alone=at_once == 1), time.perf_counter() - start

    for job, (made, seconds) in zip(jobs, run_each(run, jobs, at_once), strict=True):
        harness.record(run=job.name, seconds=seconds, **{made.metric: made.value})
        print(f"# {job.name}: {made.metric} {shown(made.value)}, {seconds:.0f} s", flush=True)
        yield made


def finished(job: Job, out: Path, *, alone: bool) -> Run:
    """Returns a run; trains it and predicts the held-out examples, unless that is kept."""
    from bert_jax.storage.atomic import write_bytes

    workdir = job.workdir(out)
    results, predictions, log = (
        workdir.with_name(f"{workdir.name}.{end}") for end in ("json", "tsv", "log")
    )
    # Its own results tell a model that is kept from one whose training was interrupted.
    there = [results, *([workdir / "results.json"] if job.keeps_model else [])]
    if not all(path.exists() for path in there):
        one, environment = ([], None) if alone else (["--cpu_devices=1"], ONE_CORE)
        run_command([*job.words, *one, f"--workdir={workdir}"], log, environment)
        words = [f"--model={workdir}", *job.task.held_out, f"--out={predictions}", "--overwrite"]
        run_command(["predict", *words], log, environment)
        write_bytes(results, (workdir / "results.json").read_bytes())
        if not job.keeps_model:
            shutil.rmtree(workdir)  # a checkpoint of a small model has some 100 MB
    fills = re.findall(r"([\d.]+%) real", log.read_text())
    found = json.loads(results.read_text())
    metric = found["metrics"][0]
    values = read_predictions(job.task, predictions)
    return Run(metric, found["runs"][0][metric], values, fills[0] if fills else "")


def read_predictions(task: Task, path: Path) -> np.ndarray:
    """Returns the predicted classes, or the scores."""
    from bert_jax.finetune.tasks import glue

    words = [line.split("\t")[1] for line in path.read_text().splitlines()[1:]]
    if task.name not in glue.TASKS:
        return np.array(words, np.float64)
    about = glue.TASKS[task.name]
    return np.array([(about.values or about.labels).index(word) for word in words])


def baselines(task: Task) -> dict[str, Run]:
    """Returns what is predicted without a model, from the same training rows."""
    kind, config, train, held_out = task.read()
    found = dict(kind.baselines(config, train, held_out))
    if task.name == "paragraphs":
        asked = held_out.examples
        found["BM25"] = paragraphs.bm25([x.context for x in asked], [x.choices for x in asked])
    metric = kind.metrics(config, train.labels)[0]
    measured = {
        name: kind.compute_metrics(config, held_out, values)[metric]
        for name, values in found.items()
    }
    return {name: Run(metric, measured[name], np.array(found[name])) for name in found}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A mean paired difference of a metric.

    Attributes:
        detectable: the difference that such a comparison shows with a power of 80 %, see
            bert_jax/ablation/statistics.py; None of fewer seeds than it takes.
    """

    mean: float
    interval: "Interval"
    detectable: float | None

    def __str__(self) -> str:
        low, high = self.interval
        said = "excludes 0" if self.interval.excludes_zero else "includes 0"
        return f"{self.mean:+.4f} ({low:+.4f} to {high:+.4f}, {said})"


def compare(labels: np.ndarray, ours: Sequence[Run], others: Sequence[Run]) -> Comparison:
    """Returns the mean paired difference of the metric with its interval; a correlation that is not
    defined counts as 0."""
    from bert_jax.ablation.intervals import draw_weights, of_resamples, student_t
    from bert_jax.ablation.statistics import FEWEST_SEEDS, detectable
    from bert_jax.finetune.tasks.metrics import METRICS

    metric, count = METRICS[ours[0].metric], len(labels)
    pairs = list(zip(ours, others, strict=False))

    def differences(chosen: np.ndarray) -> np.ndarray:  # of each seed
        values = [
            [metric(labels[chosen], run.predictions[chosen]) or 0.0 for run in x] for x in pairs
        ]
        return np.subtract(*np.transpose(values))

    by_seed = differences(np.arange(count))
    student = student_t(by_seed)
    drawn, of_all_seeds = [], []
    for weights in draw_weights(len(pairs), count, RESAMPLES, np.random.default_rng(0)):
        for of_seeds, of_examples in zip(*weights, strict=True):
            found = differences(np.repeat(np.arange(count), of_examples.astype(int)))
            drawn.append(np.average(found, weights=of_seeds))
            of_all_seeds.append(found.mean())
    interval, smallest = of_resamples(np.array(drawn)).interval, None
    if len(pairs) > 1:
        interval = interval.holding(student.interval)
    if len(pairs) >= FEWEST_SEEDS:
        sds = float(np.std(by_seed, ddof=1)), float(np.std(of_all_seeds))
        smallest = detectable(*sds, len(pairs), count)
    return Comparison(student.mean, interval, smallest)


def numbers(flag: str, text: str) -> list[int | None]:
    """Parses "250,1000,all"; None: all rows."""
    words = text.split(",")
    if wrong := [word for word in words if word != "all" and not (word.isdecimal() and int(word))]:
        harness.fail(f"--{flag}={wrong[0]}: give numbers of rows, or all")
    found = [None if word == "all" else int(word) for word in words]
    harness.each_once(flag, [rows or "all" for rows in found])
    return found


def slug(text: str) -> str:
    """Returns a part of a file's name."""
    return re.sub(r"\W+", "_", text)


def said(rows: int | None) -> str:
    return "all" if rows is None else f"{rows:,}"


def shown(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.4f}"


def table(lines: Sequence[Sequence[str]]) -> str:
    """Returns rows of a Markdown table."""
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in x)} |" for x in lines)
