"""Checks whether input can be the bottleneck: the loader's throughput and what each host needs.

    python benchmarks/input.py                          # on generated text
    python benchmarks/input.py --store=/path/to/store   # a store that `data build` made
    bert-jax compile --config=base --topology=v5e-16 --json > base.json
    python benchmarks/input.py --estimates=base.json    # compare with the compiler's estimate

Measures the loader on this machine: batches assembled and masked by one thread, by two, and by the
prefetch thread of a trainer (`prefetch`), device arrays included.

A host never needs more than its chips can train on if they only run matrix products at their
published peak FLOP/s: that upper bound is in the first table, which assumes nothing about the step.
A real step needs less; with --estimates a second table has the compiler's estimate.
"""

import argparse
import dataclasses
import functools
import json
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import harness

from bert_jax.data_pipeline.masking.masking_settings import MODES
from bert_jax.errors import UserError

POSITIONS = 32_768  # per batch
EXAMPLES = 16  # at most, per packed row


@dataclasses.dataclass(frozen=True)
class Host:
    """A TPU host; devices: JAX devices."""

    name: str
    device_kind: str
    devices: int
    vcpus: int


# Cloud TPU documentation, "VM types" of each version's page, and the machine types of "Plan TPUs in
# GKE". v2, v3 and TPU7x chips have two cores, each a device.
HOSTS = (
    Host("v2, 4 chips", "TPU v2", 8, 96),
    Host("v3, 4 chips", "TPU v3", 8, 96),
    Host("v4, 4 chips", "TPU v4", 4, 240),
    Host("v5e, 1 chip", "TPU v5 lite", 1, 24),
    Host("v5e, 4 chips", "TPU v5 lite", 4, 112),
    Host("v5e, 8 chips", "TPU v5 lite", 8, 224),
    Host("v5p, 4 chips", "TPU v5", 4, 208),
    Host("v6e, 1 chip", "TPU v6 lite", 1, 44),
    Host("v6e, 4 chips", "TPU v6 lite", 4, 180),
    Host("v6e, 8 chips", "TPU v6 lite", 8, 180),  # 360 elsewhere in the documentation
    Host("tpu7x, 4 chips", "TPU7x", 8, 224),
)
MODELS = ("base", "large")
SHAPES = ((128, 20), (512, 77))  # tokens per row, masked positions


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--store", type=Path, help="an existing token store")
    parser.add_argument("--masking", choices=MODES, default="token")
    parser.add_argument("--packed", action="store_true", help="rows packed with several examples")
    parser.add_argument("--estimates", type=Path, action="append", help="bert-jax compile --json")
    parser.add_argument("--rounds", type=int, default=7, help="rounds; medians are reported")
    parser.add_argument("--batches", type=int, default=60, help="batches per round")
    options = parser.parse_args()
    harness.at_least_one(options, "rounds", "batches")
    with harness.errors_are_one_line():
        estimates = [found for path in options.estimates or () for found in read_estimates(path)]
        with tempfile.TemporaryDirectory() as folder:
            run(options, estimates, Path(folder))


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The compiler's estimate of a phase: positions per second that one host has to deliver."""

    title: str
    seq_length: int
    positions: float


def read_estimates(path: Path) -> list[Estimate]:
    """Reads the phases from the output of `bert-jax compile --json`.

    Raises:
        UserError: the file cannot be read, or holds something else.
    """
    try:
        report = json.loads(path.read_text())
        slice_, hosts = report["topology"]["name"], report["topology"]["hosts"]
        return [
            Estimate(
                f"{report['config']} on {slice_}, {phase['config']['batch_size']:,} rows of "
                f"{phase['config']['seq_length']}",
                phase["config"]["seq_length"],
                phase["estimated_tokens_per_second"] / hosts,
            )
            for phase in report["phases"]
            if phase["estimated_tokens_per_second"]
        ]
    except OSError as error:
        raise UserError(f"--estimates={path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"--estimates={path}: not the output of `bert-jax compile --json` ({error!r})"
        ) from error


@dataclasses.dataclass(frozen=True)
class Rates:
    """Real tokens per second of wall-clock time, and their share of the positions (fill)."""

    one: float
    two: float
    ahead: float
    fill_rate: float


def run(options: argparse.Namespace, estimates: list[Estimate], folder: Path) -> None:
    from bert_jax.runtime.cpu import use_cpu_devices

    use_cpu_devices(1)
    os.environ["BERT_JAX_CACHE"] = str(folder / "plans")
    path = options.store or harness.generate_store(folder)
    print(harness.machine())
    print(
        f"masking {options.masking}, {'packed' if options.packed else 'padded'} rows; medians of "
        f"{options.rounds} interleaved rounds of {options.batches} batches\n"
    )
    lengths = {length for length, _ in SHAPES} | {one.seq_length for one in estimates}
    measured = measure(path, sorted(lengths), options)
    print(f"{'million real tokens/s':<24}{'1 thread':>10}{'2 threads':>11}{'prefetch':>12}", end="")
    print(f"{'fill':>13}")
    harness.record(rates={length: dataclasses.asdict(one) for length, one in measured.items()})
    for length, rates in measured.items():
        print(f"{f'rows of {length}':<24}{rates.one / 1e6:>10.1f}{rates.two / 1e6:>11.1f}", end="")
        print(f"{rates.ahead / 1e6:>12.1f}{rates.fill_rate:>13.1%}", flush=True)
    print_needs(measured)
    if estimates:
        print(f"\n{'estimated by the compiler':<44}{HEAD}")
    for estimate in estimates:
        rates = measured[estimate.seq_length]
        print(f"{estimate.title:<44}{need(estimate.positions * rates.fill_rate, rates)}")


