"""Speed of fine-tuning on a CPU, compared with transformers' PyTorch with dynamic padding.

    python benchmarks/finetune_speed.py --data=REAL_DATA          # CoLA and RTE
    python benchmarks/finetune_speed.py --tasks=cola --rounds=3

Needs the [torch] extra. `--data` (default: $BERT_JAX_REAL_DATA) has glue/CoLA, glue/RTE and
vocab/bert-base-uncased-vocab.txt. Both sides train an encoder of 6 layers of width 384 and its
classifier from the same weights in float32, with dropout, AdamW and batches of 32 examples cut at
128 tokens, which are tokenized before. bert_jax packs them into the rows of its config `glue`;
transformers' BertForSequenceClassification has them in any order, each batch padded to its longest
example, as DataCollatorWithPadding does. Each side is a process of its own and they run
alternately. Positions count padding. On a machine that is busy with other work, threads that wait
for one another take much longer: there, --threads=1 and the CPU seconds say more.
"""

import argparse
import contextlib
import functools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import peer_torch

NAMES = ("bert_jax", "transformers")
FOLDERS = {"cola": "CoLA", "rte": "RTE"}
VOCABULARY = "vocab/bert-base-uncased-vocab.txt"
LAYERS, WIDTH, HEADS = 6, 384, 12
LONGEST, BATCH_SIZE = 128, 32
MANY = 1000  # steps for which batches can be prepared
COUNTS = "counts"  # the request for examples, positions and tokens of the steps so far

Step = Callable[[], float]  # trains on the next batch, returns its loss


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--data", default=os.environ.get("BERT_JAX_REAL_DATA"), help="the folder")
    parser.add_argument("--tasks", default=",".join(FOLDERS))
    options = parse(parser, NAMES, rounds=9, steps=8)
    if options.contender:
        answer(options)
        return
    tasks = harness.some_of("tasks", options.tasks, FOLDERS)
    for task in tasks:
        for name in (f"glue/{FOLDERS[task]}", VOCABULARY):
            if not (Path(options.data or "") / name).exists():
                harness.fail(f"--data={options.data or ''}: {name} is not there")
    harness.use_cores(options.threads)
    libraries = harness.machine("jax", "torch", "transformers")
    print(f"{libraries}; {options.threads} threads", flush=True)
    for task in tasks:
        with tempfile.TemporaryDirectory() as folder:
            prepare(options, task, Path(folder))
            compare(options, Path(folder))


