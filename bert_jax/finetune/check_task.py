"""Checks of a configuration for fine-tuning, before the files of its task are read."""

from typing import Final

from bert_jax.config.schema import Config
from bert_jax.config.task_settings import TaskConfig, check_unused
from bert_jax.convert.layouts.known_layouts import positions_after_pad
from bert_jax.errors import UserError
from bert_jax.finetune.probe import check_probe
from bert_jax.finetune.tasks import metrics
from bert_jax.finetune.tasks.task_kinds import KINDS, check_given
from bert_jax.finetune.teacher import check_teaching

SHORTEST: Final = 5  # tokens of an example: room for a token of both texts of a pair of BERT's


def check_task(config: Config) -> None:
    """Raises UserError if a configuration is not that of a task."""
    own = check_given(config)
    metrics.check_installed()
    if len(config.phases) != 1:
        raise UserError(f"config.phases: {len(config.phases)} phases; a task has one")
    if config.phases[0].seq_length < SHORTEST:
        raise UserError(
            f"config.phases[0].seq_length={config.phases[0].seq_length}; give {SHORTEST} or more"
        )
    others = (key for kind in KINDS.values() for key in kind.own_settings)
    others = (key for key in others if key not in own.own_settings)
    check_unused(config.task, others, f"for {config.task.name}; leave it out")
    check_probe(config, per_token=own.per_token, pools=own.pools)
    check_softmax(config)
    check_teaching(config.task, own)
    own.check(config)


def check_softmax(config: Config) -> None:
    """Raises UserError for the loss over padded rows where there is no padding as transformers has
    it."""
    if config.task.answer_softmax == TaskConfig().answer_softmax:
        return
    (phase,), key = config.phases, f"config.task.answer_softmax={config.task.answer_softmax}"
    if phase.examples_per_row != 1:
        raise UserError(f"{key} needs padded rows: set '--config.phases[0].examples_per_row=1'")
    if config.model.local_attention:
        raise UserError(f"{key}: padding reads no text outside of its window; leave it out")
    if positions_after_pad(config.model):
        raise UserError(
            f"{key}: RoBERTa gives padding a position of its own, bert-jax does not; leave it out"
        )
    if config.task.layers:
        raise UserError(f"{key} cannot be used with a frozen encoder; leave out config.task.layers")
