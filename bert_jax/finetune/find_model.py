"""Finds a fine-tuned model: the step of a run that `config.task.keep` names, the best of seeds."""

from typing import Final

from etils import epath

from bert_jax.checkpoint.manager import chosen_step
from bert_jax.config.recorded import config_of
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.settings import shown
from bert_jax.errors import UserError
from bert_jax.storage import json_record
from bert_jax.storage.remote import open_path, storage_errors
from bert_jax.workdir import description
from bert_jax.workdir.layout import Workdir, split_step

FILE: Final = "results.json"
_RESULTS: Final = {
    "metrics": lambda value: json_record.has_form(value, [json_record.text]) and value,
    "runs": lambda value: json_record.has_form(value, [{"run": json_record.file_name}]) and value,
}


def find_model(model: str) -> tuple[str, Config | None]:
    """Returns the model to read, as `read_model` takes it, and the configuration of its run.

    Of a folder of several seeds, the run with the best result; of a run, the step that
    `config.task.keep` names, unless one is given.
    """
    path, step = split_step(model)
    folder = open_path(path)
    with storage_errors(path):
        has_seeds = (folder / FILE).is_file() and not (folder / "config.json").is_file()
    if has_seeds:
        best = folder / _best_seed(folder / FILE)
        return find_model(str(best) if step is None else f"{best}@{step}")
    run = Workdir.open(path)
    with storage_errors(path):
        is_run = run.checkpoints.is_dir()
    if not is_run:
        return model, None
    known = description.read_description(run)
    if step is None:
        step = chosen_step(run, None, known)
    return f"{path}@{step}", config_of(known)


def _best_seed(file: epath.Path) -> str:
    """Returns the folder of the run with the best result."""
    try:
        with storage_errors(file):
            values = json_record.read_json(file, _RESULTS)
        runs, first = values["runs"], values["metrics"][0]
        form = {first: lambda value: value is None or json_record.number(value)}
        if not all(json_record.has_form(run, form) for run in runs):
            raise ValueError(f"{shown(first)} is not in all runs")
        return str(max(runs, key=lambda run: run[first] if run[first] is not None else -1)["run"])
    except ValueError as error:
        raise UserError(f"{file}: not written by `bert-jax finetune` ({error})") from None
