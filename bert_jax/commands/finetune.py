"""`bert-jax finetune` and `bert-jax predict`: a model for a task."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from bert_jax.commands.command import (
    Command,
    define_cpu_devices,
    define_number,
    define_weights,
    need,
)
from bert_jax.commands.kinds import predictions, task_runs
from bert_jax.commands.paths import define_input, define_output, define_overwrite, model_paths
from bert_jax.commands.run_flags import (
    define_run,
    find_deadline,
    find_processes,
    job_of,
    run_options,
    stopping_at,
)
from bert_jax.errors import UsageError

if TYPE_CHECKING:
    from bert_jax.config.schema import Config


def _define_finetune(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.config.config_files import define_config

    define_config(values, words, default="glue")
    define_run(values, task_runs)
    seeds = "number of runs, with seeds from config.seed on, each in a folder of --workdir"
    flags.DEFINE_integer("seeds", 1, seeds, 1, flag_values=values)
    define_weights(values, "config.init_weights, of the run that config.init names")


def _run_finetune(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "workdir")
    start = time.monotonic()
    from bert_jax.finetune.runs import finetune_seeds, seed_folders
    from bert_jax.training.resolve import read_config

    first, *others = seed_folders(values.workdir, values.seeds)
    config = read_config(values, first)
    if values["weights"].present:
        config = config.replace("init_weights", values.weights)
    from bert_jax.distributed.job import Job, in_process_job
    from bert_jax.runtime import compile_cache

    topology, options = find_processes(values, config), run_options(values)
    if others and topology.num_processes > 1:
        raise UsageError("--seeds runs in one process; start a job for each --config.seed")
    deadline = find_deadline(values, config, start)

    @contextlib.contextmanager
    def start_job(seeded: "Config") -> Iterator[Job]:
        made = in_process_job(seeded) if others else job_of(values, seeded, topology)
        with made as started, stopping_at(deadline, values, started) as job:
            yield job

    if others:
        compile_cache.use()
    from bert_jax.api.run_search import RunSearch

    finetune_seeds(
        config,
        values.workdir,
        values.seeds,
        start_job=start_job,
        options=options,
        open_search=RunSearch,
    )


def _define_predict(values: flags.FlagValues, words: Sequence[str]) -> None:
    model = (
        "folder of a fine-tuned run (also WORKDIR@STEP), of several seeds, or of an export, or "
        "hf:OWNER/NAME"
    )
    define_input(values, "model", model, locate=model_paths)
    source = (
        "input in the task's format: .tsv, .csv, .jsonl, CoNLL, SQuAD, the task's folder, or a "
        "dataset on the hub, hf:OWNER/NAME:SPLIT"
    )
    define_input(values, "input", source, on_hub=True)
    out = "file of the predictions: a table, CoNLL's form, or SQuAD's predictions.json"
    define_output(values, "out", out, predictions)
    define_overwrite(values)
    split = "split in the folder of a task (default: test)"
    flags.DEFINE_string("split", None, split, flag_values=values)
    for name, what in (("text", "text"), ("pair", "second text")):
        column = f"column of the {what} (default: the task's)"
        flags.DEFINE_string(name, None, column, flag_values=values)
    choices = "columns of the choices, such as a,b,c (default: the task's)"
    flags.DEFINE_string("choices", None, choices, flag_values=values)
    threshold = "overrides config.task.null_threshold (SQuAD 2.0)"
    define_number(values, "null_threshold", None, threshold)
    nbest = "file of the best answers to each question, SQuAD's nbest_predictions.json"
    define_output(values, "nbest", nbest, predictions)
    odds = "file of the scores of no answer, SQuAD's null_odds.json"
    define_output(values, "null_odds", odds, predictions)
    define_cpu_devices(values)


def _run_predict(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "model", "input", "out")
    from bert_jax.finetune.predict_file import predict
    from bert_jax.runtime import compile_cache, cpu

    def given(*names: str) -> dict[str, Any]:
        found = {name: values[name].value for name in names}
        return {name: value for name, value in found.items() if value is not None}

    if values.cpu_devices:
        cpu.use_cpu_devices(values.cpu_devices)
    compile_cache.use()
    predict(
        values.model,
        values.input,
        Path(values.out),
        split=values.split,
        settings=given("text", "pair", "choices", "null_threshold"),
        more=given("nbest", "null_odds"),
        overwrite=values.overwrite,
    )


COMMANDS = {
    "finetune": Command(
        "train a model for a task, such as one of GLUE",
        "bert-jax finetune --config=glue --config.init=run --config.task.name=sst2 "
        "--config.task.data=SST-2 --workdir=sst2 --seeds=5",
        _define_finetune,
        _run_finetune,
        is_run=True,
    ),
    "predict": Command(
        "write the predictions of a fine-tuned model for a file",
        "bert-jax predict --model=sst2 --input=new.tsv --out=predictions.tsv",
        _define_predict,
        _run_predict,
    ),
}
