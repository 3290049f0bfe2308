"""The best model of 20 or 60 minutes on two cores, from raw text on; a row of docs/speedrun.md.

    python benchmarks/speedrun.py --minutes=20 --data=DATA --sentences=hutto_ICWSM_2014 --out=FOLDER
    python benchmarks/speedrun.py --minutes=20 … --vocab_size=8192 --config.optimizer.name=adamw
    python benchmarks/speedrun.py --minutes=20 … --config=mine.py

Needs the [finetune] extra and Linux. `--data` (default: $BERT_JAX_REAL_DATA) has wiki (of
WikiExtractor), books and glue; `--source=`, as of `bert-jax data build`, is text from elsewhere.
`--sentences` is as in label_efficiency.py.

In the budget: vocabulary, token store and `bert-jax pretrain`, with planning, counting, compiling
and evaluations, on two cores and from an empty cache. Not in it: measuring. The model is fine-tuned
with `glue_small` on 4,000 rows of each task, in `--seeds` runs. docs/speedrun.md has the rules.

Everything is kept in `--out`, also the time that was used, so the same command continues after an
interruption. A run of 20 or 60 minutes with all tasks is appended to docs/speedrun.md; others are
printed only.
"""

import argparse
import hashlib
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import task_runs
from commands import CORES, Clock, commit, run_command
from task_runs import Job, Task

PAGE = harness.ROOT / "docs/speedrun.md"
BUDGETS = (20, 60)  # minutes, of the table
FEWEST = 2
OVER = 1.05  # a run that took more of its budget is not appended
CONFIG, ENTRIES = "wiki_books_small", 30522
TASKS = {"sst2": "SST-2, accuracy", "cola": "CoLA, Matthews", "sentences": "sentences, Pearson"}
ROWS = 4000  # that each task trains on
RECIPE = "glue_small"  # that each task is fine-tuned with
HIDDEN, LONGEST, GUESSES = 500, 50, 3  # hidden words, of sentences of at most 50 words
COLUMNS = (
    "minutes", "date", "commit", "processor", "vocabulary + store + model, minutes", "tokens/s",
    "entries", "held-out loss, nats", "top-3 words", *TASKS.values(), "mean of tasks", "seeds",
    "text", "settings",
)  # fmt: skip


