"""The parts of a sentence encoder that a run trained: what makes vectors as it did in training."""

from typing import Final

from bert_jax.config.schema import Config
from bert_jax.config.sentence_parts import Normalize, Part, Pooling
from bert_jax.config.task_model import TaskModelConfig, passage_prompt
from bert_jax.convert.sentence_encoder import SentenceEncoder

# Names of the prompts of a run. Since release 5 `encode_document` looks for "document", which a
# model always has there, before it looks for "passage".
QUERY: Final = "query"
PASSAGES: Final = ("passage", "document")


def encoder_of_run(config: Config) -> SentenceEncoder | None:
    """Returns what makes vectors of texts with the encoder of a run as it did in training; None if
    the run trained no vectors."""
    head = config.model.head if isinstance(config.model, TaskModelConfig) else None
    if head is None or head.vectors is None:
        return None
    task = config.task
    parts: list[Part] = [Pooling(head.pools, True, config.model.hidden_size)]
    parts += [Normalize()] if head.vectors.normalize else []
    passage = passage_prompt(task, head.vectors.loss)
    has_two = head.vectors.loss == "negatives" or passage != task.query_prompt
    prompts = {QUERY: task.query_prompt, **dict.fromkeys(PASSAGES, passage)}
    given = {name: prompt for name, prompt in prompts.items() if prompt}
    return SentenceEncoder(
        tuple(parts),
        ({},) * len(parts),
        max_length=config.phases[-1].seq_length,
        prompts=given,
        default_prompt=QUERY if given and not has_two else None,
        similarity="cosine",
    )