HEAD = f"{'a host needs':>14}{'cores':>8}{'of prefetch':>12}"


def need(tokens: float, rates: Rates) -> str:
    """Columns: million real tokens/s, cores to make them, share of the prefetch throughput."""
    return f"{tokens / 1e6:>14.2f}{tokens / rates.one:>8.2f}{tokens / rates.ahead:>12.1%}"


def print_needs(measured: dict[int, Rates]) -> None:
    from bert_jax.hardware.accelerators import peak_flops

    print(f"\n{'at the peak FLOP/s of its chips':<44}{HEAD}{'of its vCPUs':>14}")
    shares = []
    for host in HOSTS:
        for model in MODELS:
            for length, slots in SHAPES:
                rates = measured[length]
                peak = peak_flops(host.device_kind, "bfloat16")
                assert peak is not None
                positions = host.devices * peak / flops(model, length, slots)
                tokens = positions * rates.fill_rate
                shares.append(tokens / rates.one / host.vcpus)
                title = f"{host.name}: {model}, rows of {length}"
                print(f"{title:<44}{need(tokens, rates)}{shares[-1]:>14.2%}")
    print(f"no host needs more than {max(shares):.1%} of its vCPUs, if as fast as these cores")


def flops(model: str, length: int, slots: int) -> float:
    """Returns the FLOPs of a training step per position of a padded row."""
    from bert_jax.config.config_files import load
    from bert_jax.metrics.flops import step_flops

    phase = dataclasses.replace(
        load(model).phases[0], seq_length=length, max_predictions=slots, batch_size=1
    )
    return step_flops(load(model), phase) / length


def measure(path: Path, lengths: list[int], options: argparse.Namespace) -> dict[int, Rates]:
    """Returns the rates by row length; measurements are interleaved."""
    from bert_jax.data_pipeline.store.store import open_store

    store = open_store(path)
    makers = {length: Maker(store, length, options) for length in lengths}
    ways = {(n, name): way for n, maker in makers.items() for name, way in maker.ways.items()}
    middle = harness.medians(ways, options.rounds)
    return {
        length: Rates(*(middle[length, name] for name in maker.ways), maker.fill_rate)
        for length, maker in makers.items()
    }


class Maker:
    """Makes batches of one length; each of `ways` returns real tokens per second."""

    def __init__(self, store: Any, length: int, options: argparse.Namespace):
        import jax

        from bert_jax.config.config_files import load
        from bert_jax.parallel import global_batch
        from bert_jax.parallel.mesh import make_mesh
        from bert_jax.training.batches import phase_batches

        config = load("base")
        phase = dataclasses.replace(
            config.phases[0],
            seq_length=length,
            max_predictions=-(-length * 20 // 128),
            batch_size=max(1, POSITIONS // length),
            examples_per_row=EXAMPLES if options.packed else 1,
        )
        config = dataclasses.replace(
            config,
            data=dataclasses.replace(config.data, masking=options.masking),
            phases=(phase,),
        )
        mesh = make_mesh(config.mesh, jax.devices()[:1])
        self._rows, self._size = global_batch.batch_sharding(mesh), phase.batch_size
        self._batches = phase_batches(config, store, store.train, phase)
        self._count = options.batches
        # Stays in the first half of epoch 0, during which no epoch is planned.
        self._few = max(1, self._batches.batches_once // 2)
        made = [self._batches.batch(step % self._few) for step in range(8)]
        self._real = sum(int((batch["example_ids"] > 0).sum()) for batch in made) / len(made)
        self.fill_rate = self._real / (phase.batch_size * length)
        self.ways: dict[str, Callable[[], float]] = {
            "one": functools.partial(self._by_threads, 1),
            "two": functools.partial(self._by_threads, 2),
            "ahead": self._prefetch,
        }

    def _by_threads(self, threads: int) -> float:
        def make(first: int) -> None:
            for step in range(first, self._count, threads):
                self._batches.batch(step % self._few)

        start = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(make, range(threads)))
        return self._count * self._real / (time.perf_counter() - start)

    def _prefetch(self) -> float:
        """Reads as the trainer does: device arrays, made by a background thread."""
        from bert_jax.data_pipeline.batch import prefetch
        from bert_jax.parallel import global_batch

        def make(step: int) -> Any:
            rows = functools.partial(self._batches.batch, step % self._few)
            return global_batch.global_batch(rows, self._rows, self._size)

        start = time.perf_counter()
        for _ in prefetch(make, 0, self._count):
            pass
        return self._count * self._real / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
