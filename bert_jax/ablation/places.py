"""The folders that the values of an ablation name, as absolute paths: its runs and its reports find
them from any folder."""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, Final

from bert_jax.config.ablation import AblationConfig
from bert_jax.config.config_files import values_of
from bert_jax.config.schema import Config
from bert_jax.config.shipped import shipped
from bert_jax.errors import UserError
from bert_jax.storage import hub, remote

MODELS: Final = ("init", "teacher")  # keys of models that a run reads
TEACHER: Final = "task.teacher"
PLACES: Final = ("data.store", *MODELS, "task.data", "task.held_out", "task.retrieval", TEACHER)
Pairs = tuple[tuple[Any, ...], ...]


def from_any_folder(given: AblationConfig) -> AblationConfig:
    """Returns the values of an ablation's file with absolute paths."""
    return dataclasses.replace(
        given,
        base=given.base if given.base in shipped() else remote.from_any_folder(given.base),
        store=remote.from_any_folder(given.store),
        changes=tuple(with_places(dict(given.changes)).items()),
        variants=_each(given.variants),
        tasks=_each(given.tasks),
    )


def _each(named: Pairs) -> Pairs:
    return tuple((name, tuple(with_places(dict(own)).items())) for name, own in named)


def base_of(given: AblationConfig) -> dict[str, Any]:
    """Returns the values of the base, with absolute paths but for those that no variant takes."""
    base, always = values_of(given.base), dict(given.changes)
    each = [always | dict(own) for _, own in given.variants]
    used = {key: value for key, value in base.items() if not all(key in own for own in each)}
    return {**base, **with_places(used)}


def with_places(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values by key, those of stores, models and examples as absolute paths."""
    return {key: _place(value) if key in PLACES else value for key, value in values.items()}


def _place(value: Any) -> Any:
    """Returns an absolute path; what is none stays, to be refused as a value."""
    is_path = isinstance(value, str | os.PathLike)
    return remote.from_any_folder(os.fspath(value)) if is_path else value


def check_commits(configs: Iterable[Config]) -> None:
    """Raises UserError for a model on the hub without a commit."""
    for config, key in product(configs, MODELS):
        name = getattr(config, key)
        if hub.is_hub(name) and not hub.parse_model(name).is_commit:
            raise UserError(
                f"config.{key}={name}: names no commit, and a branch or a tag may move between two "
                f"runs; give {name.partition('@')[0]}@COMMIT"
            )