def parse(
    parser: argparse.ArgumentParser, names: Sequence[str], *, rounds: int, steps: int
) -> argparse.Namespace:
    """Returns the options, with those of two sides that train alternately; rounds, steps: the
    defaults."""
    parser.add_argument("--rounds", type=int, default=rounds, help="timed rounds")
    parser.add_argument("--steps", type=int, default=steps, help="training steps per round")
    parser.add_argument("--threads", type=int, default=2, help="threads and cores of each")
    parser.add_argument("--devices", type=int, default=1, help="CPU devices of bert_jax")
    parser.add_argument("--contender", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.contender:
        harness.at_least_one(options, "rounds", "steps", "threads", "devices")
    return options


def config_of(data: str, task: str) -> Any:
    from bert_jax.config.config_files import load

    changes = {
        "task.name": task,
        "task.data": str(Path(data).resolve() / "glue" / FOLDERS[task]),
        "task.tokenizer": str(Path(data).resolve() / VOCABULARY),
        "model.hidden_size": WIDTH,
        "model.num_hidden_layers": LAYERS,
        "model.num_attention_heads": HEADS,
        "model.intermediate_size": 4 * WIDTH,
        "model.max_position_embeddings": LONGEST,
        "phases[0].batch_size": BATCH_SIZE,
        "phases[0].seq_length": LONGEST,
        "optimizer.learning_rate": peer_torch.LEARNING_RATE,
        "compute.dtype": "float32",
    }
    return load("glue", changes)


def open_data(config: Any) -> tuple[Any, Any]:
    """Returns the configuration with the head and the steps of the task, and its examples."""
    from bert_jax.finetune.task_data import open_task
    from bert_jax.workdir.layout import Workdir

    data = open_task(config, Workdir.open("/nowhere"))
    return data.configured(config), data


def prepare(options: argparse.Namespace, task: str, folder: Path) -> None:
    """Writes the configuration, and for transformers the tokens and the initial weights."""
    import jax

    from bert_jax.convert.hf_config import to_config_json
    from bert_jax.convert.weights import to_transformers
    from bert_jax.objectives.known_objectives import learned_by
    from bert_jax.objectives.pretraining_model import init_params

    config, data = open_data(config_of(options.data, task))
    encoded, labels = data.train.prepared.encoded, np.array(data.train.labels)
    np.savez(
        folder / "examples.npz",
        ids=encoded.ids,
        types=encoded.types,
        starts=encoded.starts,
        labels=labels,
    )
    key = jax.random.key(config.seed)
    params = init_params(config.model, config.compute, learned_by(config), key)
    np.savez(folder / "parameters.npz", **to_transformers(params, config.model))
    pad = data.tokenizer.special.pad
    description = to_config_json(config.model, pad_token_id=pad, heads=params)
    (folder / "config.json").write_text(json.dumps(description))
    (folder / "task.json").write_text(json.dumps({"data": options.data, "task": task}))
    lengths = encoded.lengths
    print(
        f"\n{task}, {len(lengths):,} examples of {lengths.mean():.1f} tokens (95th percentile "
        f"{np.percentile(lengths, 95):.0f}); {LAYERS} layers of {WIDTH}",
        flush=True,
    )


def answer(options: argparse.Namespace) -> None:
    """Runs a contender in its process; n steps are answered with their CPU seconds and mean loss,
    `COUNTS` with examples, positions and tokens so far."""
    talk = harness.talk_apart()
    counts = np.zeros(3, np.int64)
    if options.contender == "bert_jax":
        step = our_step(options.folder, options.devices, counts)
    else:
        step = torch_step(options.folder, options.threads, counts)

    harness.answer(talk, taking(step), {COUNTS: counts.tolist})


def taking(step: Step) -> harness.Take:
    """Returns what takes n steps and answers their CPU seconds and mean loss."""

    def take(number: int) -> list[float]:
        start = time.process_time()
        losses = [step() for _ in range(number)]
        return [time.process_time() - start, statistics.mean(losses)]

    return take


def our_step(folder: Path, devices: int, counts: np.ndarray) -> Step:
    """Returns the step of `bert-jax finetune`, compiled once for all batches."""
    config = config_of(**json.loads((folder / "task.json").read_text()))

    def count(batch: dict[str, Any]) -> None:
        examples = np.asarray(batch["example_ids"])
        counts[:] += int(batch["label_weights"].sum()), examples.size, (examples > 0).sum()

    return run_step(config, devices, count)


def run_step(config: Any, devices: int, count: Callable[[dict[str, Any]], None]) -> Step:
    """Returns the step of a run on a task, on CPU devices; count: is given every batch."""
    import jax

    from bert_jax.data_pipeline.batch import prefetch
    from bert_jax.finetune.task_evaluation import batch_on_devices
    from bert_jax.parallel.mesh import make_mesh
    from bert_jax.runtime import cpu
    from bert_jax.training.step import make_step_functions

    cpu.use_cpu_devices(devices)
    cpu.keep_memory()
    config, data = open_data(config)
    mesh = make_mesh(config.mesh)
    jax.set_mesh(mesh)
    found = data.phase(config, config.phases[0], mesh)
    program = make_step_functions(config, mesh, found.held_out.corpus)
    train, state = program.compile_train(found.train.batch(0, rows=[]), found.shape), program.init()
    made = prefetch(lambda step: batch_on_devices(found.train, program, step), 0, MANY)

    def step() -> float:
        nonlocal state
        _, batch = next(made)
        count(batch)
        state, metrics = train(state, batch)
        return float(jax.block_until_ready((state, metrics))[1]["loss"])

    return step


def torch_step(folder: Path, threads: int, counts: np.ndarray) -> Step:
    import torch
    import transformers

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    settings = transformers.BertConfig(**json.loads((folder / "config.json").read_text()))
    model = transformers.BertForSequenceClassification(settings)
    with np.load(folder / "parameters.npz") as arrays:
        model.load_state_dict({name: torch.from_numpy(values) for name, values in arrays.items()})
    model.train()
    optimizer, batches = peer_torch.make_optimizer(model), padded_batches(folder, settings)

    def step() -> float:
        batch = next(batches)
        mask = batch["attention_mask"]
        counts[:] += len(mask), mask.numel(), int(mask.sum())
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), peer_torch.CLIP_NORM)
        optimizer.step()
        return loss.item()

    return step


