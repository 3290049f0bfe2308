"""The share of a run's time that guessing hidden words at evaluations takes, on a CPU.

    python benchmarks/fill_cost.py --store=STORE

Steps, evaluations and guesses of one config alternate on two CPU devices, so that all have the
machine at equally good and bad times; the share is computed from the medians of the processor time,
from how often a run does each, and from what compiling each program takes without a cache.
"""

import argparse
import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness

DEVICES = 2


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--store", type=Path, required=True, help="a token store")
    parser.add_argument("--config", default="demo", help="a config of one phase")
    parser.add_argument("--fills", type=int, default=10, help="sentences")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds")
    options = parser.parse_args()
    harness.at_least_one(options, "fills", "rounds")
    with harness.errors_are_one_line():
        measure(options)


def measure(options: argparse.Namespace) -> None:
    from bert_jax.config.config_files import load
    from bert_jax.data_pipeline.store.store import open_store
    from bert_jax.runtime.cpu import use_cpu_devices

    use_cpu_devices(DEVICES)
    print(harness.machine())
    size = open_store(options.store, verify=False).vocab_size
    values = {"data.store": str(options.store), "model.vocab_size": size}
    config = load(options.config, values | {"evaluation.fills": options.fills})
    with tempfile.TemporaryDirectory() as folder:
        compiled, seconds = timed(config, folder, options.rounds)
    steps, every = config.total_steps, config.evaluation.every_steps
    evaluations = -(-steps // every)
    run = compiled["a run"] + steps * seconds["step"] + evaluations * seconds["evaluation"]
    longer = seconds["evaluation for fills"] - seconds["evaluation"]
    own = compiled["one for fills"] - compiled["its evaluation"]
    own += evaluations * longer + (evaluations + 1) * seconds["batch of fills"]
    for name, each in seconds.items():
        print(f"{1000 * each:9.1f} ms: one {name}")
    for name, each in compiled.items():
        print(f"{each:9.2f} s: compiling {name}")
    harness.record(seconds=seconds, compiled=compiled, share=own / run)
    print(f"{own / run:.2%} of {run:,.0f} s, of {steps:,} steps and {evaluations} evaluations")


def timed(config: Any, folder: str, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the seconds of compiling, and the medians of the seconds of each call."""
    import jax

    from bert_jax.distributed.job import in_process_job
    from bert_jax.training import setup, store_data
    from bert_jax.workdir.layout import Workdir

    with in_process_job(config) as job:
        data = store_data.open_data(config)
        run = setup.prepare(data.configured(config), Workdir.open(folder), job, data)
        run = setup.with_outputs(run)
        evaluation = dataclasses.replace(config.evaluation, fills=0)
        bare = setup.with_steps(
            dataclasses.replace(run, config=dataclasses.replace(run.config, evaluation=evaluation)),
            [phase.steps for phase in config.phases],
        )
        (phase,) = run.phases
        with jax.set_mesh(run.mesh):
            plain, without = clocked(lambda: setup.compile_phase(bare, phase, 1))
            compile_evaluation = phase.data.held_out.compile
            compiled, own = clocked(lambda: compile_evaluation(run.program))
            again = setup.with_steps(bare, [phase.config.steps])  # else from the cache
            _, usual = clocked(lambda: compile_evaluation(again.program))
            fills = run.fills
            assert fills is not None
            state = run.program.init()
            params = jax.tree.map(lambda x: x.copy(), state["params"])
            batch = run.batch(phase, 0)

            def step() -> None:
                nonlocal state
                state, numbers = plain.train(state, batch)
                jax.block_until_ready(numbers)

            held_out = phase.data.held_out
            evaluate = held_out.evaluate
            calls: dict[str, Callable[[], Any]] = {
                "step": step,
                "evaluation": lambda: evaluate(bare.program, params, compiled=plain.evaluate),
                "evaluation for fills": lambda: evaluate(run.program, params, compiled=compiled),
                "batch of fills": lambda: fills.guesses(held_out, run.program, params, compiled),
            }
            for call in calls.values():
                call()
            times = {
                name: functools.partial(harness.seconds, call, time.process_time)
                for name, call in calls.items()
            }
            found = harness.medians(times, rounds)
    return {"a run": without, "its evaluation": usual, "one for fills": own}, found


def clocked(make: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    made = make()
    return made, time.process_time() - began


if __name__ == "__main__":
    main()
