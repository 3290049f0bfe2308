"""The local folder for caches: files that can be recreated."""

import os
from pathlib import Path

from bert_jax.errors import UserError


def cache_dir() -> Path:
    """Returns $BERT_JAX_CACHE, or `bert_jax` in the user's cache folder.

    Raises:
        UserError: the user has no home folder, as in a container that runs as an unknown user.
    """
    if named := os.environ.get("BERT_JAX_CACHE"):
        return Path(named)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "bert_jax"
    try:
        return Path.home() / ".cache" / "bert_jax"
    except RuntimeError:
        raise UserError(
            "no home folder for plans and compiled programs; set BERT_JAX_CACHE to a folder"
        ) from None
