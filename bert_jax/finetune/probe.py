"""A frozen encoder with a linear head on chosen layers, `config.task.layers`."""

import dataclasses

from bert_jax.config.schema import Config
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.config.task_settings import TaskConfig
from bert_jax.errors import UserError
from bert_jax.model.layer_states import parse_layers


def with_probe(model: TaskModelConfig, task: TaskConfig) -> TaskModelConfig:
    """Returns the model whose head is linear, on the layers that the task names; unchanged if it
    names none.

    Raises:
        UserError: the encoder has no such layer.
    """
    if not task.layers:
        return model
    try:
        layers = parse_layers(task.layers, model.num_hidden_layers)
    except UserError as error:  # it begins with "layers"
        raise UserError(f"config.task.{error}") from None
    head = dataclasses.replace(
        model.head,
        dense=None,
        norm=False,
        drops_input=False,
        layers=layers,
        join=task.join,
        pooling=task.pooling,
    )
    return dataclasses.replace(model, head=head)


def check_probe(config: Config, *, per_token: bool, pools: bool) -> None:
    """Raises UserError for settings that have no effect with a frozen encoder, or without one.

    Args:
        per_token: whether the head has an output for each token, which no pooling precedes.
        pools: whether the vectors of texts are learned, which a frozen encoder has already.
    """
    task, plain = config.task, TaskConfig()
    if task.layers and pools:
        raise UserError(
            f"config.task.layers={task.layers} freezes the encoder, whose vectors {task.name} "
            "trains; leave it out"
        )
    if task.layers and config.optimizer.layer_decay != 1:
        raise UserError(
            f"config.optimizer.layer_decay={config.optimizer.layer_decay:g} has no effect with "
            "config.task.layers, which freezes the encoder; leave one of them out"
        )
    if task.layers and per_token and task.pooling != plain.pooling:
        raise UserError(
            f"config.task.pooling={task.pooling} has no effect for {task.name}, whose head reads "
            "every token; leave it out"
        )
    for key in ("join", "pooling"):
        if key == "pooling" and pools:
            continue
        if not task.layers and (value := getattr(task, key)) != getattr(plain, key):
            raise UserError(
                f"config.task.{key}={value} has no effect without config.task.layers; set it, such "
                "as --config.task.layers=-4:"
            )
