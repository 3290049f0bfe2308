"""For tests that need libtpu, but no TPU. Loading it changes how JAX starts, so it is asked in a
process of its own: the test's file, run as a program."""

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest

needs_libtpu = pytest.mark.skipif(
    not os.environ.get("BERT_JAX_LIBTPU") and importlib.util.find_spec("libtpu") is None,
    reason="libtpu is not installed and BERT_JAX_LIBTPU does not name a copy",
)


def with_support(environment: dict[str, str]) -> dict[str, str]:
    """An environment in which a test's file, run as a program, finds the helpers."""
    paths = [os.path.dirname(__file__), *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}


def answer_of(file: str) -> Any:
    """What a file, run as a program that may load libtpu, prints as JSON."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",  # no metadata server to ask here
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no device to keep for oneself either
    }
    if copy := os.environ.get("BERT_JAX_LIBTPU"):
        environment["TPU_LIBRARY_PATH"] = copy
    done = subprocess.run(
        [sys.executable, file],
        env=with_support(environment),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
