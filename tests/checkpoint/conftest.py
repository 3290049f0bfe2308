"""A bucket for checkpoints."""

from collections.abc import Iterator

import pytest
from gcs_emulator import Emulator

from bert_jax.storage import retry


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """An empty bucket named "bucket"; no pauses between attempts in this process."""
    pytest.importorskip("gcsfs", reason="needs gcsfs: pip install 'bert-jax[gcs]'")
    import fsspec.config
    from orbax.checkpoint._src.serialization import tensorstore_utils

    monkeypatch.setitem(fsspec.config.conf, "gcs", {"token": "anon"})
    monkeypatch.setattr(retry, "sleep", lambda seconds: None)
    once = {"max_retries": 1, "initial_delay": "10ms"}
    for context in ("_BASE_TS_CONTEXT", "_DEFAULT_OCDBT_TS_CONTEXT"):
        monkeypatch.setitem(getattr(tensorstore_utils, context), "gcs_request_retries", once)
    with Emulator("bucket") as emulator:
        for name, value in emulator.env.items():
            monkeypatch.setenv(name, value)
        yield emulator
