"""Pretrain BERT-family encoders in JAX.

    import bert_jax

    store = bert_jax.build_store(texts, "store", vocab_size=8192)
    config = bert_jax.config("demo", {"data.store": store.path})
    bert_jax.pretrain(config, "run")
    bert_jax.export("run", "exported")
    model = bert_jax.load("exported")
    vectors = model.encode(["One sentence.", "Another."])

Importing this package is cheap: a name is imported from its module when it is first used.
"""

import importlib
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert_jax.api.data import batches, build_store, inspect
    from bert_jax.api.model import Fill, Model, Prediction, load
    from bert_jax.api.run import export, pretrain
    from bert_jax.config.schema import Config
    from bert_jax.data_pipeline.store.store import TokenStore, open_store
    from bert_jax.errors import NumbersError, StoppedError, StorageError, UserError
    from bert_jax.finetune.tasks.qa import Answer, Answers

_MODULES = {
    name: module
    for module, names in (
        ("api.data", "batches build_store inspect"),
        ("api.model", "Fill Model Prediction load"),
        ("api.run", "export pretrain"),
        ("finetune.tasks.qa", "Answer Answers"),
        ("config.schema", "Config"),
        ("data_pipeline.store.store", "TokenStore open_store"),
        ("errors", "NumbersError StoppedError StorageError UserError"),
    )
    for name in names.split()
}
__all__ = [
    "Answer", "Answers", "Config", "Fill", "Model", "NumbersError", "Prediction", "StoppedError",
    "StorageError", "TokenStore", "UserError", "__version__", "batches", "build_store", "config",
    "export", "inspect", "load", "open_store", "pretrain",
]  # fmt: skip

# Imported now: when it is first imported, a subpackage binds its name here, and the name is that of
# the function below.
importlib.import_module("bert_jax.config")


def config(
    name: os.PathLike[str] | str, changes: Mapping[str, Any] = MappingProxyType({})
) -> "Config":
    """Returns the configuration of a run.

    Args:
        name: of a shipped config, such as "base", or the path of a config file.
        changes: other values by key, as on the command line; see `Config.replace`.

    Raises:
        UserError: neither a file nor a shipped config, the file is wrong, or a change is.
    """
    from bert_jax.training.resolve import load

    return load(os.fspath(name), changes)


def __getattr__(name: str) -> Any:
    if name == "__version__":  # of setup.py
        from bert_jax.runtime.versions import version

        return version("bert-jax")
    if name not in _MODULES:
        raise AttributeError(f"module 'bert_jax' has no attribute {name!r}")
    return getattr(importlib.import_module(f"bert_jax.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
