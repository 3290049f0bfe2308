"""The module that ml_collections gets for every `--config`, with the path of the file."""

from pathlib import Path

from ml_collections import ConfigDict

from bert_jax.config.config_files import execute
from bert_jax.config.defaults import typed


def get_config(path: str) -> ConfigDict:
    """Returns the values of a config file; UserError as `execute`."""
    return typed(execute(Path(path)))
