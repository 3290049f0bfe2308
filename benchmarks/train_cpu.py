"""Training speed on a CPU, beside transformers' PyTorch BertForPreTraining on the same rows.

    python benchmarks/train_cpu.py                          # the documentation of this Python
    python benchmarks/train_cpu.py --store=/path/to/store   # a store that `data build` made
    python benchmarks/train_cpu.py --model=base

Needs the [torch] extra. Three contenders, each a process of its own with two threads, all starting
from the same parameters: transformers as it is (labels at every position, -100 where nothing is
masked), the same with its head at the masked positions only, and bert_jax on two CPU devices.
float32, dropout on, AdamW. They take turns and wait in between.
"""

import argparse
import contextlib
import dataclasses
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import peer_torch
import turns
from turns import Batch

THREADS = 2
BATCHES = 24  # different batches; then the first again
WARM_UP = 4  # steps before anything is timed; their losses are compared
VOCABULARY = 8192  # of the store that is built where none is given
NAMES = {
    "transformers": "transformers, as it is",
    "transformers_masked": "transformers, head at masked positions",
    "bert_jax": "bert_jax",
}
MODELS = {"small": "wiki_books_small", "base": "base"}
BATCH_SIZE = {"small": 32, "base": 8}
SEQ_LENGTH, SLOTS = 128, 20

