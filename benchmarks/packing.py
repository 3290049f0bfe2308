"""Training throughput on packed and padded rows on a CPU: how much of the fill gain is realized.

    python benchmarks/packing.py                          # the documentation of this Python
    python benchmarks/packing.py --store=/path/to/store   # a store that `data build` made

Both train the 4-layer model on rows of the same length, in alternation, on two CPU devices. The
last column is (real tokens/s, packed over padded) / (real tokens per row, packed over padded): 1 if
a real token costs the same in both.
"""

import argparse
import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

VOCABULARY = 8192  # of the store built if none is given
DEVICES = 2
BATCHES = 24  # distinct batches, then repeated
WARM_UP = 2
EXAMPLES = 16  # at most, per packed row
CASES = (("nsp", 128), ("doc_sentences", 128), ("nsp", 512))  # pairing, tokens per row
TOKENS = 4096  # positions per batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--store", type=Path, help="an existing token store")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds")
    parser.add_argument("--steps", type=int, default=3, help="training steps per round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(options, Path(folder))


def run(options: argparse.Namespace, folder: Path) -> None:
    from bert_jax.data_pipeline.sources import parse_source
    from bert_jax.data_pipeline.store.store import open_store
    from bert_jax.data_pipeline.store_build.build import build_store
    from bert_jax.data_pipeline.store_build.vocabulary import train_tokenizer
    from bert_jax.runtime.cpu import use_cpu_devices

    use_cpu_devices(DEVICES)
    os.environ["BERT_JAX_CACHE"] = str(folder / "plans")
    path = options.store
    if path is None:
        source, path = parse_source("python"), folder / "store"
        build_store([source], train_tokenizer([source], VOCABULARY), path, progress=False)
    store = open_store(path)
    print(f"{'pairing':<16}{'row':>5}{'fill padded':>13}{'packed':>9}", end="")
    print(f"{'tokens/s padded':>17}{'packed':>9}{'realized':>13}")
    for pairing, length in CASES:
        contenders = [Contender(store, pairing, length, examples) for examples in (1, EXAMPLES)]
        for contender in contenders:
            contender.take(WARM_UP)
        rates: list[list[float]] = [[], []]
        for _ in range(options.rounds):
            for contender, measured in zip(contenders, rates, strict=True):
                measured.append(contender.take(options.steps))
        fill_rates = [contender.fill_rate for contender in contenders]
        padded, packed = (statistics.median(measured) for measured in rates)
        realized = packed / padded / (fill_rates[1] / fill_rates[0])
        print(f"{pairing:<16}{length:>5}{fill_rates[0]:>13.2%}{fill_rates[1]:>9.2%}", end="")
        print(f"{padded:>17,.0f}{packed:>9,.0f}{realized:>13.3f}", flush=True)


class Contender:
    """A model that trains on packed or on padded rows."""

    def __init__(self, store, pairing: str, length: int, examples: int):
        import jax

        from bert_jax.config.files import load
        from bert_jax.objectives.corpus import Corpus
        from bert_jax.parallel import global_batch
        from bert_jax.parallel.mesh import make_mesh
        from bert_jax.training.batches import phase_batches
        from bert_jax.training.step import make_step_functions

        config = load("wiki_books_small")
        phase = dataclasses.replace(
            config.phases[0],
            batch_size=TOKENS // length,
            seq_length=length,
            max_predictions=-(-length * 20 // 128),
            examples_per_row=examples,
        )
        config = dataclasses.replace(
            config,
            model=dataclasses.replace(config.model, vocab_size=store.vocab_size),
            data=dataclasses.replace(config.data, store=str(store.path), pairing=pairing),
            phases=(phase,),
        )
        mesh = make_mesh(config.mesh)
        batches = phase_batches(config, store, store.train, phase)
        made = [batches.batch(step) for step in range(BATCHES)]
        self.real = [int((batch["example_ids"] > 0).sum()) for batch in made]
        self.fill_rate = sum(self.real) / (BATCHES * TOKENS)
        self.done = 0
        with jax.set_mesh(mesh):
            program = make_step_functions(config, mesh, Corpus.of(store))
            rows = program.rows
            self.placed = [
                global_batch.global_batch(lambda lines, b=b: {k: v[lines] for k, v in b.items()},
                                      rows, phase.batch_size)
                for b in made
            ]  # fmt: skip
            self.step: Callable = program.compile_train(made[0], phase)
            self.state = program.init()

    def take(self, steps: int) -> float:
        """Trains for `steps` steps; returns real tokens per second."""
        import jax

        start, tokens = time.perf_counter(), 0
        for _ in range(steps):
            index = self.done % BATCHES
            self.state, metrics = self.step(self.state, self.placed[index])
            tokens += self.real[index]
            self.done += 1
        jax.block_until_ready(metrics["loss"])
        return tokens / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
