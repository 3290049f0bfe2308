"""All objectives by name. To add one, write a file in this folder and list it in `OBJECTIVES`."""

from collections.abc import Collection, Iterable

from bert_jax.config.schema import DataConfig
from bert_jax.errors import UserError, nearest
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.next_sentence import NEXT_SENTENCE
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.sentence_order import SENTENCE_ORDER
from bert_jax.objectives.span_boundary import SPAN_BOUNDARY

# Heads are initialized and exported in this order.
OBJECTIVES: dict[str, Objective] = {
    objective.name: objective
    for objective in (MASKED_LM, NEXT_SENTENCE, SENTENCE_ORDER, SPAN_BOUNDARY)
}

BERT_FOR_PRETRAINING = (MASKED_LM.name, NEXT_SENTENCE.name)


def find(names: Iterable[str]) -> tuple[Objective, ...]:
    """Returns the objectives with these names.

    Raises:
        UserError: an objective does not exist, or two of them share a head.
    """
    found: dict[str, Objective] = {}
    for name in names:
        if name not in OBJECTIVES:
            raise UserError(
                f"config.objectives: unknown objective {name!r}{nearest(name, OBJECTIVES)}"
            )
        head = OBJECTIVES[name].head
        if head in found:
            raise UserError(
                f"config.objectives: {found[head].name} and {name} share the head {head!r}; choose "
                "one of them"
            )
        found[head] = OBJECTIVES[name]
    return tuple(found.values())


def chosen(data: DataConfig, names: str = "") -> tuple[str, ...]:
    """Returns the names of a run's objectives.

    Args:
        names: `config.objectives`, comma-separated; "" for all objectives that the data has labels
            for.

    Raises:
        UserError: see `find`, or the data has no labels for an objective.
    """
    if not names:
        return tuple(one.name for one in OBJECTIVES.values() if one.has_labels(data))
    found = find(name.strip() for name in names.split(","))
    for objective in found:
        if not objective.has_labels(data):
            raise UserError(
                f"config.objectives: config.data makes no labels for {objective.name}; change "
                "config.data.pairing or config.data.span_boundary, or remove the objective"
            )
    return tuple(objective.name for objective in found)


def with_heads(heads: Collection[str]) -> tuple[str, ...]:
    """Returns the names of the objectives of a model with these heads.

    Of the objectives that share a head, the first is returned, since the weights do not show which
    one was trained. A pooler stands for a head that needs one; a BERT without any head is read as a
    masked language model.
    """
    found: dict[str, str] = {}
    for objective in OBJECTIVES.values():
        if objective.head in heads or (objective.needs_pooler and "pooler" in heads):
            found.setdefault(objective.head, objective.name)
    return tuple(({MASKED_LM.head: MASKED_LM.name} | found).values())


def transformers_class(heads: Collection[str]) -> str:
    """Returns the transformers class that loads every weight of a model with these heads."""
    pair = NEXT_SENTENCE.head in heads
    if MASKED_LM.head in heads:
        return "BertForPreTraining" if pair else "BertForMaskedLM"
    return "BertForNextSentencePrediction" if pair else "BertModel"
