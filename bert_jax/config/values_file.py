"""Config files that are values, not programs: YAML, JSON, and the `config.json` of a run.

The values replace the defaults of `Config`; nothing in the file is executed.
"""

import re
from pathlib import Path
from typing import Any, Final

import yaml
from ml_collections import ConfigDict

from bert_jax.config.defaults import config_dict, without_vocab_size
from bert_jax.config.schema import Config
from bert_jax.config.serialization import from_dict
from bert_jax.errors import UserError
from bert_jax.storage import json_record
from bert_jax.storage.read_files import read_bytes
from bert_jax.storage.reader_errors import YAML_ERRORS, reader_errors
from bert_jax.storage.remote import storage_errors

SUFFIXES: Final = (".yaml", ".yml", ".json")


class _Loader(yaml.SafeLoader):
    """Reads 1e-4 as a number, as YAML 1.2 and JSON do; PyYAML needs 1.0e-4."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def get_config(path: str) -> ConfigDict:
    """Returns the defaults with the values of a file.

    Raises:
        UserError: the file cannot be read, or a value is not one of a configuration; names the file
            and the key.
    """
    values = _read(Path(path))
    if isinstance(values, dict) and {"config", "data", "versions"} <= values.keys():
        values = values["config"]  # of a run's config.json
    if not isinstance(values, dict):
        raise UserError(
            f"{path}: must hold keys with values, such as optimizer: {{learning_rate: 1e-4}}, not "
            f"{type(values).__name__}"
        )
    try:
        config = config_dict(from_dict(values, Config))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if "vocab_size" not in values.get("model", {}):
        return without_vocab_size(config)
    return config


def _read(path: Path) -> Any:
    with storage_errors(path):
        data = read_bytes(path)
    if path.suffix.lower() == ".json":
        try:
            return json_record.parse(data)
        except ValueError as error:
            raise UserError(f"{path}: {error}; correct it") from None
    with reader_errors(path, (*YAML_ERRORS, yaml.YAMLError), "not YAML", "correct it"):
        return _Loader(data.decode()).get_single_data()
