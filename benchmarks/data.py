"""Speed of the data pipeline on one core: building a store, planning epochs, making batches.

    python benchmarks/data.py                                   # the documentation of this Python
    python benchmarks/data.py --source=wikiextractor:/path --source=books:/path --vocab=vocab.txt
    python benchmarks/data.py --build_only --dedup=near         # with signatures of the documents
    python benchmarks/data.py --store=/path/to/store            # an existing store, nothing built

Measurements are interleaved over several rounds; the table reports medians.
"""

import argparse
import functools
import os
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

os.environ["RAYON_NUM_THREADS"] = "1"  # read at the first encoding; everything runs on one core

import harness
import numpy as np
import plan
import tokenizers

from bert_jax.data_pipeline.batch import Batches
from bert_jax.data_pipeline.masking.masking_settings import MODES
from bert_jax.data_pipeline.masking.spec import MaskingSpec
from bert_jax.data_pipeline.plan.plan import PlanSpec
from bert_jax.data_pipeline.sources import SourceSpec, parse_source
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.store_build import build, shard, vocabulary
from bert_jax.data_pipeline.store_build.duplicates import Dedup
from bert_jax.data_pipeline.tokenizer import word_table
from bert_jax.data_pipeline.tokenizer.tokenizer import Encoded, Tokenizer

T = TypeVar("T")
ROUNDS = 7
BUILD_ROUNDS = 3
ROWS = 256
SHAPES = ((128, 20), (512, 77))  # sequence length, prediction slots
EPOCHS = 6  # planned and cached before the random access
RANDOM_STEPS = 300
BATCH_STEPS = 100
PACKED_TOKENS = 1024  # per packed row
MEMORY_STEPS = 10_000
PLANNED_TOKENS = 1_000_000_000
VOCABULARY = 8192  # size of the vocabulary trained if none is given


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--store", type=Path, help="an existing store")
    parser.add_argument("--source", action="append", help="kind:path, as for `bert-jax data build`")
    parser.add_argument("--vocab", type=Path, help="vocab.txt or tokenizer.json; default: trained")
    parser.add_argument("--dedup", choices=("none", "near"), default="none", help="of the build")
    parser.add_argument("--build_rounds", type=int, default=BUILD_ROUNDS, help="of the build")
    parser.add_argument("--build_only", action="store_true", help="measure nothing but the build")
    options = parser.parse_args()
    print(f"{harness.machine()}; one core, medians of {ROUNDS} interleaved rounds")
    print("rates are per second of CPU time, random access is wall-clock time\n")
    with tempfile.TemporaryDirectory() as folder, harness.errors_are_one_line():
        run(options, Path(folder))


def run(options: argparse.Namespace, folder: Path) -> None:
    path = options.store
    if path is None:
        specs = [parse_source(text) for text in options.source or ["python"]]
        path = folder / "store"
        report_build(specs, options, path)
    if options.build_only:
        return

    store = open_store(path)
    tokens = len(store.train.tokens)
    print(f"store: {tokens:,} training tokens, {len(store.train.document_lengths):,} documents\n")
    report_batches(store, folder / "plans")
    report_jumps(store, folder / "plans")
    print()
    plan.report(path, PLANNED_TOKENS, ["nsp"])


def cpu_time() -> float:
    """Returns the CPU time of this process and its workers, independent of other load."""
    return time.process_time() + sum(os.times()[2:4])


def line(name: str, value: str, note: str = "") -> None:
    harness.record(name=name, value=value, note=note)
    print(f"{name:<44}{value:>22}   {note}".rstrip())


