"""Finds whether transformers has a class for each model of a run."""

from bert_jax.config.model_settings import generator_of
from bert_jax.config.schema import Config, ModelConfig
from bert_jax.convert.layouts.known_layouts import find_layout
from bert_jax.errors import UserError
from bert_jax.objectives.known_objectives import learned_by
from bert_jax.objectives.replaced_tokens import REPLACED_TOKENS


def no_class(model: ModelConfig) -> str:
    """Returns why transformers has no class for a model; "" if it has one."""
    try:
        find_layout(model)
    except UserError as error:
        return str(error)
    return ""


def not_exportable(config: Config) -> str:
    """Returns in a line which model of a run cannot be exported, and why; "" if all can."""
    models = dict.fromkeys(phase.model(config.model) for phase in config.phases)
    reason = next(filter(None, map(no_class, models)), "")
    if reason or REPLACED_TOKENS.name not in learned_by(config):
        return reason
    reason = no_class(generator_of(config.model))
    return reason and f"the generator: {reason}; it stays in the workdir"
