"""Training speed on a CPU, compared with transformers' PyTorch models on the same rows.

    python benchmarks/train_cpu.py                          # the documentation of this Python
    python benchmarks/train_cpu.py --store=/path/to/store   # a store that `data build` made
    python benchmarks/train_cpu.py --model=base             # BERT-base only
    python benchmarks/train_cpu.py --model=ettin_17m        # ModernBERT's layers, packed rows

Needs the [torch] extra. Three contenders, each in its own process on two cores, start from the same
parameters: unmodified transformers (eager, scaled_dot_product_attention; labels at every position,
-100 where no token is masked), the same with its head at the masked positions only (ModernBERT's
own `sparse_prediction`), and bert_jax. All use float32, AdamW and the vocabulary size of the
config; BERT has dropout. Of packed rows, transformers gets positions and masks by example. They run
alternately and idle in between. In every round PyTorch and JAX also multiply two 2048 x 2048
matrices, which measures the current speed of the cores; a model's share is its matrix-product
FLOP/s over that rate.
"""

import argparse
import contextlib
import dataclasses
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import peer_torch
from harness import Batch

THREADS = 2
BATCHES = 24  # distinct batches, then repeated
WARM_UP = 4  # untimed steps; their losses are compared
PRODUCT = 2048  # size of the matrices whose product measures the cores
PRODUCT_WORD = "product"  # the request for it
NAMES = {
    "transformers": "transformers, unmodified",
    "transformers_masked": "transformers, head at masked positions",
    "bert_jax": "bert_jax",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A shipped config and its batch shape; slots: masked positions of a row."""

    config: str
    batch_size: int
    seq_length: int
    slots: int
    dropout: float


CASES = {
    "small": Case("wiki_books_small", 32, 128, 20, 0.1),
    "base": Case("base", 8, 128, 20, 0.1),
    "ettin_17m": Case("ettin_17m", 8, 512, 154, 0.0),
}

Step = Callable[[Batch], float]  # trains on a batch, returns its loss


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--model", choices=CASES, help="only one model (default: all)")
    parser.add_argument("--store", type=Path, help="an existing token store")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds")
    parser.add_argument("--steps", type=int, default=4, help="training steps per round")
    parser.add_argument("--contender", choices=NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        answer(options.contender, options.model, options.folder)
        return
    harness.use_cores(THREADS)  # more threads than cores would only contend
    print(harness.machine("jax", "torch", "transformers"))
    for model in [options.model] if options.model else CASES:
        with tempfile.TemporaryDirectory() as folder:
            batches = prepare(model, options.store, Path(folder))
            compare(options, model, Path(folder), batches)


def config_of(model: str) -> Any:
    """Returns the shipped config with the shared settings: float32, AdamW, one phase."""
    from bert_jax.config.config_files import load

    case = CASES[model]
    config = peer_torch.same_recipe(load(case.config))
    phase = dataclasses.replace(
        config.phases[0],
        batch_size=case.batch_size,
        seq_length=case.seq_length,
        max_predictions=case.slots,
        micro_batches=1,
    )
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(
            config.model,
            hidden_dropout_prob=case.dropout,
            attention_probs_dropout_prob=case.dropout,
        ),
        phases=(phase,),
        compute=dataclasses.replace(config.compute, dtype="float32", unroll_layers=0),
    )
    return config.with_model_of(phase)


def prepare(model: str, path: Path | None, folder: Path) -> list[Batch]:
    """Writes the batches and the initial parameters of all contenders; returns the batches."""
    from bert_jax.data_pipeline.store.store import open_store
    from bert_jax.training.batches import phase_batches

    os.environ["BERT_JAX_CACHE"] = str(folder / "plans")
    config = config_of(model)
    path = path or harness.build_store(folder)
    store = open_store(path)
    (folder / "store.txt").write_text(str(path.resolve()))
    batches = phase_batches(config, store, store.train, config.phases[0])
    made = [batches.batch(step) for step in range(BATCHES)]
    harness.write_batches(folder / "batches.npz", made)
    peer_torch.write_start(config, store.special.pad, folder)
    return made


def answer(contender: str, model: str, folder: Path) -> None:
    """Runs a contender in its process."""
    talk = harness.talk_apart()
    batches, done = harness.read_batches(folder / "batches.npz"), 0
    with contender_step(contender, model, folder) as step:

        def take(count: int) -> harness.Losses:
            nonlocal done
            losses = []
            for _ in range(count):
                losses.append(step(batches[done % BATCHES]))
                done += 1
            return losses

        multiply = our_product() if contender == "bert_jax" else torch_product()
        harness.answer(talk, take, {PRODUCT_WORD: lambda: harness.seconds(multiply)})


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

    from bert_jax.data_pipeline.store.store import open_store
    from bert_jax.objectives.corpus import Corpus
    from bert_jax.parallel.mesh import make_mesh
    from bert_jax.runtime import cpu
    from bert_jax.training.step import make_step_functions

    cpu.use_cpu_devices(1)  # with all cores
    cpu.keep_memory()
    config = config_of(model)
    mesh = make_mesh(config.mesh)
    rows = config.phases[0].batch_size
    with jax.set_mesh(mesh):
        store = open_store(Path((folder / "store.txt").read_text()), verify=False)
        program = make_step_functions(config, mesh, Corpus.of(store))
        state = program.init()

        def step(batch: Batch) -> float:
            nonlocal state
            placed = harness.place(program, batch, rows)
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

    torch.set_num_threads(THREADS)
    model = peer_torch.load_model(folder)
    optimizer = peer_torch.make_optimizer(model)

    def step(batch: Batch) -> float:
        optimizer.zero_grad()
        tensors = {k: torch.from_numpy(v) for k, v in batch.items()}
        if masked_only:
            loss = peer_torch.masked_loss(model, tensors)
        else:
            loss = model(**peer_torch.inputs_of(model, tensors)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), peer_torch.CLIP_NORM)
        optimizer.step()
        return loss.item()

    return step


def flops_of(contender: str, model: str) -> float:
    """Returns the FLOPs of a step's matrix products, padding included."""
    from bert_jax.metrics.flops import step_flops

    config = config_of(model)
    (phase,), H = config.phases, config.model.hidden_size
    flops = step_flops(config, phase)
    if contender == "transformers":  # its head also computes the other positions
        others = phase.batch_size * (phase.row_tokens - phase.row_predictions)
        flops += 6.0 * others * (H * H + H * config.model.vocab_size)
    return flops


def compare(options: argparse.Namespace, model: str, folder: Path, batches: list[Batch]) -> None:
    """Measures the contenders and prints a table for one model."""
    case, tokens = CASES[model], batches[0]["input_ids"].size
    real = sum(int((batch["example_ids"] > 0).sum()) for batch in batches) / len(batches)
    own = [__file__, f"--model={model}", f"--folder={folder}"]
    commands = {name: [*own, f"--contender={name}"] for name in NAMES}
    with harness.contenders(commands, OMP_NUM_THREADS=THREADS) as contenders:
        losses = {name: each.steps(WARM_UP)[1] for name, each in contenders.items()}
        rates: dict[str, list[float]] = {name: [] for name in NAMES}
        products: dict[str, list[float]] = {"transformers": [], "bert_jax": []}
        for _ in range(options.rounds):
            for name, contender in contenders.items():
                if name in products:
                    products[name].append(2 * PRODUCT**3 / contender.ask(PRODUCT_WORD) / 1e9)
                seconds = contender.steps(options.steps)[0]
                rates[name].append(options.steps * tokens / seconds)
    print(
        f"\n{case.config}, {case.batch_size} rows of {case.seq_length} tokens, "
        f"{real / tokens:.0%} of them real; "
        f"{options.rounds} interleaved rounds of {options.steps} steps"
    )
    peaks = {name: statistics.median(got) for name, got in products.items()}
    print(
        f"product of {PRODUCT} x {PRODUCT} matrices: PyTorch {peaks['transformers']:.0f}, JAX "
        f"{peaks['bert_jax']:.0f} GFLOP/s (medians); shares are of the faster\n"
    )
    harness.record(model=model, rates=rates, losses=losses, gflops=peaks)
    print_table(model, rates, losses, tokens, max(peaks.values()))


def print_table(
    model: str,
    rates: dict[str, list[float]],
    losses: dict[str, list[float]],
    tokens: int,
    peak: float,
) -> None:
    """rates: tokens/s by round, padding included. tokens: per step. peak: GFLOP/s."""
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


if __name__ == "__main__":
    main()
