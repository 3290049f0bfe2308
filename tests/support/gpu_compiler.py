"""For tests that need XLA's GPU compiler, but no GPU."""

import os
from pathlib import Path

import pytest

FOLDER = os.environ.get("BERT_JAX_GPU_COMPILER", "")
needs_gpu_compiler = pytest.mark.skipif(
    not FOLDER or not Path(FOLDER, "jax_plugins").is_dir(),
    reason="BERT_JAX_GPU_COMPILER does not name a folder with the GPU compiler",
)
