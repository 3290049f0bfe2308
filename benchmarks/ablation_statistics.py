"""Time and memory of the intervals of an ablation: of one difference of a variant to the reference.

    python benchmarks/ablation_statistics.py                     # 10 seeds, 20,000 examples
    python benchmarks/ablation_statistics.py --documents=284     # in fewer documents

By default every example is a document of its own, which costs the most.
"""

import time

import harness
import numpy as np

from bert_jax.ablation import statistics
from bert_jax.runtime.memory import peak_bytes


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--resamples", type=int, default=statistics.RESAMPLES)
    options = parser.parse_args()
    if not 1 <= options.documents <= options.examples:
        parser.error(f"--documents={options.documents}: give at least 1, at most --examples")
    draw = np.random.default_rng(0)
    values = draw.normal(size=(options.seeds, options.examples))
    documents = np.arange(options.examples) % options.documents
    before = peak_bytes()["process"]
    wall, cpu = time.perf_counter(), time.process_time()
    sums = statistics.by_document(values, documents, options.documents)
    counts = np.bincount(documents, minlength=options.documents).astype(float)
    statistics.compare(sums, counts, resamples=options.resamples)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    after = peak_bytes()["process"]
    examples = f"{options.examples:,} examples in {options.documents:,} documents"
    memory = f"before {before / 2**20:,.0f} MiB, at most {after / 2**20:,.0f} MiB"
    harness.record(wall=wall, cpu=cpu, before=before, peak=after)
    print(
        f"{options.resamples:,} resamples of {options.seeds} seeds, {examples}: "
        f"{cpu:.1f} s of processors, {wall:.1f} s; memory {memory}"
    )


if __name__ == "__main__":
    main()
