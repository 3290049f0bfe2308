"""Training speed on a CPU, beside transformers' PyTorch BertForPreTraining on the same rows.

    python benchmarks/train_cpu.py                          # the documentation of this Python
    python benchmarks/train_cpu.py --store=/path/to/store   # a store that `data build` made
    python benchmarks/train_cpu.py --model=base             # BERT-base alone

Needs the [torch] extra. Three contenders, each a process of its own on two cores, all starting from
the same parameters: transformers as it is (eager, scaled_dot_product_attention; labels at every
position, -100 where nothing is masked), the same with its head at the masked positions only, and
bert_jax. float32, dropout on, AdamW, a vocabulary of 30,522. They take turns and wait in between.
In every round PyTorch and JAX also multiply two matrices of 2048 x 2048, which says what the cores
had to give just then; a model's share of it is what its own matrix products take of that rate.
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
VOCABULARY = 8192  # of the store that is built where none is given; the models have 30,522
PRODUCT = 2048  # side of the matrices multiplied to see what the cores give
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
    parser.add_argument("--model", choices=MODELS, help="one alone (default: one after the other)")
    parser.add_argument("--store", type=Path, help="an existing token store")
    parser.add_argument("--rounds", type=int, default=9, help="timed turns of each contender")
    parser.add_argument("--steps", type=int, default=4, help="training steps in a turn")
    parser.add_argument("--contender", choices=NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        answer(options.contender, options.model, options.folder)
        return
    use_two_cores()
    libraries = ", ".join(f"{name} {version(name)}" for name in ("jax", "torch", "transformers"))
    print(f"{machine()}; {libraries}")
    for model in [options.model] if options.model else MODELS:
        with tempfile.TemporaryDirectory() as folder:
            batches = prepare(model, options.store, Path(folder))
            compare(options, model, Path(folder), batches)


def use_two_cores() -> None:
    """So many threads of a process more than cores would only wait for one another."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])


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
    """A contender's process: for every number read, so many steps, for 0 a product of matrices;
    answers with JSON lines of seconds and losses."""
    talk = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever libraries print goes elsewhere
    batches = read_batches(folder)
    with contender_step(contender, model, folder) as step:
        done = 0
        multiply = our_product() if contender == "bert_jax" else torch_product()
        for line in sys.stdin:
            losses, start = [], time.perf_counter()
            if not int(line):
                multiply()
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
    sharding.keep_memory()
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


def our_product() -> Callable[[], None]:
    import jax

    a = jax.random.normal(jax.random.key(0), (PRODUCT, PRODUCT))
    product = jax.jit(lambda a: a @ a)
    product(a).block_until_ready()
    return lambda: product(a).block_until_ready()


def torch_product() -> Callable[[], None]:
    import torch

    a = torch.randn(PRODUCT, PRODUCT)
    a @ a
    return lambda: a @ a


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


def flops_of(contender: str, model: str) -> float:
    """Floating-point operations of the matrix products of a step, padding included."""
    from bert_jax.records.metrics import step_flops

    config = config_of(model)
    (phase,), H = config.phases, config.model.hidden_size
    flops = step_flops(config, phase)
    if contender == "transformers":  # its head is at the other positions as well
        others = phase.batch_size * (phase.row_tokens - phase.row_predictions)
        flops += 6.0 * others * (H * H + H * config.model.vocab_size)
    return flops


def compare(options: argparse.Namespace, model: str, folder: Path, batches: list[Batch]) -> None:
    """Prints a table for one model."""
    tokens = batches[0]["input_ids"].size
    real = sum(int((batch["example_ids"] > 0).sum()) for batch in batches) / len(batches)
    with contextlib.ExitStack() as stack:
        contenders = {}
        for name in NAMES:
            contenders[name] = Contender(name, model, folder)
            stack.callback(contenders[name].close)
        losses = {name: each.steps(WARM_UP)[1] for name, each in contenders.items()}
        rates: dict[str, list[float]] = {name: [] for name in NAMES}
        products: dict[str, list[float]] = {"transformers": [], "bert_jax": []}
        for _ in range(options.rounds):
            for name, contender in contenders.items():
                if name in products:
                    products[name].append(2 * PRODUCT**3 / contender.steps(0)[0] / 1e9)
                seconds = contender.steps(options.steps)[0]
                rates[name].append(options.steps * tokens / seconds)
    print(
        f"\n{MODELS[model]}, {BATCH_SIZE[model]} rows of {SEQ_LENGTH} tokens, {real / tokens:.0%} "
        f"of them real; {options.rounds} interleaved rounds of {options.steps} steps; load "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    peaks = {name: statistics.median(got) for name, got in products.items()}
    print(
        f"a product of {PRODUCT} x {PRODUCT} matrices: PyTorch {peaks['transformers']:.0f}, JAX "
        f"{peaks['bert_jax']:.0f} GFLOP/s (medians); shares below are of the faster\n"
    )
    print_table(model, rates, losses, tokens, max(peaks.values()))


def print_table(
    model: str,
    rates: dict[str, list[float]],
    losses: dict[str, list[float]],
    tokens: int,
    peak: float,
) -> None:
    """rates: tokens/s, padding included, by round. tokens: of a step. peak: GFLOP/s."""
    heads = f"{'tokens/s':>9}{'min':>7}{'max':>7}{'GFLOP/s':>9}{'share':>7}"
    print(f"{'':<40}{heads}   losses of the first steps")
    for name, got in rates.items():
        first = " ".join(f"{loss:.3f}" for loss in losses[name])
        middle = statistics.median(got)
        speed = middle / tokens * flops_of(name, model) / 1e9
        print(
            f"{NAMES[name]:<40}{middle:9,.0f}{min(got):7,.0f}{max(got):7,.0f}{speed:9.0f}"
            f"{speed / peak:7.0%}   {first}"
        )
    print()
    for other in list(NAMES)[:2]:
        pairs = zip(rates["bert_jax"], rates[other], strict=True)
        ratios = [ours / theirs for ours, theirs in pairs]
        print(
            f"bert_jax is {statistics.median(ratios):.2f} times as fast as {NAMES[other]} "
            f"({min(ratios):.2f} to {max(ratios):.2f} over rounds)"
        )


def machine() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