def report_build(specs: list[SourceSpec], options: argparse.Namespace, out: Path) -> None:
    """Times a build with one worker and, in turns with it, `tokenizers` on the same sentences."""
    vocab, count = options.vocab, options.build_rounds
    tokenizer = Tokenizer.load(vocab) if vocab else vocabulary.train_tokenizer(specs, VOCABULARY)
    rounds = [build_once(specs, tokenizer, out, options.dedup) for _ in range(count)]
    taken = {name: statistics.median(times[name] for times in rounds) for name in rounds[0]}
    megabytes = sum(entry["bytes"] for entry in open_store(out).manifest["sources"]) / 1e6
    print(f"{megabytes:.1f} MB of raw text, medians of {count} rounds")
    shard, alone = taken.pop("text to shard"), taken.pop("encode_batch_fast alone")
    line("text to shard", f"{megabytes / shard:.2f} MB/s", f"{alone / shard:.2f} times the next")
    line("encode_batch_fast alone", f"{megabytes / alone:.2f} MB/s", "the same sentences")
    line("store build, checksums and merge included", f"{megabytes / taken.pop('build'):.2f} MB/s")
    if signatures := taken.pop("signatures", None):
        line("signatures", f"{megabytes / signatures:.2f} MB/s", f"{signatures / shard:.1%} more")
    taken["reading, the rest"] = shard - sum(taken.values())
    for name, seconds in taken.items():
        line(f"  {name}", f"{seconds / shard:.1%}", "of text to shard")
    print()


def build_once(
    specs: list[SourceSpec], tokenizer: Tokenizer, out: Path, dedup: Dedup
) -> dict[str, float]:
    """Returns the CPU seconds of a build with one worker, of its stages, and of the library."""
    taken: Counter[str] = Counter()

    def timed(name: str, function: Callable[..., T]) -> Callable[..., T]:
        def call(*arguments: Any) -> T:
            start = time.process_time()
            try:
                return function(*arguments)
            finally:
                taken[name] += time.process_time() - start

        return call

    alone = timed("encode_batch_fast alone", encode_alone(tokenizer))

    def encode_words_once(tokenizer: Tokenizer) -> word_table.Encode:
        encode = timed("encoding", word_table.encode_words_once(tokenizer))

        def both(texts: Sequence[str]) -> Encoded:
            alone(texts)
            return encode(texts)

        return both

    shutil.rmtree(out, ignore_errors=True)
    with ExitStack() as patched:
        for owner, name, changed in (
            (build, "build_shard", timed("text to shard", shard.build_shard)),
            (shard, "encode_words_once", encode_words_once),
            (shard, "cleaned", timed("cleaning", shard.cleaned)),
            (shard.sentences, "split", timed("sentences", shard.sentences.split)),
            (shard, "signature", timed("signatures", shard.signature)),
            (shard, "raw_hash", timed("hashing", shard.raw_hash)),
            (shard.ArrayFile, "append", timed("writing", shard.ArrayFile.append)),
        ):
            patched.enter_context(mock.patch.object(owner, name, changed))
        one_worker = functools.partial(build.build_store, dedup=dedup, workers=1, progress=False)
        timed("build", one_worker)(specs, tokenizer, out)
    for name in ("text to shard", "build"):
        taken[name] -= taken["encode_batch_fast alone"] + taken["signatures"]
    return taken


def encode_alone(tokenizer: Tokenizer) -> Callable[[Sequence[str]], None]:
    encoder = tokenizers.Tokenizer.from_str(tokenizer.json.decode())

    def encode(texts: Sequence[str]) -> None:
        encoder.encode_batch_fast(list(texts), add_special_tokens=False)

    return encode


def open_batches(
    store: TokenStore, seq_length: int, slots: int, folder: Path, mode: str = "token",
    packed: bool = False,
) -> Batches:  # fmt: skip
    masking = MaskingSpec(slots, masking=mode, span_boundary=mode == "span")
    spec = PlanSpec(seq_length)
    if packed:
        spec = PlanSpec(
            seq_length, row_tokens=PACKED_TOKENS, examples_per_row=2 * PACKED_TOKENS // seq_length,
            row_predictions=slots * PACKED_TOKENS // seq_length,
            predictions=tuple(masking.predictions(seq_length).tolist()),
        )  # fmt: skip
    return Batches(
        store.train, spec, masking, ROWS * seq_length // spec.limits.tokens, store.special,
        store.vocab_size, folder, word_starts=Tokenizer.load(store.tokenizer_path).word_starts,
        sources=store.sources, languages=store.languages,
    )  # fmt: skip