Step = Callable[[Batch], float]  # trains on a batch, gives its loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--store", type=Path, help="an existing token store")
    parser.add_argument("--rounds", type=int, default=9, help="timed turns of each contender")
    parser.add_argument("--steps", type=int, default=4, help="training steps in a turn")
    parser.add_argument("--contender", choices=NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        answer(options.contender, options.model, options.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        batches = prepare(options.model, options.store, Path(folder))
        compare(options, Path(folder), batches)


def config_of(model: str) -> Any:
    """The shipped config with what all share: float32, dropout, AdamW at a constant rate."""
    from bert_jax.config_file import load

    config = peer_torch.same_recipe(load(MODELS[model]))
    return dataclasses.replace(
        config,
        model=dataclasses.replace(
            config.model, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1
        ),
        phases=(
            dataclasses.replace(
                config.phases[0],
                batch_size=BATCH_SIZE[model],
                seq_length=SEQ_LENGTH,
                max_predictions=SLOTS,
            ),
        ),
        compute=dataclasses.replace(config.compute, dtype="float32", unroll_layers=0),
    )


def prepare(model: str, path: Path | None, folder: Path) -> list[Batch]:
    """Writes the batches and the parameters that all contenders begin with."""
    from bert_jax.batches import make_batches
    from data_pipeline.build import build_store, train_tokenizer
    from data_pipeline.sources import parse_source
    from data_pipeline.store import open_store

    os.environ["BERT_JAX_CACHE"] = str(folder / "plans")
    config = config_of(model)
    if path is None:
        source, path = parse_source("python"), folder / "store"
        build_store([source], train_tokenizer([source], VOCABULARY), path, progress=False)
    store = open_store(path)
    (folder / "store.txt").write_text(str(path.resolve()))
    batches = make_batches(config, store, store.train, config.phases[0])
    made = [batches.batch(step) for step in range(BATCHES)]
    turns.write_batches(folder / "batches.npz", made)
    peer_torch.write_start(config, store.special.pad, folder)
    return made


def answer(contender: str, model: str, folder: Path) -> None:
    """A contender's process."""
    talk = turns.talk_apart()
    batches, done = turns.read_batches(folder / "batches.npz"), 0
    with contender_step(contender, model, folder) as step:

        def take(count: int) -> turns.Losses:
            nonlocal done
            losses = []
            for _ in range(count):
                losses.append(step(batches[done % BATCHES]))
                done += 1
            return losses

        turns.answer(talk, take)


@contextlib.contextmanager
def contender_step(contender: str, model: str, folder: Path) -> Iterator[Step]:
    if contender == "bert_jax":
        with our_step(model, folder) as step:
            yield step
    else:
        yield torch_step(folder, masked_only=contender == "transformers_masked")


@contextlib.contextmanager
def our_step(model: str, folder: Path) -> Iterator[Step]:
    import jax

    from bert_jax import sharding
    from bert_jax.objectives import Corpus
    from bert_jax.step import make_program
    from data_pipeline.store import open_store

    sharding.use_cpu_devices(THREADS)
    config = config_of(model)
    mesh = sharding.make_mesh(config.mesh)
    rows = config.phases[0].batch_size
    with jax.set_mesh(mesh):
        store = open_store(Path((folder / "store.txt").read_text()), verify=False)
        program = make_program(config, mesh, Corpus.of(store))
        state = program.init()

        def step(batch: Batch) -> float:
            nonlocal state
            placed = sharding.global_batch(
                lambda wanted: {k: v[wanted] for k, v in batch.items()}, program.rows, rows
            )
            state, metrics = program.train(state, placed)
            return float(jax.block_until_ready((state, metrics))[1]["loss"])

        yield step


def torch_step(folder: Path, *, masked_only: bool) -> Step:
    import torch

    torch.set_num_threads(THREADS)
    model = peer_torch.load_model(folder)
    optimizer = peer_torch.make_optimizer(model)

    def step(batch: Batch) -> float:
        optimizer.zero_grad()
        tensors = {k: torch.from_numpy(v) for k, v in batch.items()}
        if masked_only:
            loss = peer_torch.masked_loss(model, tensors)
        else:
            loss = model(**peer_torch.inputs_of(tensors)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), peer_torch.CLIP_NORM)
        optimizer.step()
        return loss.item()

    return step


def compare(options: argparse.Namespace, folder: Path, batches: list[Batch]) -> None:
    real = [int((batch["example_ids"] > 0).sum()) for batch in batches]
    environment = {"OMP_NUM_THREADS": str(THREADS)}
    with contextlib.ExitStack() as stack:
        contenders = {}
        for name in NAMES:
            command = [__file__, f"--contender={name}", f"--model={options.model}"]
            contenders[name] = turns.Contender([*command, f"--folder={folder}"], environment)
            stack.callback(contenders[name].close)
        losses = {name: each.steps(WARM_UP)[1] for name, each in contenders.items()}
        rates: dict[str, list[float]] = {name: [] for name in NAMES}
        for turn in range(options.rounds):
            at = WARM_UP + turn * options.steps
            tokens = sum(real[i % BATCHES] for i in range(at, at + options.steps))
            for name, contender in contenders.items():
                rates[name].append(tokens / contender.steps(options.steps)[0])
    print_table(options, rates, losses, 1 - sum(real) / (len(real) * batches[0]["input_ids"].size))


def print_table(
    options: argparse.Namespace,
    rates: dict[str, list[float]],
    losses: dict[str, list[float]],
    padding: float,
) -> None:
    libraries = ", ".join(f"{name} {version(name)}" for name in ("jax", "torch", "transformers"))
    print(
        f"{turns.machine()}; {libraries}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    print(
        f"{MODELS[options.model]}, {BATCH_SIZE[options.model]} rows of {SEQ_LENGTH} tokens, "
        f"{padding:.0%} of them padding; {options.rounds} interleaved rounds of {options.steps} "
        "steps; real tokens/s\n"
    )
    print(f"{'':<40}{'median':>8}{'min':>8}{'max':>8}   losses of the first steps")
    for name, got in rates.items():
        first = " ".join(f"{loss:.3f}" for loss in losses[name])
        middle = statistics.median(got)
        print(f"{NAMES[name]:<40}{middle:8,.0f}{min(got):8,.0f}{max(got):8,.0f}   {first}")
    print()
    for other in list(NAMES)[:2]:
        pairs = zip(rates["bert_jax"], rates[other], strict=True)
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        print(f"bert_jax is {ratio:.2f} times as fast as {NAMES[other]} (median over rounds)")


if __name__ == "__main__":
    main()
