"""All objectives by name. To add one, write a file in this folder and list it in `OBJECTIVES`."""

from collections.abc import Collection, Iterable

from bert_jax.config.schema import Config, DataConfig, ModelConfig
from bert_jax.config.task_model import HeadConfig, TaskModelConfig
from bert_jax.errors import UserError, nearest
from bert_jax.objectives.denoising import DENOISING
from bert_jax.objectives.in_batch_negatives import IN_BATCH_NEGATIVES
from bert_jax.objectives.labeled_pairs import LABELED_PAIRS
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.multiple_choice import MULTIPLE_CHOICE
from bert_jax.objectives.next_sentence import NEXT_SENTENCE
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.question_answering import QUESTION_ANSWERING
from bert_jax.objectives.replaced_tokens import REPLACED_TOKENS
from bert_jax.objectives.scored_pairs import SCORED_PAIRS
from bert_jax.objectives.sentence_order import SENTENCE_ORDER
from bert_jax.objectives.sequence_classification import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from bert_jax.objectives.span_boundary import SPAN_BOUNDARY
from bert_jax.objectives.token_classification import TOKEN_CLASSIFICATION

# Heads are initialized and exported in this order.
OBJECTIVES: dict[str, Objective] = {
    objective.name: objective
    for objective in (
        MASKED_LM, NEXT_SENTENCE, SENTENCE_ORDER, SPAN_BOUNDARY, REPLACED_TOKENS,
        SINGLE_LABEL, MULTI_LABEL, REGRESSION, TOKEN_CLASSIFICATION, QUESTION_ANSWERING,
        MULTIPLE_CHOICE, IN_BATCH_NEGATIVES, SCORED_PAIRS, LABELED_PAIRS,
        DENOISING,
    )
}  # fmt: skip

BERT_FOR_PRETRAINING = (MASKED_LM.name, NEXT_SENTENCE.name)


def find(names: Iterable[str]) -> tuple[Objective, ...]:
    """Returns the objectives with these names; UserError for an unknown one, or a shared head."""
    by_head: dict[str, Objective] = {}
    for name in names:
        if name not in OBJECTIVES:
            raise UserError(
                f"config.objectives: unknown objective {name!r}{nearest(name, OBJECTIVES)}"
            )
        head = OBJECTIVES[name].head
        if head in by_head:
            raise UserError(
                f"config.objectives: {by_head[head].name} and {name} share the head {head!r}; "
                "choose one of them"
            )
        by_head[head] = OBJECTIVES[name]
    return tuple(by_head.values())


def chosen(data: DataConfig, names: str = "") -> tuple[str, ...]:
    """Returns the names of a run's objectives; UserError as `find`, or if the data lacks labels.

    names: `config.objectives`, comma-separated; "" for all objectives that the data has labels for.
    """
    if names:
        learned = find(name.strip() for name in names.split(","))
    else:
        learned = tuple(one for one in OBJECTIVES.values() if one.has_labels(data))
    _check_generator(learned)
    for objective in learned:
        if not objective.has_labels(data):
            raise UserError(
                f"config.objectives: config.data makes no labels for {objective.name}; change "
                "config.data.pairing, config.data.span_boundary or config.data.replaced_tokens, or "
                "remove the objective"
            )
    return tuple(objective.name for objective in learned)


def _check_generator(learned: Iterable[Objective]) -> None:
    """Raises UserError if tokens are replaced by no generator, or something else is learned of
    them."""
    names = [objective.name for objective in learned]
    pair = (MASKED_LM.name, REPLACED_TOKENS.name)
    if REPLACED_TOKENS.name in names and {*names} != {*pair}:
        raise UserError(
            f"config.objectives={','.join(names)}: the generator that replaces tokens learns "
            f'{MASKED_LM.name}, and nothing else is learned beside; set "{",".join(pair)}"'
        )


def learned_by(config: Config) -> tuple[str, ...]:
    """Returns the names of a run's objectives: that of its task, or else as `chosen`."""
    if isinstance(config.model, TaskModelConfig):
        return (task_of(config.model.head),)
    return chosen(config.data, config.objectives)


def task_heads() -> set[str]:
    """Returns the heads of all tasks."""
    return {objective.head for objective in OBJECTIVES.values() if objective.of_task}


def tasks_with(head: str) -> list[str]:
    """Returns the names of the objectives that train a head of a task; UserError if there is no
    such head."""
    found = [name for name, one in OBJECTIVES.items() if one.of_task and one.head == head]
    if not found:
        raise UserError(f"no task has the head {head!r}{nearest(head, sorted(task_heads()))}")
    return found


def task_of(head: HeadConfig) -> str:
    """Returns the name of the objective that trains the head of a task.

    Without a `problem_type`, a classifier of one label is trained by regression, and one of several
    labels to choose one of them, as in transformers.
    """
    if head.name != SINGLE_LABEL.head:
        return tasks_with(head.name)[0]
    known = tasks_with(SINGLE_LABEL.head)
    if head.problem_type and head.problem_type not in known:
        raise UserError(f"problem_type={head.problem_type!r}{nearest(head.problem_type, known)}")
    return head.problem_type or (REGRESSION if len(head.labels) == 1 else SINGLE_LABEL).name


def heads_of(config: ModelConfig) -> set[str]:
    """Returns the heads that a model with this configuration may have."""
    if isinstance(config, TaskModelConfig):
        return {config.head.name}
    return all_heads() - task_heads()


def all_heads() -> set[str]:
    """Returns the heads of all objectives."""
    return {objective.head for objective in OBJECTIVES.values()}


def head_title(head: str) -> str:
    """Returns a name for messages, of all objectives that may have trained the head: the weights do
    not show which one did."""
    titles = (objective.head_title for objective in OBJECTIVES.values() if objective.head == head)
    return f"{' or '.join(dict.fromkeys(titles))} head"


def with_heads(heads: Collection[str]) -> tuple[str, ...]:
    """Returns the names of the objectives of a model with these heads.

    Of the objectives that share a head, the first is returned, since the weights do not show which
    one was trained.
    """
    names: dict[str, str] = {}
    for objective in OBJECTIVES.values():
        if objective.head in heads:
            names.setdefault(objective.head, objective.name)
    return tuple(names.values())
