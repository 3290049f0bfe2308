"""Training speed on a GPU, compared with transformers' PyTorch BertForPreTraining on the same rows.

    python benchmarks/train_gpu.py                          # on generated text
    python benchmarks/train_gpu.py --store=/path/to/store   # on a store; packed rows too
    python benchmarks/train_gpu.py --cases=base --rounds=3
    python benchmarks/train_gpu.py --dry_run                # a tiny model on the CPU

Needs the [cuda] and [torch] extras, no network. First measures a bfloat16 matrix product on the
device: its rate is the peak for all shares. Then trains BERT-base on rows of 128 and BERT-large on
rows of 512 tokens with bert_jax and with transformers (sdpa, torch.compile, bfloat16 autocast,
fused AdamW), in separate processes that alternate: once with dropout everywhere, as published, and
once without attention dropout, which allows fused attention in both. With a store, also compares
bert_jax on packed and padded rows. Lists the most memory that each side allocated, beside what the
compiler expects for bert_jax's step, and the longest kernels.

FLOPs are those of the model (matrix products, head at the masked positions only, padding included),
the same for both sides, so that shares compare like times.
"""

import argparse
import contextlib
import dataclasses
import functools
import io
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import harness
import kernel_times
import peer_torch

from bert_jax.errors import UserError

