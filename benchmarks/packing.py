"""Training throughput on packed and padded rows on a CPU: how much of the fill gain is realized.

    python benchmarks/packing.py                          # the documentation of this Python
    python benchmarks/packing.py --store=/path/to/store   # a store that `data build` made

Both train the 4-layer model on rows of the same length, in alternation, on two CPU devices. The
last column is (real tokens/s, packed over padded) / (real tokens per row, packed over padded): 1 if
a real token costs the same in both.
"""

import argparse
import dataclasses
import functools
import os
import tempfile
from pathlib import Path

import harness

DEVICES = 2
BATCHES = 24  # distinct batches, then repeated
WARM_UP = 2
EXAMPLES = 16  # at most, per packed row
CASES = (("nsp", 128), ("doc_sentences", 128), ("nsp", 512))  # pairing, tokens per row
TOKENS = 4096  # positions per batch


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--store", type=Path, help="an existing token store")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds")
    parser.add_argument("--steps", type=int, default=3, help="training steps per round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(options, Path(folder))


def run(options: argparse.Namespace, folder: Path) -> None:
    from bert_jax.data_pipeline.store.store import open_store
    from bert_jax.runtime.cpu import use_cpu_devices

    use_cpu_devices(DEVICES)
    os.environ["BERT_JAX_CACHE"] = str(folder / "plans")
    store = open_store(options.store or harness.build_store(folder))
    print(harness.machine())
    print(f"{'pairing':<16}{'row':>5}{'fill padded':>13}{'packed':>9}", end="")
    print(f"{'tokens/s padded':>17}{'packed':>9}{'realized':>13}")
    for pairing, length in CASES:
        contenders = [Contender(store, pairing, length, examples) for examples in (1, EXAMPLES)]
        for contender in contenders:
            contender.take(WARM_UP)
        takes = {each: functools.partial(each.take, options.steps) for each in contenders}
        padded, packed = harness.medians(takes, options.rounds).values()
        fill_rates = [contender.fill_rate for contender in contenders]
        realized = packed / padded / (fill_rates[1] / fill_rates[0])
        harness.record(pairing=pairing, row=length, fill=fill_rates, rates=[padded, packed])
        print(f"{pairing:<16}{length:>5}{fill_rates[0]:>13.2%}{fill_rates[1]:>9.2%}", end="")
        print(f"{padded:>17,.0f}{packed:>9,.0f}{realized:>13.3f}", flush=True)


class Contender:
    """A model that trains on packed or on padded rows."""

    def __init__(self, store, pairing: str, length: int, examples: int):
        from bert_jax.config.config_files import load
        from bert_jax.training.batches import phase_batches

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
        batches = phase_batches(config, store, store.train, phase)
        made = [batches.batch(step) for step in range(BATCHES)]
        self.real = [int((batch["example_ids"] > 0).sum()) for batch in made]
        self.fill_rate = sum(self.real) / (BATCHES * TOKENS)
        self.trainer = harness.Trainer(config, store, made)

    def take(self, steps: int) -> float:
        """Trains for `steps` steps; returns real tokens per second."""
        done = self.trainer.done
        seconds = harness.seconds(lambda: self.trainer.train(steps))
        return sum(self.real[index % BATCHES] for index in range(done, done + steps)) / seconds


if __name__ == "__main__":
    main()
