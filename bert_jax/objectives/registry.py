"""All objectives by name. A new one is a file beside this one and a name in `OBJECTIVES`."""

from collections.abc import Collection, Iterable

from bert_jax.config.schema import DataConfig
from bert_jax.config.serialization import nearest
from bert_jax.errors import UserError
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.next_sentence import NEXT_SENTENCE
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.sentence_order import SENTENCE_ORDER
from bert_jax.objectives.span_boundary import SPAN_BOUNDARY

# In this order their heads are initialized and exported.
OBJECTIVES: dict[str, Objective] = {
    objective.name: objective
    for objective in (MASKED_LM, NEXT_SENTENCE, SENTENCE_ORDER, SPAN_BOUNDARY)
}

BERT_FOR_PRETRAINING = (MASKED_LM.name, NEXT_SENTENCE.name)


def find(names: Iterable[str]) -> tuple[Objective, ...]:
    """The objectives with these names.

    Raises:
        UserError: there is no such objective, or two of them share a head.
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
                f"config.objectives: {found[head].name} and {name} share the head {head!r}; give "
                "one of them"
            )
        found[head] = OBJECTIVES[name]
    return tuple(found.values())


def chosen(data: DataConfig, names: str = "") -> tuple[str, ...]:
    """The names of a run's objectives.

    Args:
        names: `config.objectives`, separated by commas; "" for all that the data have labels for.

    Raises:
        UserError: as `find`, or the data have no labels for one of them.
    """
    if not names:
        return tuple(one.name for one in OBJECTIVES.values() if one.has_labels(data))
    found = find(name.strip() for name in names.split(","))
    for objective in found:
        if not objective.has_labels(data):
            raise UserError(
                f"config.objectives: config.data makes no labels for {objective.name}; change "
                "config.data.pairing or config.data.span_boundary, or leave it out"
            )
    return tuple(objective.name for objective in found)


def with_heads(heads: Collection[str]) -> tuple[str, ...]:
    """The names of objectives that a model with these heads can have; of those that share a head,
    the first: their weights do not tell which one was trained. A pooler counts as a head that
    needs one, and a BERT saved without any head is read as one for masked tokens.
    """
    found: dict[str, str] = {}
    for objective in OBJECTIVES.values():
        if objective.head in heads or (objective.needs_pooler and "pooler" in heads):
            found.setdefault(objective.head, objective.name)
    return tuple(({MASKED_LM.head: MASKED_LM.name} | found).values())


def transformers_class(heads: Collection[str]) -> str:
    """The class of transformers that takes every weight of a model with these heads."""
    pair = NEXT_SENTENCE.head in heads
    if MASKED_LM.head in heads:
        return "BertForPreTraining" if pair else "BertForMaskedLM"
    return "BertForNextSentencePrediction" if pair else "BertModel"
