"""Where what can be made again is kept on this machine."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """$BERT_JAX_CACHE, or bert_jax in the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bert_jax"
    return Path(os.environ.get("BERT_JAX_CACHE") or default)
