"""The time of a training step of one config, in steps of another, on a CPU.

    python benchmarks/step_cost.py --store=STORE wiki_books_small \\
        wiki_books_small,optimizer.name=bert_adamw,model.initializer=published

Each config is a name or a file, with other values after it. Their steps alternate on two CPU
devices, so that both have the machine at equally good and bad times; the ratio is that of the
medians.
"""

import argparse
import dataclasses
import statistics
import time
from pathlib import Path
from typing import Any

import turns

DEVICES = 2
BATCHES = 8  # distinct batches, then repeated
WARM_UP = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("configs", nargs=2, metavar="CONFIG[,KEY=VALUE…]")
    parser.add_argument("--store", type=Path, required=True, help="a token store")
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds")
    parser.add_argument("--steps", type=int, default=2, help="training steps per round")
    options = parser.parse_args()
    compare(options)


def compare(options: argparse.Namespace) -> None:
    from bert_jax.runtime.cpu import use_cpu_devices

    use_cpu_devices(DEVICES)
    print(turns.machine())
    trainers = [Trainer(words, options.store) for words in options.configs]
    seconds: list[list[float]] = [[], []]
    for trainer in trainers:
        trainer.take(WARM_UP)
    for _ in range(options.rounds):
        for trainer, measured in zip(trainers, seconds, strict=True):
            measured.append(trainer.take(options.steps) / options.steps)
    medians = [statistics.median(measured) for measured in seconds]
    for words, median in zip(options.configs, medians, strict=True):
        print(f"{median:8.3f} s a step: {words}")
    print(f"{medians[0] / medians[1]:8.3f} steps of the second, for one of the first")


def config_of(words: str, store: Any) -> Any:
    """Returns a config on the store; values are read as YAML."""
    import yaml

    from bert_jax.config.files import load

    name, *changes = words.split(",")
    values = {key: yaml.safe_load(value) for key, _, value in (c.partition("=") for c in changes)}
    return load(
        name, {"data.store": str(store.path), "model.vocab_size": store.vocab_size} | values
    )


class Trainer:
    """A config's training step."""

    def __init__(self, words: str, path: Path):
        import jax

        from bert_jax.data_pipeline.store.store import open_store
        from bert_jax.objectives.corpus import Corpus
        from bert_jax.parallel import global_batch
        from bert_jax.parallel.mesh import make_mesh
        from bert_jax.training.batches import phase_batches
        from bert_jax.training.step import make_step_functions

        store = open_store(path, verify=False)
        config = config_of(words, store)
        phase = dataclasses.replace(config.phases[0], steps=1000)
        config = dataclasses.replace(config, phases=(phase,))
        mesh = make_mesh(config.mesh)
        batches = phase_batches(config, store, store.train, phase)
        with jax.set_mesh(mesh):
            program = make_step_functions(config, mesh, Corpus.of(store))
            self._batches = [
                global_batch.global_batch(
                    lambda rows, step=step: batches.batch(step, rows=rows),
                    program.rows,
                    phase.batch_size,
                )
                for step in range(BATCHES)
            ]
            self._step = program.compile_train(batches.batch(0, rows=[]), phase)
            self._state = program.init()
        self._done = 0

    def take(self, steps: int) -> float:
        """Trains; returns the seconds that it took."""
        import jax

        start = time.perf_counter()
        for _ in range(steps):
            batch = self._batches[self._done % BATCHES]
            self._state, metrics = self._step(self._state, batch)
            self._done += 1
        jax.block_until_ready(metrics["loss"])
        return time.perf_counter() - start


if __name__ == "__main__":
    main()