def make_some(batches: Batches, count: int, first: int = 0) -> None:
    """Makes batches of the first half of epoch 0, during which no epoch is planned."""
    few = max(1, batches.batches_once // 2)
    for step in range(first, first + count):
        batches.batch(step % few)


def report_batches(store: TokenStore, folder: Path) -> None:
    def measure(seq_length: int, slots: int, packed: bool, mode: str) -> Callable[[], float]:
        batches = open_batches(store, seq_length, slots, folder, mode, packed)
        few = max(1, batches.batches_once // 2)
        real = sum(np.count_nonzero(batches.batch(k % few)["example_ids"]) for k in range(8)) / 8
        make = functools.partial(make_some, batches, BATCH_STEPS)
        return lambda: BATCH_STEPS * real / harness.seconds(make, cpu_time) / 1e6

    cases = {
        f"nsp, seq {seq_length}, {'packed' if packed else 'padded'}, {mode}":
            measure(seq_length, slots, packed, mode)
        for seq_length, slots in SHAPES for packed in (False, True) for mode in MODES
    }  # fmt: skip
    for name, rate in harness.medians(cases, ROUNDS).items():
        line(f"batch, {name}", f"{rate:.1f} M tokens/s", "excluding padding")
    report_threads(open_batches(store, *SHAPES[1], folder, packed=True))
    report_memory(open_batches(store, *SHAPES[0], folder))


def report_threads(batches: Batches) -> None:
    def taken(threads: int) -> float:
        with ThreadPoolExecutor(threads) as pool:
            start = time.perf_counter()
            list(pool.map(lambda k: make_some(batches, BATCH_STEPS, k), range(threads)))
            return threads / (time.perf_counter() - start)

    rates = harness.medians({str(n): functools.partial(taken, n) for n in (1, 2)}, ROUNDS)
    line("speedup of two threads, wall clock", f"{rates['2'] / rates['1']:.2f} times")


def report_memory(batches: Batches) -> None:
    def resident() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    if not Path("/proc/self/statm").exists():
        return
    make_some(batches, 1000)
    before = resident()
    make_some(batches, MEMORY_STEPS)
    line(
        f"memory after {MEMORY_STEPS:,} batches",
        f"{resident():.1f} MiB",
        f"{before:.1f} before",
    )


def report_jumps(store: TokenStore, folder: Path) -> None:
    """Times one batch at a random step, with open plans and after opening the cached plan."""
    draw = np.random.default_rng(0)
    for seq_length, slots in SHAPES:
        batches = open_batches(store, seq_length, slots, folder)
        steps = draw.integers(0, EPOCHS * batches.rows_per_epoch // ROWS, RANDOM_STEPS).tolist()
        for epoch in range(EPOCHS + 1):
            batches.batch(epoch * batches.rows_per_epoch // ROWS + 1)
        times = [harness.seconds(functools.partial(batches.batch, step)) * 1e3 for step in steps]
        line(
            f"batch at a random step, seq {seq_length}",
            f"{statistics.median(times):.2f} ms",
            f"median of {RANDOM_STEPS} in {EPOCHS} epochs; slowest {max(times):.2f} ms",
        )

        def resume(step: int, seq_length: int = seq_length, slots: int = slots) -> None:
            open_batches(store, seq_length, slots, folder).batch(step)

        times = [harness.seconds(functools.partial(resume, step)) * 1e3 for step in steps[:20]]
        line(
            f"open cached plan, make a batch, seq {seq_length}",
            f"{statistics.median(times):.2f} ms",
            "plan checksums included",
        )


if __name__ == "__main__":
    main()