def main() -> None:
    parser = harness.parser(__doc__, epilog="--config.KEY=VALUE overrides a value of pretraining")
    parser.add_argument("--minutes", type=int, required=True, help="20 or 60; others to try it")
    parser.add_argument("--data", default=os.environ.get("BERT_JAX_REAL_DATA"), help="the folder")
    parser.add_argument("--source", action="append", help="instead of wiki and books in --data")
    parser.add_argument("--sentences", type=Path, help="the folder of the scored sentences")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the run")
    parser.add_argument("--config", default=CONFIG, help="of pretraining; default: %(default)s")
    parser.add_argument("--vocab_size", type=int, default=ENTRIES, help="default: %(default)s")
    parser.add_argument("--tasks", default=",".join(TASKS), help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each task")
    options, settings = parser.parse_known_args()
    if unknown := [word for word in settings if not word.startswith("--config.")]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    options.out = options.out.resolve()
    check(options, settings)
    with harness.errors_are_one_line():
        sources, digest = find_text(options)
        names = harness.some_of("tasks", options.tasks, TASKS)
        asked = {name: getattr(options, name) for name in ("minutes", "config", "vocab_size")}
        request = {**asked, "settings": settings, "text": digest}
        clock = Clock(options.out / "clock.json", request)
        tasks = [find_task(options, name) for name in names]
        harness.use_cores(CORES)
        os.environ.update(JAX_PLATFORMS="cpu", BERT_JAX_CACHE=str(options.out / "cache"))
        pretrain(options, settings, sources, clock)
        tuned = clock.record.setdefault("tasks", {})  # a repeated command keeps its row
        tuned.update({name: commit(options.out) for name in names if name not in tuned})
        clock.save()
        found = {**measure(options.out), **fine_tune(options, tasks)}
    cells = row(options, settings, clock.record, found)
    harness.record(**dict(zip(COLUMNS, cells, strict=True)))
    print("", *(f"{name}: {cell}" for name, cell in zip(COLUMNS, cells, strict=True)), sep="\n")
    line = task_runs.table([cells])
    print(f"\n{line}\n{append(line, reasons(options, clock.seconds))}")


def check(options: argparse.Namespace, settings: Sequence[str]) -> None:
    """Ends the program if it cannot do what is asked."""
    from bert_jax.config.config_files import load as load_config

    if not PAGE.is_file():
        harness.fail(f"{PAGE} is not there; start it in a clone of the repository")
    if options.minutes < FEWEST:
        harness.fail(f"--minutes={options.minutes}: at least {FEWEST} are needed")
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < CORES:
        harness.fail(f"{CORES} cores are needed that this process can be kept to, as by Linux")
    harness.at_least_one(options, "seeds")
    for key in ("init", "teacher", "data.store", "model.vocab_size"):
        if any(word.startswith(f"--config.{key}=") for word in settings):
            harness.fail(f"--config.{key}: the run starts from text, and sets this itself")
    with harness.errors_are_one_line():
        own = load_config(options.config, dict(map(harness.setting, settings)))
    for key in ("init", "teacher"):
        if getattr(own, key):
            harness.fail(f"--config={options.config}: sets {key}; the run starts from text alone")


def find_text(options: argparse.Namespace) -> tuple[list[str], str]:
    """Returns the sources, and a digest of their files that does not depend on their names.

    Raises:
        UserError: a source is not there.
    """
    from bert_jax.data_pipeline.sources import find, parse_source

    sources = options.source
    if not sources:
        data = task_runs.given(options.data).resolve()
        if not (data / "wiki").is_dir():
            harness.fail(f"--data={data}: no folder wiki; name the text by --source=KIND:PATH")
        sources = [f"wikiextractor:{data / 'wiki'}", f"books:{data / 'books'}"]
    files = [file for source in sources for file in find(parse_source(source)).files]
    digests = sorted(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
    return sources, hashlib.sha256("".join(digests).encode()).hexdigest()[:8]


def find_task(options: argparse.Namespace, name: str) -> Task:
    """Returns a task with `ROWS` of its training rows, always the same ones."""
    task = task_runs.find_task(options, name, ROWS, seed=0)
    return task or harness.fail(f"{name} has fewer than {ROWS:,} rows")


def pretrain(
    options: argparse.Namespace, settings: Sequence[str], sources: Sequence[str], clock: Clock
) -> None:
    """Makes vocabulary, store and model; what is there already is kept."""
    from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
    from bert_jax.errors import UserError
    from bert_jax.metrics.run_records import read_records
    from bert_jax.workdir.layout import Workdir

    out, text = options.out, [f"--source={source}" for source in sources]
    tokenizer, store, run = out / "tokenizer.json", out / "store", Workdir.open(out / "run")
    words = ["data", "tokenizer", *text, f"--vocab_size={options.vocab_size}", f"--out={tokenizer}"]
    clock.run("vocabulary", words, tokenizer.exists)
    words = ["data", "build", *text, f"--tokenizer={tokenizer}", "--dedup=exact", f"--out={store}"]
    clock.run("store", words, (store / "manifest.json").exists)
    left = 60 * options.minutes - sum(clock.seconds.values())
    if left < 1 and not run.is_run():
        raise UserError(f"--out={out}: its {options.minutes} minutes ended before training began")
    words = [
        "pretrain", f"--config={options.config}", *warmup(options, settings), *settings,
        f"--config.model.vocab_size={Tokenizer.load(tokenizer).vocab_size}",
        f"--config.data.store={store}", f"--workdir={run}", f"--cpu_devices={CORES}",
        f"--time_budget={max(1, left):.0f}s",
    ]  # fmt: skip
    clock.run("model", words, lambda: bool(read_records(run.metrics, "finished")))


def warmup(options: argparse.Namespace, settings: Sequence[str]) -> list[str]:
    """Returns the flag of the recipe's warmup, a tenth of the steps or so, unless another is asked
    for: the config's own is for 4,000 steps."""
    key = "--config.optimizer.warmup_steps="
    if options.config != CONFIG or any(word.startswith(key) for word in settings):
        return []
    return [f"{key}{5 * options.minutes}"]


def measure(out: Path) -> dict[str, Any]:
    """Returns the rate of training, the held-out loss, the words found, and what the text is."""
    from bert_jax.api.model import load
    from bert_jax.data_pipeline.analysis.hidden_words import hide_words
    from bert_jax.data_pipeline.store.store import open_store
    from bert_jax.errors import UserError
    from bert_jax.metrics.run_records import margin, read_records
    from bert_jax.reporting.fills import found_rate
    from bert_jax.workdir.layout import Workdir

    run, exported, log = Workdir.open(out / "run"), out / "exported", out / "measure.log"
    if not read_records(run.evaluations, "evaluate"):
        run_command(["evaluate", f"--workdir={run}"], log)
    if not exported.exists():
        run_command(["convert", "export", f"--workdir={run}", f"--out={exported}"], log)
    store, model = open_store(out / "store"), load(exported)

    def guesses(sentence: str) -> list[str]:
        try:
            return [guess.token for guess in model.fill_mask(sentence, top_k=GUESSES)[0]]
        except UserError:  # the mask is beyond the model's last position
            return []

    hidden = hide_words(store, seed=0, count=HIDDEN, longest=LONGEST, of_pieces=True)
    share = found_rate(hidden, [guesses(each.sentence) for each in hidden])
    evaluated = read_records(run.evaluations, "evaluate")[-1]
    rates = [record["tokens_per_second"] for record in read_records(run.metrics, "train")]
    sources = store.manifest["sources"]
    return {
        "tokens/s": f"{statistics.median(rates):,.0f}",
        "entries": f"{store.vocab_size:,}",
        "loss": f"{evaluated['mlm/loss']:.3f}{margin(evaluated, 'mlm/loss', '.3f')}",
        "words": f"{share:.1%} ± {1.96 * (share * (1 - share) / max(len(hidden), 1)) ** 0.5:.1%}",
        "documents": ", ".join(f"{each['name']} {each['documents']:,}" for each in sources),
    }


def fine_tune(options: argparse.Namespace, tasks: Sequence[Task]) -> dict[str, float]:
    """Returns the metric of each task, the median over seeds."""
    found, init = dict[str, float](), f"--config.init={options.out / 'run'}"
    for task in tasks:
        jobs = [
            Job(f"{task.name}-{seed}", RECIPE, task, (init, f"--config.seed={seed}"))
            for seed in range(options.seeds)
        ]
        # A correlation may not be defined.
        values = [run.value or 0.0 for run in task_runs.run_all(jobs, options.out, at_once=1)]
        found[task.name] = statistics.median(values)
        trivial = task_runs.baselines(task).items()
        said = (f"{name} {task_runs.shown(run.value)}" for name, run in trivial)
        print(f"# {task.name}, without a model: {', '.join(said)}", flush=True)
    return found


def row(
    options: argparse.Namespace,
    settings: Sequence[str],
    record: dict[str, Any],
    found: dict[str, Any],
) -> list[str]:
    """Returns the cells of a run."""
    minutes = [record["seconds"][stage] / 60 for stage in ("vocabulary", "store", "model")]
    metrics = [found[name] for name in TASKS if name in found]
    recipe = {"config": CONFIG, "vocab_size": ENTRIES}
    changed = [
        f"--{k}={getattr(options, k)}" for k, v in recipe.items() if getattr(options, k) != v
    ]
    made = record["commit"]
    later = sorted({record["tasks"][name] for name in TASKS if name in found} - {made})
    return [
        str(options.minutes),
        record["date"],
        f"{made}, tasks {', '.join(later)}" if later else made,
        record["processor"],
        f"{' + '.join(f'{each:.1f}' for each in minutes)} = {sum(minutes):.1f}",
        found["tokens/s"],
        found["entries"],
        found["loss"],
        found["words"],
        *(f"{found[name]:.4f}" if name in found else "" for name in TASKS),
        f"{statistics.mean(metrics):.4f}" if len(metrics) == len(TASKS) else "",
        str(options.seeds),
        f"{found['documents']} documents ({record['request']['text']})",
        " ".join(f"`{word}`" for word in [*changed, *settings]) or "the recipe",
    ]


def reasons(options: argparse.Namespace, seconds: dict[str, float]) -> list[str]:
    """Returns why a run is not for the table; none if it is."""
    found = []
    if options.minutes not in BUDGETS:
        found.append(f"the table has runs of {' and '.join(map(str, BUDGETS))} minutes")
    if sum(seconds.values()) > OVER * 60 * options.minutes:
        found.append(f"it took {sum(seconds.values()) / 60:.1f} minutes")
    missing = [f"without {name}" for name in TASKS if name not in options.tasks.split(",")]
    return found + missing


def append(text: str, why_not: Sequence[str]) -> str:
    """Adds a row at the end of the page, once; returns what became of it."""
    from bert_jax.storage import atomic

    page = PAGE.read_text("utf-8")
    if why_not:
        return f"not appended to {PAGE}: {'; '.join(why_not)}"
    if text in page:
        return f"is in {PAGE} already"
    atomic.write_text(PAGE, f"{page.rstrip()}\n{text}\n")
    return f"appended to {PAGE}"


if __name__ == "__main__":
    main()
