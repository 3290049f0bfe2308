"""benchmarks/counting.py: what it times and compares; no figure is checked but a share."""

import re
from pathlib import Path

import pytest
from benchmark_runs import run
from corpus import small_store


@pytest.mark.slow
@pytest.mark.processes
def test_the_parts_of_a_counted_start_are_timed_beside_the_exact_vectors(tmp_path: Path) -> None:
    store, config = small_store(tmp_path / "store"), tmp_path / "narrow.py"
    config.write_text(
        "from bert_jax.configs import demo\n"
        "def get_config():\n"
        "    config = demo.get_config()\n"
        "    config.model.hidden_size = 16\n"
        "    return config\n"
    )
    done = run(
        "counting.py", f"--store={store.path}", f"--config={config}", "--rounds=2", "--exact"
    )
    assert done.returncode == 0, done.stderr
    parts = re.findall(r"^(\w.*?) +[\d.]+ (?:s|GiB)\b", done.stdout, re.MULTILINE)
    heads = "heads of the first layer"
    assert parts == ["counts", "vectors", heads, "peak memory", "scipy.sparse.linalg.svds"]
    (share,) = re.findall(r"energy of the vectors: ([\d.]+)%", done.stdout)
    assert 99 < float(share) < 100.01