BATCHES = 8  # distinct batches, on the device before timing starts, then repeated
WARM_UP = 5  # untimed steps, which include compilation
TRACED = 3  # steps in the trace
SHOWN = 12  # kernels listed
EXAMPLES = 16  # at most, per packed row
PRODUCT, PRODUCTS = 8192, 64  # matrix size, products per round
DROPOUT = 0.1
SIDES = {"bert_jax": "bert_jax", "torch": "transformers, PyTorch"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A shipped model and its batch shape."""

    model: str
    seq_length: int
    slots: int  # masked positions per example
    batch_size: int


CASES = {"base": Case("base", 128, 20, 256), "large": Case("large", 512, 77, 32)}
DRY = {"tiny": Case("tiny", 64, 10, 8)}


@dataclasses.dataclass(frozen=True)
class Contest:
    """Contenders that run alternately; the first is the baseline."""

    title: str
    contenders: tuple[tuple[str, bool], ...]  # (side, packed)
    attention_dropout: float
    traced: bool = False


DROPPED = Contest(
    "dropout everywhere", (("bert_jax", False), ("torch", False)), DROPOUT, traced=True
)
FUSED = Contest("no attention dropout", (("bert_jax", False), ("torch", False)), 0.0, True)
PACKED = Contest(
    "no attention dropout, padded and packed rows", (("bert_jax", False), ("bert_jax", True)), 0.0
)


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--store", type=Path, help="an existing token store")
    parser.add_argument("--cases", help="some of base,large (default: both)")
    parser.add_argument("--batch_size", type=int, help="rows per batch (default: by case)")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds")
    parser.add_argument("--steps", type=int, default=10, help="training steps per round")
    parser.add_argument("--dry_run", action="store_true", help="tiny models on the CPU")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        answer(json.loads(options.contender))
        return
    harness.at_least_one(options, "rounds", "steps", "batch_size")
    with harness.errors_are_one_line():
        run(options)


def run(options: argparse.Namespace) -> None:
    """Runs all measurements and prints each result.

    Raises:
        UserError: no GPU is found.
        ChildProcessError: a bert_jax process failed.
    """
    cases = DRY if options.dry_run else CASES
    wanted = harness.some_of("cases", options.cases or ",".join(cases), cases)
    with tempfile.TemporaryDirectory() as folder:
        environment = environment_of(options.dry_run)
        device, peak = ask_peak(options, environment)
        print(f"{device}; {harness.machine('jax', 'torch', 'transformers')}")
        print(
            f"{options.rounds} interleaved rounds of {options.steps} steps, medians; "
            f"a {side_of(options.dry_run)}³ product in bfloat16: {peak / 1e12:,.1f} TFLOP/s"
        )
        path = options.store
        if path is None:
            path = harness.generate_store(Path(folder), 40 if options.dry_run else 500)
            print("text: generated; give a --store of real text to compare packed rows")
        for name in wanted:
            case = cases[name]
            if options.batch_size:
                case = dataclasses.replace(case, batch_size=options.batch_size)
            contests = [DROPPED, *([PACKED] if options.store else [])]
            if not options.dry_run:  # the CPU has no fused attention
                contests.insert(1, FUSED)
            for number, contest in enumerate(contests):
                place = Path(folder) / f"{name}{number}"
                place.mkdir()
                compete(case, contest, path, place, peak, options, environment)


def environment_of(dry_run: bool) -> dict[str, str]:
    """Two processes share the device, so neither may preallocate its memory."""
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONPATH": path}
    return {**shared, "JAX_PLATFORMS": "cpu"} if dry_run else shared


def side_of(dry_run: bool) -> int:
    return 256 if dry_run else PRODUCT


def ask_peak(options: argparse.Namespace, environment: dict[str, str]) -> tuple[str, float]:
    """Returns the kind of the device and the FLOP/s of its bfloat16 matrix product.

    Raises:
        UserError: the device is not a GPU and this is not a dry run.
    """
    job = json.dumps({"side": "peak", "product": side_of(options.dry_run)})
    with contextlib.closing(
        harness.Contender([__file__, f"--contender={job}"], environment)
    ) as one:
        platform, kind = one.ask("device")
        if platform != "gpu" and not options.dry_run:
            raise UserError(
                f"JAX finds no GPU here, its device is a {kind}; on a machine with one, "
                'pip install "bert-jax[cuda]"; --dry_run runs tiny models on the CPU'
            )
        one.steps(1)
        seconds = statistics.median(one.steps(PRODUCTS)[0] for _ in range(5))
    return kind, PRODUCTS * 2 * side_of(options.dry_run) ** 3 / seconds


def config_of(case: Case, attention_dropout: float, packed: bool) -> Any:
    """Returns the shipped config with the settings that both sides share."""
    from bert_jax.config.config_files import load

    config = peer_torch.same_recipe(load(case.model))
    return dataclasses.replace(
        config,
        model=dataclasses.replace(
            config.model,
            hidden_dropout_prob=DROPOUT,
            attention_probs_dropout_prob=attention_dropout,
            pad_vocab_to_multiple_of=128,
        ),
        data=dataclasses.replace(config.data, pairing="nsp"),
        phases=(
            dataclasses.replace(
                config.phases[0],
                batch_size=case.batch_size,
                seq_length=case.seq_length,
                max_predictions=case.slots,
                examples_per_row=EXAMPLES if packed else 1,
            ),
        ),
        compute=dataclasses.replace(config.compute, dtype="bfloat16", unroll_layers=0),
    )


@dataclasses.dataclass
class Side:
    """A running contender and its measurements."""

    name: str
    real: list[int]  # tokens other than padding, by batch
    flops: float  # per step
    process: harness.Contender
    losses: harness.Losses = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)  # by round


def compete(
    case: Case,
    contest: Contest,
    store: Path,
    folder: Path,
    peak: float,
    options: argparse.Namespace,
    environment: dict[str, str],
) -> None:
    """Runs one contest and prints its table.

    Raises:
        ChildProcessError: a bert_jax process failed. A failure of the peer is printed instead.
    """
    print(
        f"\nBERT-{case.model}, {case.batch_size} rows of {case.seq_length} tokens, {contest.title}"
    )
    with contextlib.ExitStack() as stack:
        sides: list[Side] = []
        for number, (side, packed) in enumerate(contest.contenders):
            place = folder / str(number)
            real, flops = prepare(case, contest.attention_dropout, packed, store, place)
            job = {
                "side": side,
                "case": dataclasses.asdict(case),
                "attention_dropout": contest.attention_dropout,
                "packed": packed,
                "folder": str(place),
                "store": str(store),
                "dry_run": options.dry_run,
            }
            process = harness.Contender([__file__, f"--contender={json.dumps(job)}"], environment)
            stack.callback(process.close)
            name = SIDES[side] + (", packed" if packed else "")
            one = Side(name, real, flops, process)
            try:
                one.losses = process.steps(WARM_UP)[1]
            except ChildProcessError as error:
                if side == "bert_jax":
                    raise
                print(f"{name}: not measured, {error}")
                continue
            sides.append(one)
        for _ in range(options.rounds):
            for one in sides:
                one.seconds.append(one.process.steps(options.steps)[0])
        harness.record(title=contest.title, seconds={one.name: one.seconds for one in sides})
        print_contest(sides, case, peak, options.steps)
        if not options.dry_run:  # the CPU counts none
            print_memory(sides)
        if contest.traced:
            print_kernels(sides[0].process.ask("trace"))


def prepare(
    case: Case, attention_dropout: float, packed: bool, path: Path, folder: Path
) -> tuple[list[int], float]:
    """Writes a contender's batches; returns (real tokens by batch, FLOPs per step)."""
    from bert_jax.data_pipeline.store.store import open_store
    from bert_jax.metrics.flops import step_flops
    from bert_jax.training.batches import phase_batches

    folder.mkdir()
    os.environ["BERT_JAX_CACHE"] = str(folder.parent / "plans")
    config = config_of(case, attention_dropout, packed)
    store = open_store(path, verify=False)
    batches = phase_batches(config, store, store.train, config.phases[0])
    made = [batches.batch(step) for step in range(BATCHES)]
    harness.write_batches(folder / "batches.npz", made)
    real = [int((batch["example_ids"] > 0).sum()) for batch in made]
    return real, step_flops(config, config.phases[0])


def print_contest(sides: list[Side], case: Case, peak: float, steps: int) -> None:
    print(f"{'':<28}{'real tokens/s':>15}{'positions/s':>13}", end="")
    print(f"{'TFLOP/s':>9}{'of peak':>9}{'ratio':>7}   first losses")
    first = None
    for one in sides:
        done, real, positions = WARM_UP, [], []
        for seconds in one.seconds:
            tokens = sum(one.real[i % BATCHES] for i in range(done, done + steps))
            real.append(tokens / seconds)
            positions.append(case.batch_size * case.seq_length * steps / seconds)
            done += steps
        first = first or real
        times = statistics.median(a / b for a, b in zip(real, first, strict=True))
        flops = one.flops * steps / statistics.median(one.seconds)
        losses = " ".join(f"{loss:.3f}" for loss in one.losses[:3])
        print(
            f"{one.name:<28}{statistics.median(real):>15,.0f}{statistics.median(positions):>13,.0f}"
            f"{flops / 1e12:>9.2f}{flops / peak:>9.1%}{times:>7.2f}   {losses}",
            flush=True,
        )


def print_memory(sides: list[Side]) -> None:
    """Prints the peaks of both allocators, which exclude the libraries' own memory."""
    for one in sides:
        memory = one.process.ask("memory")
        expected = memory.get("compiled")
        said = f"; the compiler expects {expected / 2**30:.2f}" if expected else ""
        print(f"memory of {one.name}: {memory['peak'] / 2**30:.2f} GiB at most{said}")


def print_kernels(found: list) -> None:
    total = sum(microseconds for _, microseconds, _ in found)
    if not found:
        print("the trace has no kernels")
        return
    print(f"kernels of bert_jax, {total / TRACED / 1e3:.2f} ms per step:")
    for name, microseconds, calls in found[:SHOWN]:
        print(f"  {microseconds / total:6.1%}  {calls / TRACED:>7.1f} calls  {name}")


def answer(job: dict[str, Any]) -> None:
    """Runs a contender in its process."""
    talk = harness.talk_apart()
    if job["side"] == "peak":
        take, device = product(job["product"])
        harness.answer(talk, take, {"device": lambda: device})
        return
    case = Case(**job["case"])
    batches = harness.read_batches(Path(job["folder"]) / "batches.npz")
    config = config_of(case, job["attention_dropout"], job["packed"])
    if job["side"] == "torch":
        torch_contender(talk, config, batches, Path(job["folder"]), job["dry_run"])
        return
    our_contender(talk, config, batches, Path(job["store"]))


def product(side: int) -> tuple[harness.Take, tuple[str, str]]:
    """Returns a function that runs bfloat16 matrix products, and the device's (platform, kind)."""
    import jax
    import jax.numpy as jnp

    device = jax.devices()[0]
    multiply = jax.jit(lambda x, y: (x @ y) * (side**-0.5))

    @functools.cache  # a request for the device alone need not wait for it
    def matrix() -> jax.Array:
        return jax.random.normal(jax.random.key(0), (side, side), jnp.bfloat16)

    def take(count: int) -> harness.Losses:
        x = matrix()
        for _ in range(count):
            x = multiply(x, matrix())
        jax.block_until_ready(x)
        return []

    return take, (device.platform, device.device_kind)


def our_contender(talk: Any, config: Any, batches: list[harness.Batch], path: Path) -> None:
    import jax

    from bert_jax.data_pipeline.store.store import open_store
    from bert_jax.training.profiling import Profiler, Steps
    from bert_jax.workdir.layout import Workdir

    store = open_store(path, verify=False)
    trainer = harness.Trainer(config, store, batches, jax.devices()[:1])

    def trace() -> list:
        with tempfile.TemporaryDirectory() as folder:
            traces = Workdir.open(folder).profile
            profiler = Profiler(traces, Steps(0, TRACED))
            with contextlib.redirect_stdout(io.StringIO()):  # its path is not of interest
                for number in range(TRACED):
                    profiler.run(number, trainer.start_step)
                profiler.close(TRACED)
            if not traces.exists():
                return []
            return [dataclasses.astuple(kernel) for kernel in kernel_times.kernels(Path(folder))]

    def memory() -> dict[str, int]:
        stats = jax.devices()[0].memory_stats() or {}
        found = trainer.step.memory_analysis()
        needed = found.argument_size_in_bytes + found.temp_size_in_bytes
        new = found.output_size_in_bytes - found.alias_size_in_bytes
        return {"peak": stats.get("peak_bytes_in_use", 0), "compiled": needed + new}

    harness.answer(talk, trainer.train, {"trace": trace, "memory": memory})


def torch_contender(
    talk: Any, config: Any, batches: list[harness.Batch], folder: Path, dry_run: bool
) -> None:
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        sys.exit(f"{error}; the [torch] extra installs it")
    if not (dry_run or torch.cuda.is_available()):
        sys.exit(f"PyTorch {torch.__version__} sees no GPU")
    device = torch.device("cpu" if dry_run else "cuda")
    peer_torch.write_start(config, 0, folder)
    model = peer_torch.load_model(folder).to(device)
    optimizer = peer_torch.make_optimizer(model)
    torch.set_float32_matmul_precision("high")
    forward = model if dry_run else torch.compile(model)
    tensors = [{k: torch.from_numpy(v) for k, v in batch.items()} for batch in batches]
    inputs = [peer_torch.inputs_of(model, batch) for batch in tensors]
    placed = [{name: tensor.to(device) for name, tensor in each.items()} for each in inputs]
    done = 0

    def one() -> Any:
        nonlocal done
        optimizer.zero_grad()
        # Not on the CPU: PyTorch is a hundred times slower without bfloat16 instructions.
        with torch.autocast(device.type, torch.bfloat16, enabled=not dry_run):
            loss = forward(**placed[done % BATCHES]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), peer_torch.CLIP_NORM)
        optimizer.step()
        done += 1
        return loss.detach()

    def take(count: int) -> harness.Losses:
        return [float(loss) for loss in [one() for _ in range(count)]]

    harness.answer(talk, take, {"memory": lambda: {"peak": torch.cuda.max_memory_allocated()}})


if __name__ == "__main__":
    main()
