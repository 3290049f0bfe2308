"""The configuration of a run in its description, in config.json and in every checkpoint.

The head of a task depends on the labels in its files, so it is recorded with the data, not with
what the user configured.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from bert_jax.config.schema import Config, ModelConfig, PhaseConfig
from bert_jax.config.serialization import from_dict, to_dict
from bert_jax.config.task_model import HeadConfig, TaskModelConfig, with_head
from bert_jax.extensions.registry import check_rows

HEAD: Final = "head"  # key in the model's configuration, and in a description's data


def recorded(config: Config) -> dict[str, Any]:
    """Returns a configuration as a description has it, without the head of a task."""
    values = to_dict(config)
    values["model"].pop(HEAD, None)
    return values


def settings_of(description: Mapping[str, Any]) -> Config:
    """Returns the configuration of a run as it was given, without the head of a task.

    Raises:
        UserError: as `check_rows`.
    """
    check_rows(description.get("modules", ()))
    return from_dict(description["config"], Config)


def config_of(description: Mapping[str, Any]) -> Config:
    """Returns the configuration of a run; its model is a `TaskModelConfig` if it has a task's head.

    description: of a run, or the metadata of a checkpoint.

    Raises:
        UserError: as `settings_of`.
    """
    return settings_of(description).with_model(model_of(description))


def model_of(description: Mapping[str, Any]) -> ModelConfig:
    """Returns the architecture of a run's model, as `config_of`; of a checkpoint, as its phase has
    it."""
    return _with_head(encoder_of(description), description)


def encoder_of(description: Mapping[str, Any]) -> ModelConfig:
    """Returns the same without the head of a task."""
    config = description["config"]
    model = from_dict(config["model"], ModelConfig, "config.model")
    if "phase" in description:
        own = from_dict(config["phases"][description["phase"]], PhaseConfig, "config.phases")
        model = own.model(model)
    return model


def trained_model_of(description: Mapping[str, Any]) -> ModelConfig:
    """Returns the architecture of a checkpoint's model without the dense layer to the states of a
    teacher, which serves training alone."""
    return dataclasses.replace(model_of(description), teacher_width=0)


def head_of(model: ModelConfig) -> dict[str, Any]:
    """Returns the head of a task as a description's data has it; empty without one."""
    if not isinstance(model, TaskModelConfig):
        return {}
    values = to_dict(model.head)
    # Runs from before there were vectors, or dense layers on them, have no such keys.
    if model.head.vectors is None:
        del values["vectors"]
    elif not model.head.vectors.dense:
        del values["vectors"]["dense"]
    return {HEAD: values}


def _with_head(model: ModelConfig, description: Mapping[str, Any]) -> ModelConfig:
    values = description.get("data", {}).get(HEAD)
    if values is None:
        return model
    return with_head(model, from_dict(values, HeadConfig, f"data.{HEAD}"))
