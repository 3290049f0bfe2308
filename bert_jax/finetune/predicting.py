"""`bert-jax predict`: the predictions of a fine-tuned model for a file, as a table."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Final

from bert_jax.checkpoint.manager import find_steps
from bert_jax.config.recorded import config_of
from bert_jax.config.schema import Config
from bert_jax.config.task_settings import TaskConfig
from bert_jax.convert.sources import read_model
from bert_jax.data_pipeline.storage import atomic
from bert_jax.errors import UserError, count
from bert_jax.finetune import glue, leaderboard
from bert_jax.finetune.examples import Examples
from bert_jax.finetune.held_out import predictions
from bert_jax.finetune.predictor import Predictor
from bert_jax.finetune.results import FILE
from bert_jax.finetune.task_files import read_table, texts_of
from bert_jax.runtime.console import console
from bert_jax.workdir import description
from bert_jax.workdir.layout import Workdir, split_step

_HEADER: Final = "index\tprediction\n"


def predict(
    model: str,
    source: str,
    out: Path | str,
    *,
    split: str = "test",
    text: str | None = None,
    pair: str | None = None,
) -> None:
    """Writes a table `index<TAB>prediction`, in the form of GLUE's leaderboard for its tasks.

    Args:
        model: the workdir of a run or of several seeds, also as WORKDIR@STEP, or an export.
        source: the folder of a GLUE task, or a file with columns as the task's.
        split: of that folder.
        text, pair: names of the columns of a file, if they are not the task's.

    Raises:
        UserError: no such model or file, a model without a head for the task, or a row that cannot
            be read.
    """
    path, config = find_model(model)
    read = read_model(path)
    try:
        predictor = Predictor(read.config, read.params, read.tokenizer)
    except UserError as error:
        raise UserError(f"{model}: {error}") from None
    task = config.task if config else TaskConfig()
    examples = _read(task, source, split, text, pair)
    length = config.phases[0].seq_length if config else None
    guessed = predictions(predictor.logits(texts_of(examples), length=length)).tolist()
    ids = [example.id for example in examples.examples]
    if task.name in glue.TASKS:
        lines = leaderboard.table(task.name, ids, guessed)
    else:
        words = (f"{x:.4f}" if predictor.is_regression else predictor.labels[x] for x in guessed)
        lines = _HEADER + "".join(f"{i}\t{word}\n" for i, word in zip(ids, words, strict=True))
    try:
        atomic.write_bytes(Path(out), lines.encode())
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None
    console.print(f"{count(len(ids), 'prediction')} of {path} in {out}", markup=False)


def find_model(model: str) -> tuple[str, Config | None]:
    """Returns the model to read, as `read_model` takes it, and the configuration of its run.

    Of a folder of several seeds, the run with the best result; of a run, the step that
    `config.task.keep` names, unless one is given.
    """
    path, step = split_step(model)
    folder = Path(path)
    if (folder / FILE).is_file() and not (folder / "config.json").is_file():
        return find_model(str(folder / _best_seed(folder / FILE)))
    run = Workdir.open(path)
    if not run.checkpoints.is_dir():
        return model, None
    config = config_of(description.read(run))
    if step is None:
        (step,) = find_steps(run, "best" if config.task.keep == "best" else None)
    return f"{path}@{step}", config


def _best_seed(file: Path) -> str:
    """Returns the folder of the run with the best result."""
    try:
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        runs, first = values["runs"], values["metrics"][0]
        return str(max(runs, key=lambda run: run[first] if run[first] is not None else -1)["run"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"{file}: not written by `bert-jax finetune` ({error})") from None


def _read(
    task: TaskConfig, source: str, split: str, text: str | None, pair: str | None
) -> Examples:
    first, second = task.text, task.pair
    if task.name in glue.TASKS:
        if Path(source).is_dir():
            return glue.read(task.name, source, split)
        first, second = (*glue.TASKS[task.name].texts, "")[:2]
    elif Path(source).is_dir():
        raise UserError(f"{source}: a folder; give a .tsv, .csv or .jsonl file")
    first, second = first if text is None else text, second if pair is None else pair
    return read_table(dataclasses.replace(task, text=first, pair=second), source, labelled=False)
