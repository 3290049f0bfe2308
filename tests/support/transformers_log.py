"""What transformers says while it loads a folder."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def nothing_said() -> Iterator[None]:
    """Fails if transformers logs a warning or Python shows one."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        logger.removeHandler(handler)
    assert not records, [record.getMessage() for record in records]


def load_quietly(folder: Path, auto: str) -> Any:
    """Loads a model by a class such as AutoModelForMaskedLM, and its tokenizer: every key fits, and
    nothing is said."""
    import transformers

    with nothing_said():
        transformers.AutoTokenizer.from_pretrained(folder)
        model, info = getattr(transformers, auto).from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()
