"""`bert-jax predict`: the predictions of a fine-tuned model for a file."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Final

from bert_jax.config.task_settings import TaskConfig
from bert_jax.convert.sources import read_model
from bert_jax.errors import UserError, count
from bert_jax.finetune.find_model import find_model
from bert_jax.finetune.predictor import Predictor
from bert_jax.finetune.tasks.task_kinds import kind_of, kind_of_model
from bert_jax.runtime.console import console
from bert_jax.storage import hub
from bert_jax.storage.outputs import OutputKind, check_apart, check_output, write_output
from bert_jax.storage.remote import open_path, storage_errors
from bert_jax.workdir.inputs import inputs_of_model

PREDICTIONS: Final = OutputKind("file of predictions", None, in_buckets=False)


def predict(
    model: str,
    source: str,
    out: Path | str,
    *,
    split: str | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
    more: Mapping[str, Path | str] = MappingProxyType({}),
    overwrite: bool = False,
) -> None:
    """Writes the predictions for a file, in the form that the kind of task has.

    Args:
        model: the workdir of a run or of several seeds, also as WORKDIR@STEP, or an export.
        source: a file as the task's, or a folder with its files.
        split: of that folder, by default test.
        settings: keys of `config.task` with values in place of those of the run.
        more: further files to write, by their flag, see `TaskKind.files`.
        overwrite: replace existing files, which carry no mark of who wrote them.

    Raises:
        UserError: no such model or file, a model without a head for the task, a row that cannot be
            read, or a file that may not be written, see `check_output`, or is named .csv.
        StorageError: a file cannot be written.
    """
    inputs, outputs = [*inputs_of_model(model), source], {"out": out, **more}
    for path in outputs.values():
        check_output(path, PREDICTIONS, inputs=inputs, overwrite=overwrite)
    check_apart(outputs.values())
    for name, path in outputs.items():
        if PurePath(path).suffix.lower() == ".csv":
            raise UserError(
                f"--{name}={path}: predictions are not separated by commas; end the name in .tsv"
            )
    found, config = find_model(model)
    read = read_model(found)
    try:
        of_run = kind_of(config.task) if config and config.task.name else None
        kind_of_model(read.config, makes_vectors=read.sentence is not None)
        predictor = Predictor(
            read.config, read.params, read.tokenizer, kind=of_run, longest=read.trained_length
        )
        kind = predictor.kind
        kind.check_flags([*settings, *more])
        task = config.task if config else TaskConfig(name=kind.name)
        task = kind.with_settings(task, settings)
    except UserError as error:
        raise UserError(f"{model}: {error}") from None
    new = kind.read_new(task, source, _split_of(source, split))
    examples = dataclasses.replace(new, labels=predictor.labels)
    length = config.phases[0].seq_length if config else None
    predictions, notes = predictor.predictions(task, examples, length=length)
    files = kind.files(task, examples, predictions)
    for name, path in outputs.items():
        data = files[name].encode()
        write_output(path, data, PREDICTIONS, inputs=inputs, overwrite=overwrite)
    said = [f"{count(len(examples.examples), 'prediction')} of {found} in {out}"]
    console.print(", ".join([*said, *examples.notes, *notes]), markup=False)


def _split_of(source: str, split: str | None) -> str:
    """Returns the split of a folder; UserError if one is asked for of a file or a dataset."""
    if split and hub.is_hub(source):
        named = dataclasses.replace(hub.parse_dataset(source), split=split)
        raise UserError(
            f"--split={split}: for a dataset on the hub, the split is part of its name: {named}"
        )
    with storage_errors(source):
        is_file = split is not None and open_path(source).is_file()
    if is_file:
        raise UserError(f"--split={split}: {source} is not the folder of a task; leave it out")
    return split or "test"