def padded_batches(folder: Path, settings: Any) -> Iterator[dict[str, Any]]:
    """Yields batches of examples in any order, each padded to its longest."""
    import torch

    with np.load(folder / "examples.npz") as arrays:
        ids, types, starts, labels = (arrays[n] for n in ("ids", "types", "starts", "labels"))
    rng, pad = np.random.default_rng(0), settings.pad_token_id
    while True:
        order = rng.permutation(len(labels))
        for first in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
            chosen = order[first : first + BATCH_SIZE]
            spans = [slice(*starts[example : example + 2]) for example in chosen]
            width = max(span.stop - span.start for span in spans)
            shape = len(spans), width
            rows = {"input_ids": np.full(shape, pad, np.int64)}
            for name in ("token_type_ids", "attention_mask"):
                rows[name] = np.zeros(shape, np.int64)
            for line, span in enumerate(spans):
                here = np.s_[line, : span.stop - span.start]
                rows["input_ids"][here] = ids[span]
                rows["token_type_ids"][here] = types[span]
                rows["attention_mask"][here] = 1
            yield {k: torch.from_numpy(v) for k, v in (rows | {"labels": labels[chosen]}).items()}


@contextlib.contextmanager
def raced(
    script: str, names: Sequence[str], options: argparse.Namespace, folder: Path, *, warm_up: int
) -> Iterator[tuple[dict[str, harness.Contender], dict[str, list[Any]]]]:
    """Yields the sides after their rounds, and what `harness.rounds` found; warm_up: steps before,
    which compile and fill caches."""
    own = [script, f"--folder={folder}", f"--threads={options.threads}"]
    own.append(f"--devices={options.devices}")
    commands = {name: [*own, f"--contender={name}"] for name in names}
    threads = options.threads
    with harness.contenders(commands, OMP_NUM_THREADS=threads, PJRT_NPROC=threads) as sides:
        for side in sides.values():
            side.steps(warm_up)
        steps = {name: functools.partial(side.steps, options.steps) for name, side in sides.items()}
        yield sides, harness.rounds(steps, options.rounds)


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Prints the speed of each side and the ratios of the two."""
    with raced(__file__, NAMES, options, folder, warm_up=2) as (sides, found):
        counts = {name: side.ask(COUNTS) for name, side in sides.items()}
    times = harness.wall_and_cpu(found)
    harness.record(counts=counts, rounds=found)
    print(
        f"medians of {options.rounds} rounds of {options.steps} steps; of the ratios in each "
        "round, too"
    )
    for name in NAMES:
        wall, cpu = (seconds / options.steps for seconds in times[name])
        loss = statistics.mean(loss for _, (_, loss) in found[name])
        examples, positions, tokens = counts[name]
        print(
            f"  {name:14} {BATCH_SIZE / wall:6.1f} examples/s, {cpu / BATCH_SIZE:.4f} CPU s an "
            f"example, {positions / examples:.1f} positions an example, {tokens / positions:.1%} "
            f"of them real; loss {loss:.3f}"
        )
    wall, cpu = times["ratio"]
    of_positions = np.divide(*(counts[name][1] / counts[name][0] for name in NAMES))
    print(
        f"  bert_jax is {wall:.2f} times as fast in examples/s, and {cpu:.2f} times by CPU "
        f"seconds; per position {wall * of_positions:.2f} and {cpu * of_positions:.2f} times",
        flush=True,
    )


if __name__ == "__main__":
    main()
