"""The files and folders that a configuration, or that of a run, names: nothing is written there."""

import os
import re
from collections.abc import Iterator
from typing import Any, Final

from etils import epath

from bert_jax.errors import UserError
from bert_jax.storage import json_record
from bert_jax.storage.hub import is_hub
from bert_jax.storage.read_files import read_bytes
from bert_jax.storage.remote import is_remote
from bert_jax.workdir.layout import Workdir, split_step

# Keys of a configuration, the last ones of theirs, that are paths: of a run, and of an ablation.
_PATH_KEYS: Final = (
    *("data.store", "init", "task.data", "task.held_out", "teacher", "task.tokenizer"),
    *("task.retrieval", "store"),
)
_IS_PATH: Final = re.compile(rf"(^|\.)({'|'.join(map(re.escape, _PATH_KEYS))})$")


def inputs_of_config(config: Any, key: str = "") -> Iterator[str]:
    """Yields the paths that are values of a configuration, or of the changes of an ablation.

    Args:
        config: of JSON types.
        key: where it is in the whole one.
    """
    if isinstance(config, dict):
        for name, value in config.items():
            yield from inputs_of_config(value, f"{key}.{name}")
    elif isinstance(config, list | tuple):
        for value in config:
            if isinstance(value, list | tuple) and len(value) == 2:
                yield from inputs_of_config(value[1], f"{key}.{value[0]}")
            else:
                yield from inputs_of_config(value, key)
    elif isinstance(config, str) and config and _IS_PATH.search(key):
        yield from path_of_model(config)


def path_of_model(model: str) -> list[str]:
    """Returns the path of a model in a folder, a run or a step of one; none of a model on a hub."""
    return [] if is_hub(model) else [split_step(model)[0]]


def inputs_of_model(model: epath.PathLike) -> Iterator[str]:
    """Yields the path of a model or of any other input; of a local run also those that its recorded
    configuration names, where they are still there."""
    for path in path_of_model(os.fspath(model)):
        yield path
        if not is_remote(path):
            yield from (name for name in _recorded(Workdir.open(path)) if os.path.exists(name))


def _recorded(workdir: Workdir) -> Iterator[str]:
    try:
        run = json_record.parse(read_bytes(workdir.config_json))
    except (OSError, ValueError, UserError):  # no run, or the command says what is wrong with it
        return
    if isinstance(run, dict):
        yield from inputs_of_config(run.get("config"))
