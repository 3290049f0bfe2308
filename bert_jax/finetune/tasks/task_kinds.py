"""All kinds of tasks by name. To add one, write a file in this folder and a row of `KINDS`."""

from typing import Final

from bert_jax.config.schema import Config, ModelConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.config.task_settings import TaskConfig
from bert_jax.errors import UserError, nearest
from bert_jax.extensions.registry import Registry
from bert_jax.finetune.tasks import glue
from bert_jax.finetune.tasks.kind import TaskKind
from bert_jax.objectives.known_objectives import task_of

_HERE: Final = "bert_jax.finetune.tasks"
KINDS: Final[Registry[TaskKind]] = Registry(
    "kind of task",
    f"{_HERE}.kind:TaskKind",
    {
        "classification": f"{_HERE}.text_task:CLASSIFICATION",
        "regression": f"{_HERE}.text_task:REGRESSION",
        "tagging": f"{_HERE}.tagging_task:TAGGING",
        "question_answering": f"{_HERE}.question_task:QUESTION_ANSWERING",
        "multiple_choice": f"{_HERE}.multiple_choice:MULTIPLE_CHOICE",
        "sentence_pairs": f"{_HERE}.sentence_pairs:SENTENCE_PAIRS",
        "store_pairs": f"{_HERE}.store_pairs:STORE_PAIRS",
        "scored_pairs": f"{_HERE}.scored_pairs:SCORED_PAIRS",
        "labeled_pairs": f"{_HERE}.labeled_pairs:LABELED_PAIRS",
        "denoising": f"{_HERE}.denoising:DENOISING",
    },
    key="task.name",
    reserved=glue.TASKS,
)


def kind_of(task: TaskConfig) -> TaskKind:
    """Returns the kind of a task; UserError for an unknown name."""
    name = glue.TASKS[task.name].kind if task.name in glue.TASKS else task.name
    if name not in KINDS:
        raise UserError(
            f"config.task.name={task.name!r}{nearest(task.name, [*glue.TASKS, *KINDS])}"
        )
    return KINDS[name]


def check_given(config: Config) -> TaskKind:
    """Returns the kind of the task of a run; UserError if a configuration names no task, no files
    of one or nothing to start from."""
    task = config.task
    if not task.name:
        raise UserError("config.task.name is empty; name the task, such as --config.task.name=sst2")
    if not task.data:
        raise UserError("config.task.data is empty; give the folder or the file of the task")
    if not config.init and not task.tokenizer:
        raise UserError(
            "config.init is empty; name the model to fine-tune, or for random weights a "
            "tokenizer: --config.task.tokenizer=…"
        )
    return kind_of(task)


def kind_of_model(config: ModelConfig, *, makes_vectors: bool = False) -> TaskKind:
    """Returns the kind of task that a model predicts; UserError if it has no head of a task.

    makes_vectors: whether its folder says how a text becomes a vector.
    """
    if not isinstance(config, TaskModelConfig):
        if makes_vectors:
            raise UserError(
                "the folder makes vectors of texts and has no head of a task; give the workdir of "
                "the run that it was exported from, or fine-tune it"
            )
        raise UserError(
            "the model has no head of a task; fine-tune it first: "
            "bert-jax finetune --config=glue --config.init=… --config.task.name=…"
        )
    objective = task_of(config.head)
    return next(kind for kind in KINDS.values() if objective in kind.objectives)
