"""The teacher of a run: a fine-tuned model whose outputs for the training examples are learned.

It reads the text of the examples with its own tokenizer, in float32, as `bert-jax predict` does.
Process 0 asks it once, before the first step, and writes its outputs to the workdir, from which all
processes read them: a run that resumes needs the teacher no more. If its folder is still there, it
must be the same model.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, Final

from bert_jax.config.schema import Config
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.config.task_settings import TaskConfig, check_unused
from bert_jax.convert.sources import ReadModel, read_model
from bert_jax.distributed.job import Job
from bert_jax.errors import UserError, count
from bert_jax.finetune.find_model import find_model
from bert_jax.finetune.predictor import Predictor
from bert_jax.finetune.tasks.kind import Arrays, TaskKind
from bert_jax.finetune.tasks.labeled_examples import Examples
from bert_jax.finetune.tasks.task_kinds import KINDS, kind_of_model
from bert_jax.objectives.known_objectives import OBJECTIVES, head_title, task_of
from bert_jax.storage import hub
from bert_jax.storage.digest import json_digest
from bert_jax.storage.read_files import path_of
from bert_jax.storage.remote import storage_errors
from bert_jax.training import claim
from bert_jax.training.initial import arrays_digest
from bert_jax.training.initial_checks import check_source
from bert_jax.training.shared_arrays import shared_arrays
from bert_jax.workdir.layout import Workdir, split_step

_KEY: Final = "config.task.teacher"
_NAMELESS: Final = re.compile(r"LABEL_\d+")  # as transformers names labels without a name
_SHOWN: Final = 5  # labels in a message


@dataclasses.dataclass(frozen=True)
class _Model:
    """A teacher in memory.

    Attributes:
        order: the id, in its outputs, of each label of the task; empty if these are not its
            outputs, as of questions and choices.
        task: how its run read texts.
        length: most tokens of its run's examples; None for an export, which has all its positions.
    """

    read: ReadModel
    order: tuple[int, ...]
    task: TaskConfig
    length: int | None

    @property
    def digest(self) -> str:
        """The digest of all that its outputs for a text depend on."""
        parts: dict[str, Any] = {
            "weights": arrays_digest(self.read.params),
            "tokenizer": self.read.tokenizer.digest,
            "order": self.order,
            "length": self.length,
            "windows": [self.task.stride, self.task.max_question],
        }
        head = self.read.config.head if isinstance(self.read.config, TaskModelConfig) else None
        if head and head.vectors:
            prompts = [self.task.query_prompt, self.task.passage_prompt]
            dense = [part.setting for part in head.vectors.dense]
            parts["vectors"] = [head.pooling, head.vectors.normalize, *prompts, *dense]
        return json_digest(parts)


class Teacher:
    """See above.

    Attributes:
        digest: recorded with the run; the same for the same outputs.
    """

    def __init__(self, source: str, kind: TaskKind, model: _Model | None, digest: str = "") -> None:
        """model: None if it is not there any more. digest: as recorded; "" is that of the model."""
        self.digest = model.digest if model else digest
        self._source, self._kind, self._model = source, kind, model
        self._outputs: Arrays | None = None

    def outputs(self, examples: Examples, digest: str, workdir: Workdir, job: Job) -> Arrays:
        """Returns its outputs for the training examples, see `TaskKind.teacher_outputs`.

        All processes of the job call it. Of several seeds only the first asks the model.

        Args:
            digest: of the examples.

        Raises:
            UserError, StorageError: as `shared_arrays`; or the model is needed and not there, or
                its outputs are not finite.
        """

        def compute() -> tuple[Arrays, str]:
            if self._outputs is not None:
                return self._outputs, f"{workdir.teacher}: as computed for another seed"
            return self._ask(examples, workdir, job)

        key = json_digest({"version": 1, "teacher": self.digest, "examples": digest})
        doing = "asking the teacher"
        self._outputs = shared_arrays(workdir.teacher, key, compute, job.peers, doing=doing)
        self._model = None  # free its memory
        return self._outputs

    def _ask(self, examples: Examples, workdir: Workdir, job: Job) -> tuple[Arrays, str]:
        """Returns the outputs of the model, and a line for the log."""
        model, given = self._model, f"{_KEY}={self._source}"
        if model is None:
            raise UserError(
                f"{workdir.teacher}: missing or damaged, and {given}, which can make it again, is "
                "not there; put one of them back"
            )
        read, advance = model.read, job.clock.progress
        predictor = Predictor(read.config, read.params, read.tokenizer, kind=self._kind)
        try:
            prepared, logits = predictor.outputs(
                model.task, examples, length=model.length, advance=advance
            )
        except UserError as error:
            raise UserError(f"{given}: {error}") from None
        if model.order:
            logits = [values[..., list(model.order)] for values in logits]
        said = [f"{self._source} teaches {count(len(examples.examples), 'example')}"]
        return self._kind.teacher_outputs(prepared, logits), ", ".join([*said, *prepared.notes])


def find_teacher(
    config: Config, workdir: Workdir, kind: TaskKind, labels: Sequence[str]
) -> Teacher | None:
    """Returns the model that `config.task.teacher` names; None if it names none.

    Args:
        labels: of the task, in the order of their ids.

    Raises:
        UserError: no such model, or one of another kind of task or with other labels.
    """
    source = config.task.teacher
    if not source:
        return None
    recorded, started = claim.recorded_run(workdir, config)
    known = recorded["data"].get("teacher") if recorded and started else None
    if known:
        path = path_of(split_step(source)[0])
        with storage_errors(source):
            # One on the hub is needed again where its outputs are not there.
            there = not workdir.teacher.exists() if hub.is_hub(source) else path.is_dir()
            if not there:
                return Teacher(source, kind, None, known)
    check_source(source, _KEY)
    found, own = find_model(source)
    read = read_model(found)
    try:
        order = _order(read, kind, labels)
    except UserError as error:
        raise UserError(f"{_KEY}={source}: {error}") from None
    task = own.task if own else TaskConfig(name=kind.name)
    length = own.phases[0].seq_length if own else read.trained_length
    return Teacher(source, kind, _Model(read, order, task, length))


def _order(read: ReadModel, kind: TaskKind, labels: Sequence[str]) -> tuple[int, ...]:
    """Returns `_Model.order`; UserError if the teacher has outputs of another kind or others."""
    kind_of_model(read.config, makes_vectors=read.sentence is not None)
    assert isinstance(read.config, TaskModelConfig)
    head, wanted = read.config.head, OBJECTIVES[kind.objectives[0]]
    if (trained := task_of(head)) != wanted.name:
        raise UserError(
            f"its {head_title(head.name)} is for {trained}, the task needs one for {wanted.name}; "
            "fine-tune a model for the same kind of task"
        )
    if wanted.outputs or wanted.labels:
        return ()
    theirs = head.labels
    if len(theirs) != len(labels):
        raise UserError(
            f"it has {count(len(theirs), 'label')} ({_shown(theirs)}), the task "
            f"{len(labels)} ({_shown(labels)}); give a model for the same labels"
        )
    if len(labels) == 1 or any(all(map(_NAMELESS.fullmatch, names)) for names in (theirs, labels)):
        return tuple(range(len(labels)))  # a score; or there are no names to tell them by
    lacks = [name for name in labels if name not in theirs]
    if lacks:
        others = [name for name in theirs if name not in labels]
        raise UserError(
            f"it lacks the label {_shown(lacks)} of the task and has {_shown(others)}; give a "
            "model for the same labels"
        )
    return tuple(map(theirs.index, labels))


def _shown(labels: Sequence[str]) -> str:
    return ", ".join(labels[:_SHOWN]) + (", …" if len(labels) > _SHOWN else "")


def check_teaching(task: TaskConfig, kind: TaskKind) -> None:
    """Raises UserError for settings of a teacher that have no effect, or a kind of task that has no
    loss against one."""
    if not task.teacher:
        keys, why = ("temperature", "teacher_weight"), "without config.task.teacher; set it"
        check_unused(task, keys, why)
        return
    soft = OBJECTIVES[kind.objectives[0]].soft
    if soft is None:
        taught = [
            name for name, one in KINDS.items() if OBJECTIVES[one.objectives[0]].soft is not None
        ]
        raise UserError(
            f"{_KEY}={task.teacher}: {task.name} has no labels that a teacher could soften, as "
            f"{', '.join(taught)} have; leave it out"
        )
    if not soft.softens:
        why = f"for {task.name}, whose teacher gives a score; leave it out"
        check_unused(task, ("temperature",), why)
