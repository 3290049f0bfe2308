"""A token store of generated text, for benchmarks that only need rows of realistic lengths."""

import random
from pathlib import Path

DOCUMENTS = 500


def generate_store(folder: Path, documents: int = DOCUMENTS) -> Path:
    """Builds the store in the folder from random words, with realistic sentence lengths."""
    from bert_jax.data_pipeline.sources import parse_source
    from bert_jax.data_pipeline.store_build.build import build_store
    from bert_jax.data_pipeline.store_build.vocabulary import train_tokenizer

    draw = random.Random(0)
    words = ["".join(draw.choices("aeioubdklmnrst", k=draw.randint(2, 9))) for _ in range(3000)]
    lines = []
    for _ in range(documents):
        for _ in range(draw.randint(10, 60)):  # sentences
            chosen = draw.choices(words, k=draw.randint(5, 40))
            lines.append(" ".join(chosen).capitalize() + ".")
        lines.append("")
    text, store = folder / "text", folder / "store"
    text.mkdir()
    (text / "generated.txt").write_text("\n".join(lines))
    source = parse_source(f"lines:{text}")
    build_store([source], train_tokenizer([source], 4096, progress=False), store, progress=False)
    return store
