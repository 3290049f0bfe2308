"""Time and memory of planning a packed epoch of one billion tokens, on one core.

    python benchmarks/plan.py --store=/path/to/store
    python benchmarks/plan.py                     # lengths from the documentation of this Python
    python benchmarks/plan.py --store=STORE --tokens=100_000_000 --pairing=sop

A plan depends on lengths only, so the split is sampled: documents of the store, with replacement,
up to the number of tokens. A new process makes each plan, with its checksums, in an empty cache;
its peak resident memory (including Python, numba and the lengths) is reported.
"""

import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path

import harness
import numpy as np

from bert_jax.data_pipeline.masking.spec import MaskingSpec
from bert_jax.data_pipeline.pairing.modes import MODES, PAIRS, Pairing
from bert_jax.data_pipeline.plan.cache import Plans
from bert_jax.data_pipeline.plan.packing import packing_bound
from bert_jax.data_pipeline.plan.plan import PlanSpec
from bert_jax.data_pipeline.store.split import Split
from bert_jax.data_pipeline.store.store import open_store

# Maximum tokens and prediction slots per example; tokens and examples per row.
SHAPES = ((128, 20, 128, 8), (128, 20, 512, 32), (512, 77, 512, 8))
LENGTHS = ("sentence_lengths", "document_lengths", "document_source", "document_language")


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--store", type=Path, help="store to sample lengths from")
    parser.add_argument("--tokens", type=int, default=1_000_000_000)
    parser.add_argument("--pairing", choices=MODES, action="append", help="default: nsp")
    options = parser.parse_args()
    report(options.store, options.tokens, options.pairing or ["nsp"])


def report(store: Path | None, tokens: int, pairings: list[Pairing]) -> None:
    """Prints a line for every pairing and shape."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with spawn.Pool(1) as pool:
            drawn, documents = pool.apply(draw_split, (store, tokens, folder))
        print(f"plans of {drawn:,} tokens in {documents:,} documents\n")
        for pairing in pairings:
            for shape in SHAPES:
                spec = plan_spec(pairing, *shape)
                for _ in range(2):  # the first process may compile numba code
                    with spawn.Pool(1) as pool:
                        result = pool.apply(measure, (folder, spec))
                with spawn.Pool(1) as pool:
                    rate, bound = pool.apply(fill_rates, (folder, spec))
                seconds, processor, opened, megabytes, rows = result
                harness.record(pairing=pairing, shape=shape, measured=result, fill=[rate, bound])
                print(
                    f"{pairing}, seq {shape[0]} in rows of {shape[2]}: "
                    f"{seconds:.1f} s (CPU {processor:.1f} s), "
                    f"peak {megabytes:.0f} MiB; cached plan checked in {opened:.1f} s; "
                    f"{rows:,} rows, {rate:.2%} real tokens, bound {bound:.2%}",
                    flush=True,
                )


def draw_split(store: Path | None, tokens: int, folder: Path) -> tuple[int, int]:
    """Writes the lengths of a sampled split to `folder`; returns its (tokens, documents)."""
    split = open_store(store or harness.build_store(folder, workers=1), verify=False).train
    ends = np.cumsum(split.document_lengths, dtype=np.int64)
    starts = ends - split.document_lengths
    total = np.concatenate([[0], np.cumsum(split.sentence_lengths, dtype=np.int64)])
    sizes = total[ends] - total[starts]
    random = np.random.default_rng(0)
    chosen = random.integers(0, len(sizes), int(2 * tokens / sizes.mean()) + 10)
    chosen = chosen[: int(np.searchsorted(np.cumsum(sizes[chosen]), tokens)) + 1]
    np.save(
        folder / "sentence_lengths.npy",
        np.concatenate([split.sentence_lengths[starts[d] : ends[d]] for d in chosen]),
    )
    for name in LENGTHS[1:]:
        np.save(folder / f"{name}.npy", getattr(split, name)[chosen])
    return int(sizes[chosen].sum()), len(chosen)


def plan_spec(pairing: Pairing, seq_length: int, slots: int, row: int, examples: int) -> PlanSpec:
    return PlanSpec(
        seq_length,
        pairing=pairing,
        short_seq_prob=0.1 if pairing in PAIRS else 0.0,  # as in the recipes
        row_tokens=row,
        row_predictions=-(-slots * row // seq_length),
        examples_per_row=examples,
        predictions=tuple(MaskingSpec(slots).predictions(seq_length).tolist()),
    )


def open_plans(folder: Path, spec: PlanSpec, cache: str) -> Plans:
    lengths = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in LENGTHS}
    none = np.zeros(0, np.int64)
    split = Split(name="train", tokens=none, token_counts=none, digest="drawn", **lengths)
    return Plans(split, spec, cache)


def measure(folder: Path, spec: PlanSpec) -> tuple[float, float, float, float, int]:
    """Returns (plan seconds, its CPU seconds, seconds to verify it, peak MiB, rows)."""
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        before, processor = time.perf_counter(), time.process_time()
        rows = open_plans(folder, spec, cache).rows
        after, processor = time.perf_counter(), time.process_time() - processor
        open_plans(folder, spec, cache).epoch(0)
        opened = time.perf_counter() - after
    unit = 1 if sys.platform == "darwin" else 1024  # bytes per unit of ru_maxrss
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
    return after - before, processor, opened, peak, rows


def fill_rates(folder: Path, spec: PlanSpec) -> tuple[float, float]:
    """Returns (fill rate, the upper bound for any packing)."""
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        plan = open_plans(folder, spec, cache).epoch(0)
        counts = np.bincount(plan.lengths(), minlength=spec.seq_length + 1)
        return plan.fill_rate(spec.limits.tokens), packing_bound(counts, spec.slots, spec.limits)


if __name__ == "__main__":
    main()
