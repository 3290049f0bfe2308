"""For tests that need XLA's GPU compiler, but no GPU."""

import os

import pytest

needs_gpu_compiler = pytest.mark.skipif(
    not os.environ.get("BERT_JAX_GPU_COMPILER"),
    reason="BERT_JAX_GPU_COMPILER does not name a folder with the GPU compiler",
)
