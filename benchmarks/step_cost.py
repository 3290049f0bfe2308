"""The time of a training step of one config, in steps of another, on a CPU.

    python benchmarks/step_cost.py --store=STORE wiki_books_small \\
        wiki_books_small,optimizer.name=bert_adamw,model.initializer=published

Each config is a name or a file, with other values after it. Their steps alternate on two CPU
devices, so that both have the machine at equally good and bad times; the ratio is that of the
medians.
"""

import argparse
import dataclasses
import functools
from pathlib import Path
from typing import Any

import harness

DEVICES = 2
BATCHES = 8  # distinct batches, then repeated
WARM_UP = 2


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("configs", nargs=2, metavar="CONFIG[,KEY=VALUE…]")
    parser.add_argument("--store", type=Path, required=True, help="a token store")
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds")
    parser.add_argument("--steps", type=int, default=2, help="training steps per round")
    options = parser.parse_args()
    compare(options)


def compare(options: argparse.Namespace) -> None:
    from bert_jax.runtime.cpu import use_cpu_devices

    use_cpu_devices(DEVICES)
    print(harness.machine())
    trainers = [trainer_of(words, options.store) for words in options.configs]
    for trainer in trainers:
        trainer.train(WARM_UP)
    measures = [
        functools.partial(harness.seconds, functools.partial(trainer.train, options.steps))
        for trainer in trainers
    ]
    found = harness.medians(dict(enumerate(measures)), options.rounds)
    medians = [seconds / options.steps for seconds in found.values()]
    for words, median in zip(options.configs, medians, strict=True):
        print(f"{median:8.3f} s a step: {words}")
    harness.record(seconds=medians)
    print(f"{medians[0] / medians[1]:8.3f} steps of the second, for one of the first")


def config_of(words: str, store: Any) -> Any:
    """Returns a config on the store; values are read as YAML."""
    import yaml

    from bert_jax.config.config_files import load

    name, *changes = words.split(",")
    values = {key: yaml.safe_load(value) for key, _, value in (c.partition("=") for c in changes)}
    return load(
        name, {"data.store": str(store.path), "model.vocab_size": store.vocab_size} | values
    )


def trainer_of(words: str, path: Path) -> harness.Trainer:
    from bert_jax.data_pipeline.store.store import open_store
    from bert_jax.training.batches import phase_batches

    store = open_store(path, verify=False)
    config = config_of(words, store)
    phase = dataclasses.replace(config.phases[0], steps=1000)
    config = dataclasses.replace(config, phases=(phase,))
    batches = phase_batches(config, store, store.train, phase)
    return harness.Trainer(config, store, [batches.batch(step) for step in range(BATCHES)])


if __name__ == "__main__":
    main()
