"""Tasks as measures: each run is fine-tuned for them, and the held-out examples are compared.

A measure `task/NAME` needs `tasks={NAME: …}` in the file of an ablation. Its runs are ordinary
workdirs of `bert-jax finetune` in `A/runs/VARIANT/SEED/tasks/NAME`, from the last checkpoint of the
run and with its seed.
"""

from collections.abc import Mapping
from typing import Any, Final

from bert_jax.ablation.places import with_places
from bert_jax.config.ablation import AblationConfig
from bert_jax.config.config_files import load
from bert_jax.config.schema import Config, ModelConfig
from bert_jax.errors import UserError, nearest
from bert_jax.finetune.check_task import check_task
from bert_jax.finetune.task_data import compares_examples, digest_of
from bert_jax.finetune.tasks.task_kinds import kind_of
from bert_jax.storage.remote import is_remote

PREFIX: Final = "task/"  # of such a measure
_BASE: Final = "glue"


def is_task(measure: str) -> bool:
    return measure.startswith(PREFIX)


def settings_of(values: AblationConfig, measure: str) -> dict[str, Any]:
    """Returns the changes of the config `glue` for a measure, its task named as the measure is,
    unless they name another one."""
    name = measure.removeprefix(PREFIX)
    return {"task.name": name, **with_places(dict(dict(values.tasks)[name]))}


def check(values: AblationConfig, measures: tuple[str, ...], model: ModelConfig) -> None:
    """Raises UserError if a measure has no task, or a task no measure, or if its settings are
    wrong.

    model: the architecture that is fine-tuned.
    """
    tasks = {name for name, _ in values.tasks}
    for name in tasks:
        if "/" in name or name in ("", ".", ".."):
            raise UserError(f"config.tasks, {name!r}: give a name that a folder can have")
    for measure in filter(is_task, measures):
        name = measure.removeprefix(PREFIX)
        if name not in tasks:
            raise UserError(
                f"config.measures: {measure} is not in config.tasks{nearest(name, tasks)}"
            )
        try:
            config = config_of(values, measure, model)
            check_task(config)
            _check_measured(config)
        except UserError as error:
            raise UserError(f"config.tasks, {name!r}: {error}") from None
    if unused := sorted(tasks - {measure.removeprefix(PREFIX) for measure in measures}):
        raise UserError(
            f"config.tasks: {unused[0]!r} is not measured; add {PREFIX}{unused[0]} to "
            "config.measures, or remove the task"
        )


def _check_measured(config: Config) -> None:
    """Raises UserError if the held-out examples of a task have no values to compare."""
    if config.task.keep != "last":
        raise UserError(
            f"task.keep={config.task.keep}: each run would be measured at another step, chosen on "
            "the examples by which variants are compared; set task.keep=last"
        )
    if compares_examples(config):
        remedy = "measure another task"
        if config.task.loss == "cosent":
            remedy = "set task.loss=cosine"
        raise UserError(
            f"the loss of {config.task.name} compares examples, so that none has a loss of its own "
            f"by which variants could be compared; {remedy}"
        )


def config_of(
    values: AblationConfig, measure: str, model: ModelConfig, start: str = "the run", seed: int = 0
) -> Config:
    """Returns the configuration of a run that is fine-tuned for a task, before its data decide its
    steps.

    start: the run, whose architecture is `model`.
    """
    settings = settings_of(values, measure) | {"init": start, "seed": seed}
    return load(_BASE, settings, lambda _: model)


def check_local(measures: tuple[str, ...], workdir: str) -> None:
    """Raises UserError if there are tasks, and the runs are in a bucket."""
    for measure in filter(is_task, measures):
        if is_remote(workdir):
            raise UserError(
                f"config.measures: {measure} starts from local runs; give a local --workdir, or "
                "remove the measure"
            )


def file_digests(
    values: AblationConfig, measures: tuple[str, ...], model: ModelConfig
) -> dict[str, dict[str, str]]:
    """Returns the digests of the training and the held-out examples of each task.

    Raises:
        UserError: the examples of a task cannot be read.
    """
    found = {}
    for measure in filter(is_task, measures):
        task = config_of(values, measure, model).task
        kind, name = kind_of(task), measure.removeprefix(PREFIX)
        try:
            train, held_out = kind.read(task)
        except UserError as error:
            raise UserError(f"config.tasks, {name!r}: {error}") from None
        found[name] = {"train": digest_of(kind, train), "held_out": digest_of(kind, held_out)}
    return found


def words(settings: Mapping[str, Any], start: str, seed: int, workdir: str) -> list[str]:
    """Returns the words of `bert-jax` that fine-tune a run for a task.

    start: the run.
    """
    given = [f"--config.{key}={value}" for key, value in settings.items()]
    fixed = [f"--config.init={start}", f"--config.seed={seed}", f"--workdir={workdir}"]
    return ["finetune", f"--config={_BASE}", *given, *fixed]
