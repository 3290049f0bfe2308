"""Time and memory of merging shards into a store, with made-up shards of the size of a real corpus.

    python benchmarks/merge.py                                  # 1e9 tokens, 2e6 documents, exact
    python benchmarks/merge.py --dedup=near --tokens=1e8 --documents=2e5

A tenth of the documents are copies. Needs twelve bytes of disk space a token.
"""

import json
import resource
import tempfile
import time
from pathlib import Path

import harness
import numpy as np

from bert_jax.data_pipeline.sources.document import Range, SourceSpec
from bert_jax.data_pipeline.store_build.merge import merge
from bert_jax.data_pipeline.store_build.shard_files import SUMMARY, Unit
from bert_jax.data_pipeline.store_build.signatures import PLACES
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer

SHARD_TOKENS = 4_000_000  # of about 16 MB of text
SENTENCE = 25  # tokens
VOCABULARY = 30_522


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--tokens", type=float, default=1e9)
    parser.add_argument("--documents", type=float, default=2e6)
    parser.add_argument("--dedup", choices=("none", "exact", "near"), default="exact")
    options = parser.parse_args()
    shards = max(1, round(options.tokens / SHARD_TOKENS))
    with tempfile.TemporaryDirectory() as folder:
        spec = SourceSpec("lines", Path("made-up"), "made-up")
        documents = round(options.documents / shards)
        units = [
            made_up(Path(folder) / "shards" / str(n), n, spec, documents, options.dedup == "near")
            for n in range(shards)
        ]
        words = [f"w{n}" for n in range(VOCABULARY - len(SPECIAL_TOKENS))]
        tokenizer = Tokenizer.from_vocab([*SPECIAL_TOKENS, *words])
        before, started = peak(), time.perf_counter()
        (entry,) = merge(
            units, [spec], tokenizer, Path(folder) / "store", left_out=[{}],
            settings={"dedup": options.dedup, "held_out_share": 0.01}, build_digest="",
        )  # fmt: skip
        seconds = time.perf_counter() - started
    kept = {split: counts["documents"] for split, counts in entry["splits"].items()}
    print(f"{documents * shards:,} documents in {shards:,} shards; kept: {kept}")
    harness.record(kept=kept, seconds=seconds, before_mib=before, peak_mib=peak())
    print(f"{seconds:.1f} s; memory before {before:,.0f} MiB, at most {peak():,.0f} MiB")


def made_up(folder: Path, number: int, spec: SourceSpec, documents: int, signatures: bool) -> Unit:
    """Writes a shard of documents of equal length."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(number)
    sentences = SHARD_TOKENS // SENTENCE // documents
    hashes = draw.integers(1 << 63, size=documents, dtype=np.uint64)
    rows = draw.integers(1 << 32, size=(documents, PLACES), dtype=np.uint32)
    copies = documents // 10
    hashes[-copies:], rows[-copies:] = hashes[:copies], rows[:copies]
    rows[-copies:, :: PLACES // 8] += 1  # similar, not equal
    hashes.tofile(folder / "hashes")
    np.full(documents, sentences, np.uint32).tofile(folder / "documents")
    np.full(documents, sentences * SENTENCE, np.uint32).tofile(folder / "words")
    np.full(documents * sentences, SENTENCE, np.uint32).tofile(folder / "sentences")
    ids = draw.integers(VOCABULARY, size=documents * sentences * SENTENCE, dtype=np.uint16)
    ids.tofile(folder / "tokens")
    if signatures:
        rows.tofile(folder / "signatures")
    summary = {"documents": documents, "rules": {}, "taken": {}, "skipped": {}, "cut_files": []}
    (folder / SUMMARY).write_text(json.dumps(summary))
    part = Range(folder, bytes=16 << 20)
    return Unit(spec, (part,), part.bytes, folder, Path("made-up"), signatures=signatures)


def peak() -> float:
    """Returns the most memory that this process has used, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
