"""Pretrain BERT-family encoders in JAX.

    import bert_jax

    model = bert_jax.load("exported")
    vectors = model.encode(["One sentence.", "Another."])

Importing this package is cheap: JAX is imported when a model is loaded.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert_jax.api import Model

__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    if name == "__version__":  # of setup.py
        from bert_jax.runtime.versions import version

        return version("bert-jax")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load(path: Path | str) -> "Model":
    """Loads the model in a folder; see `bert_jax.api.load`."""
    from bert_jax import api

    return api.load(path)
