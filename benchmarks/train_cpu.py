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
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

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
LEARNING_RATE, WEIGHT_DECAY, EPS, CLIP_NORM = 1e-4, 0.01, 1e-8, 1.0

Batch = dict[str, np.ndarray]
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

    config = load(MODELS[model])
    return dataclasses.replace(
        config,
        model=dataclasses.replace(
            config.model,
            pad_vocab_to_multiple_of=1,
            hidden_dropout_prob=0.1,
            attention_probs_dropout_prob=0.1,
        ),
        phases=(
            dataclasses.replace(
                config.phases[0],
                steps=10**9,  # so long that the decay does not show
                batch_size=BATCH_SIZE[model],
                seq_length=SEQ_LENGTH,
                max_predictions=SLOTS,
            ),
        ),
        optimizer=dataclasses.replace(
            config.optimizer,
            name="adamw",
            learning_rate=LEARNING_RATE,
            warmup_steps=0,
            weight_decay=WEIGHT_DECAY,
            eps=EPS,
            clip_norm=CLIP_NORM,
        ),
        compute=dataclasses.replace(config.compute, dtype="float32", unroll_layers=0),
    )


def prepare(model: str, path: Path | None, folder: Path) -> list[Batch]:
    """Writes the batches and the parameters that all contenders begin with."""
    import jax

    from bert_jax.batches import make_batches
    from bert_jax.convert.bert_config import to_config_json
    from bert_jax.convert.names import to_transformers
    from bert_jax.heads import init_params
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
    arrays = {f"{i} {name}": values for i, b in enumerate(made) for name, values in b.items()}
    np.savez(folder / "batches.npz", **arrays)
    key = jax.random.key(config.seed)
    params = init_params(config.model, config.compute, config.objectives, key)
    np.savez(folder / "parameters.npz", **to_transformers(params, config.model))
    description = to_config_json(config.model, pad_token_id=store.special.pad)
    (folder / "config.json").write_text(json.dumps(description))
    return made


def read_batches(folder: Path) -> list[Batch]:
    batches: list[Batch] = [{} for _ in range(BATCHES)]
    with np.load(folder / "batches.npz") as arrays:
        for key, values in arrays.items():
            number, _, name = key.partition(" ")
            batches[int(number)][name] = values
    return batches


def answer(contender: str, model: str, folder: Path) -> None:
    """A contender's process: for every number read, so many steps; answers with JSON lines."""
    talk = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever libraries print goes elsewhere
    batches = read_batches(folder)
    with contender_step(contender, model, folder) as step:
        done = 0
        for line in sys.stdin:
            losses, start = [], time.perf_counter()
            for _ in range(int(line)):
                losses.append(step(batches[done % BATCHES]))
                done += 1
            talk.write(json.dumps([time.perf_counter() - start, losses]) + "\n")


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
    import transformers

    torch.set_num_threads(THREADS)
    description = json.loads((folder / "config.json").read_text())
    model = transformers.BertForPreTraining(transformers.BertConfig(**description))
    with np.load(folder / "parameters.npz") as arrays:
        tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
    wrong = model.load_state_dict(tensors, strict=False)
    tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    if set(wrong.missing_keys) != tied or wrong.unexpected_keys:
        raise ValueError(f"the parameters do not fit: {wrong}")
    model.tie_weights()
    model.train()
    plain = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    others = [p for p in model.parameters() if not any(p is q for q in plain)]
    optimizer = torch.optim.AdamW(
        [{"params": others}, {"params": plain, "weight_decay": 0.0}],
        lr=LEARNING_RATE,
        eps=EPS,
        weight_decay=WEIGHT_DECAY,
        fused=True,  # as transformers' Trainer has it
    )
    loss_of = masked_loss if masked_only else whole_loss

    def step(batch: Batch) -> float:
        optimizer.zero_grad()
        loss = loss_of(model, {k: torch.from_numpy(v) for k, v in batch.items()})
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        return loss.item()

    return step


def whole_loss(model: Any, batch: dict[str, Any]) -> Any:
    """As the documentation of BertForPreTraining has it."""
    import torch

    labels = torch.full(batch["input_ids"].shape, -100)
    row, slot = batch["masked_weights"].nonzero(as_tuple=True)
    labels[row, batch["masked_positions"][row, slot]] = batch["masked_labels"][row, slot].long()
    return model(
        input_ids=batch["input_ids"],
        token_type_ids=batch["token_type_ids"],
        attention_mask=(batch["example_ids"] > 0).long(),
        labels=labels,
        next_sentence_label=batch["pair_labels"][:, 0].long(),
    ).loss


def masked_loss(model: Any, batch: dict[str, Any]) -> Any:
    """The same loss; the masked positions are taken before the head, not after."""
    import torch

    hidden, pooled = model.bert(
        input_ids=batch["input_ids"],
        token_type_ids=batch["token_type_ids"],
        attention_mask=(batch["example_ids"] > 0).long(),
    )[:2]
    row, slot = batch["masked_weights"].nonzero(as_tuple=True)
    words, pairs = model.cls(hidden[row, batch["masked_positions"][row, slot].long()], pooled)
    cross_entropy = torch.nn.functional.cross_entropy
    return cross_entropy(words, batch["masked_labels"][row, slot].long()) + cross_entropy(
        pairs, batch["pair_labels"][:, 0].long()
    )


class Contender:
    """One of the processes; waits, without using the processor, until it is asked for steps."""

    def __init__(self, name: str, model: str, folder: Path):
        command = [sys.executable, __file__, f"--contender={name}", f"--model={model}"]
        self._process = subprocess.Popen(
            [*command, f"--folder={folder}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(THREADS)},
        )

    def steps(self, count: int) -> tuple[float, list[float]]:
        """Seconds that so many steps took, and their losses."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        seconds, losses = json.loads(self._process.stdout.readline())
        return seconds, losses

    def close(self) -> None:
        self._process.communicate()


def compare(options: argparse.Namespace, folder: Path, batches: list[Batch]) -> None:
    real = [int((batch["example_ids"] > 0).sum()) for batch in batches]
    with contextlib.ExitStack() as stack:
        contenders = {}
        for name in NAMES:
            contenders[name] = Contender(name, options.model, folder)
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
    print(f"{machine()}; {libraries}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
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


def machine() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
