"""What a counted start costs before the first step: seconds of each part on two cores, and memory.

    python benchmarks/counting.py --store=/path/to/store          # for wiki_books_small
    python benchmarks/counting.py --store=/path/to/store --exact   # and scipy's svds, one core

With `--exact`, the share of the energy (the sum of the squares of the singular values) of scipy's
decomposition that the start's has. Memory is the peak of the process, the store's tokens included.
"""

import argparse
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import harness

CORES = 2


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--store", type=Path, required=True, help="a token store")
    parser.add_argument("--config", default="wiki_books_small", help="the model: a shipped config")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--exact", action="store_true", help="compare with scipy's svds (minutes)")
    options = parser.parse_args()
    harness.at_least_one(options, "rounds")
    harness.use_cores(CORES)
    with harness.errors_are_one_line():
        measure(options)


def measure(options: argparse.Namespace) -> None:
    from bert_jax.config.config_files import load
    from bert_jax.data_pipeline.store.store import open_store

    model = load(options.config, {"data.store": str(options.store.resolve())}).model
    store = open_store(options.store)
    parts = [times_of_parts(model, store) for _ in range(options.rounds)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    tokens = len(store.train.tokens)
    print(harness.machine("numpy", "scipy"))
    print(f"{tokens:,} tokens, {store.vocab_size:,} entries, width {model.table_width}")
    for name in parts[0]:
        each = sorted(times[name] for times in parts)
        print(f"{name:<24}{each[len(each) // 2]:>7.1f} s  ({each[0]:.1f} to {each[-1]:.1f})")
    print(f"{'peak memory':<24}{peak:>7.2f} GiB")
    harness.record(tokens=tokens, parts=parts, peak_gib=peak)
    if options.exact:
        compare(model, store)


def times_of_parts(model: Any, store: Any) -> dict[str, float]:
    """Returns the seconds of counting, of the vectors and of the heads, which count again."""
    from bert_jax.training import word_start

    seconds, start = {}, time.perf_counter()
    text = word_start.training_text(store)
    found = counts(model, text)
    seconds["counts"] = time.perf_counter() - start
    start, words = time.perf_counter(), vectors(model, found)
    seconds["vectors"] = time.perf_counter() - start
    if word_start.has_neighbor_maps(model):
        start = time.perf_counter()
        word_start.head_maps(model, text, words)
        seconds["heads of the first layer"] = time.perf_counter() - start
    return seconds


def counts(model: Any, text: Any) -> Any:
    from bert_jax.data_pipeline.analysis.cooccurrence import count_cooccurrences, window_weights

    window = window_weights(model.cooccurrence.window)
    with ThreadPoolExecutor(CORES) as pool:
        return count_cooccurrences(text, window, pool)


def vectors(model: Any, found: Any) -> Any:
    from bert_jax.data_pipeline.analysis.word_vectors import spectral_vectors

    about = model.cooccurrence
    with ThreadPoolExecutor(CORES) as pool:
        return spectral_vectors(found, model.table_width, about.smoothing, about.exponent, pool)


def compare(model: Any, store: Any) -> None:
    """Prints the time of scipy's exact decomposition, and the share of its energy found here."""
    import scipy.sparse.linalg

    from bert_jax.data_pipeline.analysis import word_vectors
    from bert_jax.training.word_start import training_text

    found, width = counts(model, training_text(store)), model.table_width
    with ThreadPoolExecutor(CORES) as pool:
        rows, of_transposed = word_vectors.information(found, model.cooccurrence.smoothing, pool)
        _, values = word_vectors.decompose(rows, of_transposed, width, pool)
    offsets, others, elements = rows
    matrix = scipy.sparse.csr_array((elements, others, offsets))
    start = time.perf_counter()
    exact = scipy.sparse.linalg.svds(matrix, k=width, return_singular_vectors=False)
    share = (values.astype(float) ** 2).sum() / (exact.astype(float) ** 2).sum()
    print(f"{'scipy.sparse.linalg.svds':<24}{time.perf_counter() - start:>7.1f} s")
    print(f"energy of the vectors: {share:.2%} of its energy")
    harness.record(energy=share)


if __name__ == "__main__":
    main()
