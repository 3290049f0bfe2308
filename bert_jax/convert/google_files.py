"""Tells the files of a model of google-research/bert or google-research/albert from others."""

import re
from pathlib import Path
from typing import Final

BERT_CONFIG: Final = "bert_config.json"
ALBERT_CONFIG: Final = "albert_config.json"
FILES = re.compile(
    r"(al)?bert_config\.json|vocab\.txt|.+\.model|.+\.ckpt.*\.(index|data-\d{5}-of-\d{5})"
)


def is_google_bert(folder: Path) -> bool:
    """Returns whether the folder holds a model of google-research/bert, and not, beside its
    settings, only a copy for transformers."""
    if not any((folder / name).is_file() for name in (BERT_CONFIG, ALBERT_CONFIG)):
        return False
    return any(folder.glob("*.index")) or not (folder / "config.json").is_file()
