"""Held-out loss of short runs that differ in one thing: initial values, rate, optimizer, form.

    python benchmarks/learning_variants.py --store=demo_run/store                   # the main table
    python benchmarks/learning_variants.py --store=demo_run/store --table=sharpness --seeds=1
    python benchmarks/learning_variants.py --store=STORE --table=size --seeds=1 --out=FOLDER

The first variant of a table is the one that the others are compared with. A run has 2 layers of
width 128, 2 heads, no dropout, AdamW with b2 0.98, 100 steps of warmup and a linear decay to zero;
a step has 32 rows of 64 tokens. Held-out: 192 rows. Runs at once have a core each. Differences are
paired by seed, with a 95 % interval of Student's t. Finished runs in `--out` are not repeated.
"""

import argparse
import hashlib
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import harness
from commands import ONE_CORE, run_command, run_each

from bert_jax.configs.ablations import RANDOM_WORDS
from bert_jax.data_pipeline.store.store import open_store

COMMON = (
    "--config=demo", "--config.model.initializer=published", "--config.optimizer.name=adamw",
    "--config.model.cooccurrence.window=4",
    *(f"--config.{key}={value}" for key, value in RANDOM_WORDS.items()),
    "--config.optimizer.b2=0.98", "--config.optimizer.schedule=fairseq",
    "--config.model.num_attention_heads=2",
    "--config.phases[0].batch_size=32",
    "--config.optimizer.warmup_steps=100", "--config.optimizer.learning_rate=1e-3",
    "--config.evaluation.batches=6", "--config.checkpoint.every_steps=1000000",
    "--config.log_every_steps=100", "--cpu_devices=1",
)  # fmt: skip
RATE, INIT = "optimizer.learning_rate=", "init="
HEADS = "model.initializer=positional_heads"
MUON = ("optimizer.name=muon", f"{RATE}4e-3", "optimizer.muon_scale=5.0")
PRE_ROTARY = ("model.position=rotary", "model.norm_position=pre", "model.initializer_range=0.02")
BEST = (HEADS, *MUON)
LARGER = (
    "model.hidden_size=256", "model.num_hidden_layers=4", "model.num_attention_heads=4",
    "model.intermediate_size=1024", "model.initializer_range=0.06",
)  # fmt: skip
LARGER_MUON = (f"{RATE}2e-3", "optimizer.muon_scale=10.0")
FOUR = (*BEST, "model.num_attention_heads=4")
BIAS = "model.output_bias_initializer=frequencies"
WORDS = ("model.word_initializer=cooccurrence", BIAS)
HEAD, OUTPUTS = "model.near_identity.head=True", "model.near_identity.feed_forward="
IDENTITY = (HEAD, f"{OUTPUTS}0.1")
COUNTED = (*FOUR, *WORDS, *IDENTITY)
UNREAD, PMI = "model.positional_heads.unread=", "model.positional_heads.pmi="
ATTENTION = "model.near_identity.attention=0.1"
WHOLE = (*COUNTED, "model.cooccurrence.window=2", ATTENTION, f"{UNREAD}0.0", f"{PMI}3.0")
Variants = dict[str, tuple[str, ...]]


def varied(setting: str, *values: float) -> Variants:
    """Returns the best variant, and others with one setting of its positional heads changed."""
    key = f"model.positional_heads.{setting}"
    return {"default": BEST} | {f"{setting} {value}": (*BEST, f"{key}={value}") for value in values}


def counted(setting: str, *values: float) -> Variants:
    """Returns the counted start near the identity, and others with one setting changed."""
    changed = {f"{setting} {value}": (*COUNTED, f"model.{setting}={value}") for value in values}
    return {"default": COUNTED} | changed


TABLES: dict[str, Variants] = {
    "main": {
        "published": (),
        "published, rate 2e-3": (f"{RATE}2e-3",),
        "published, Muon": MUON,
        "positional heads": (HEADS,),
        "positional heads, rate 2e-3": (HEADS, f"{RATE}2e-3"),
        "positional heads, Muon": BEST,
        "rotary": ("model.position=rotary",),
        "rotary, pre-LN, rate 2e-3": (*PRE_ROTARY, f"{RATE}2e-3"),
    },
    "seeds": {"published": (f"{RATE}2e-3",), "positional heads": (HEADS, f"{RATE}2e-3")},
    "rate": {
        f"rate {rate}": (HEADS, f"{RATE}{rate}")
        for rate in ("1e-3", "2e-3", "4e-3", "8e-3", "16e-3")
    },
    "muon": {
        f"rate {rate}, Muon's {rate * scale:.2g}": (
            *(HEADS, "optimizer.name=muon", f"{RATE}{rate}", f"optimizer.muon_scale={scale}"),
        )
        for rate, scale in ((2e-3, 5.0), (2e-3, 10.0), (2e-3, 20.0), (4e-3, 5.0), (8e-3, 2.5))
    },
    "sharpness": varied("sharpness", 2.5, 5.0, 20.0),
    "noise": varied("noise", 0.0, 0.5, 1.0),
    "layers": varied("layers", 2),
    "heads": {  # four heads have the offsets -1, +1, -2, +2, and fewer dimensions each
        "2 heads": BEST,
        "4 heads": (*BEST, "model.num_attention_heads=4"),
        "8 heads": (*BEST, "model.num_attention_heads=8"),
    },
    "table": varied("table", 1.0, 3.0),
    "single": {  # without sentence pairs
        "published": ("data.pairing=single", f"{RATE}2e-3"),
        "positional heads": ("data.pairing=single", HEADS, f"{RATE}2e-3"),
        "positional heads, Muon": ("data.pairing=single", *BEST),
    },
    "starts": {  # from models of learning_starts.py
        "published": (f"{RATE}2e-3",),
        "sinusoidal table": (f"{RATE}2e-3", f"{INIT}sinusoids"),
        "symmetric queries and keys": (f"{RATE}2e-3", f"{INIT}symmetric"),
        "mimetic queries and keys": (f"{RATE}2e-3", f"{INIT}mimetic"),
        "positional heads": (HEADS, f"{RATE}2e-3"),
    },
    "special": {  # from models of learning_starts.py
        "default": BEST,
        "segments start at zero": (*BEST, f"{INIT}no_segments"),
        "special tokens start at zero": (*BEST, f"{INIT}no_special"),
        "segments and special tokens three times as large": (*BEST, f"{INIT}large_special"),
    },
    "counted": {  # what the words start from, and how near the identity layers and head are
        "random words": FOUR,
        "output bias": (*FOUR, BIAS),
        "words": (*FOUR, WORDS[0]),
        "words and output bias": (*FOUR, *WORDS),
        "near the identity": (*FOUR, *IDENTITY),
        "all three": COUNTED,
        "all three, AdamW": (*COUNTED, "optimizer.name=adamw", f"{RATE}2e-3"),
        "random words, AdamW": (*FOUR, "optimizer.name=adamw", f"{RATE}2e-3"),
        "all three, no positional heads": (*COUNTED, "model.initializer=random"),
        "nothing, no positional heads": (*FOUR, "model.initializer=random"),
    },
    "window": counted("cooccurrence.window", 1, 2, 10),
    "smoothing": counted("cooccurrence.smoothing", 0.5, 1.0),
    "exponent": counted("cooccurrence.exponent", 0.0, 1.0),
    "identity": {
        "all three": COUNTED,
        "head alone": (*FOUR, *WORDS, HEAD),
        "outputs alone": (*FOUR, *WORDS, f"{OUTPUTS}0.1"),
        "outputs 0": (*COUNTED, f"{OUTPUTS}0.0"),
        "outputs 0.3": (*COUNTED, f"{OUTPUTS}0.3"),
        "attention 0.3": (*COUNTED, "model.near_identity.attention=0.3"),
        "attention 0.1": (*COUNTED, "model.near_identity.attention=0.1"),
    },
    "neighbours": {  # with values and outputs of heads from the PMI at their offsets
        "all": WHOLE,
        "without PMI": (*WHOLE, f"{PMI}0.0"),
        "without PMI, whole position table": (*WHOLE, f"{PMI}0.0", f"{UNREAD}1.0"),
        "whole position table": (*WHOLE, f"{UNREAD}1.0"),
        "attention as random": (*WHOLE, "model.near_identity.attention=1.0"),
        "PMI 1": (*WHOLE, f"{PMI}1.0"),
        "PMI 6": (*WHOLE, f"{PMI}6.0"),
        "window 4": (*WHOLE, "model.cooccurrence.window=4"),
        "random": FOUR,
    },
    "vectors": {  # from models of learning_starts.py
        "all three": COUNTED,
        "with svds' own vectors": (*FOUR, *IDENTITY, f"{INIT}exact"),
    },
    "size": {  # 4 layers of width 256
        "published, rate 5e-4": (*LARGER, f"{RATE}5e-4"),
        "published, rate 2e-4": (*LARGER, f"{RATE}2e-4"),
        "positional heads, rate 5e-4": (*LARGER, HEADS, f"{RATE}5e-4"),
        "positional heads, rate 1e-3": (*LARGER, HEADS, f"{RATE}1e-3"),
        "positional heads, Muon": (*BEST, *LARGER, *LARGER_MUON),
    },
    "counted_size": {  # the same
        "random words": (*FOUR, *LARGER, *LARGER_MUON),
        "words and output bias": (*FOUR, *WORDS, *LARGER, *LARGER_MUON),
        "near the identity": (*FOUR, *IDENTITY, *LARGER, *LARGER_MUON),
        "all three": (*COUNTED, *LARGER, *LARGER_MUON),
        "as wiki_books_small": (*WHOLE, *LARGER, *LARGER_MUON),
    },
}


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--store", type=Path, required=True, help="a token store of 8,192 entries")
    parser.add_argument("--table", choices=TABLES, default="main")
    parser.add_argument("--only", help="variants by number, such as 0,2")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--at_once", type=int, default=2, help="runs at once, one core each")
    parser.add_argument("--out", type=Path, help="keep the runs in this folder")
    options = parser.parse_args()
    harness.at_least_one(options, "seeds", "at_once")
    if options.steps < 3 or options.steps % 3:  # held-out text is read after each third
        harness.fail(f"--steps={options.steps}: give a multiple of 3")
    every = [str(number) for number in range(len(TABLES[options.table]))]
    only = every if options.only is None else harness.some_of("only", options.only, every)
    with harness.errors_are_one_line(), tempfile.TemporaryDirectory() as folder:
        open_store(options.store, verify=False)
        measure(options, [int(number) for number in only], options.out or Path(folder))


def measure(options: argparse.Namespace, only: list[int], out: Path) -> None:
    names = list(TABLES[options.table])
    variants = {names[n]: TABLES[options.table][names[n]] for n in only}

    def loss(job: tuple[int, str]) -> list[float]:
        seed, name = job
        return train(options, out, name, (*variants[name], f"seed={seed}"))

    jobs = [(seed, name) for seed in range(options.seeds) for name in variants]
    losses = dict(zip(jobs, run_each(loss, jobs, options.at_once), strict=True))
    print_table(options, list(variants), losses)


def train(options: argparse.Namespace, out: Path, name: str, changes: Sequence[str]) -> list[float]:
    """Returns the held-out MLM loss after each third of the steps."""
    settings = "\n".join((*changes, f"steps={options.steps}"))  # a run may stand in several tables
    workdir = out.resolve() / hashlib.sha256(settings.encode()).hexdigest()[:16]
    changes, every = with_model(options, workdir, changes), options.steps // 3
    words = [
        "pretrain", *COMMON, f"--workdir={workdir}",
        f"--config.data.store={options.store.resolve()}",
        f"--config.phases[0].steps={options.steps}", f"--config.evaluation.every_steps={every}",
        *(f"--config.{change}" for change in changes),
    ]  # fmt: skip
    run_command(words, workdir.with_suffix(".log"), ONE_CORE)
    from bert_jax.metrics.run_records import read_records

    # A run that was stopped and came back has some of its steps twice.
    losses = [record["mlm/loss"] for record in read_records(workdir / "metrics.jsonl", "eval")]
    harness.record(name=name, changes=changes, losses=losses)
    print(f"# {name}, {changes[-1]}: {' '.join(f'{loss:.3f}' for loss in losses)}", flush=True)
    return losses


def with_model(
    options: argparse.Namespace, workdir: Path, changes: Sequence[str]
) -> tuple[str, ...]:
    """Returns the changes with the name of a start replaced by a model that has it."""
    import learning_starts

    from bert_jax.config.config_files import load

    names = [change for change in changes if change.startswith(INIT)]
    others = [change for change in changes if change not in names]
    if not names:
        return tuple(others)
    common = (word for word in COMMON if word.startswith("--config."))
    values = dict(map(harness.setting, (*common, *others)))
    config = load("demo", values | {"data.store": str(options.store.resolve())})
    folder = workdir.with_suffix(".start")
    learning_starts.write(names[0].removeprefix(INIT), config, open_store(options.store), folder)
    return (f"{INIT}{folder}", *others)


def print_table(
    options: argparse.Namespace, names: list[str], losses: dict[tuple[int, str], list[float]]
) -> None:
    steps = [options.steps // 3 * n for n in (1, 2, 3)]
    print(f"| | {' | '.join(f'{step:,}' for step in steps)} | against “{names[0]}” |")
    print("|---|" + "---:|" * (len(steps) + 1))
    for name in names:
        runs = [losses[seed, name] for seed in range(options.seeds)]
        means = [statistics.mean(values) for values in zip(*runs, strict=True)]
        paired = [run[-1] - losses[seed, names[0]][-1] for seed, run in enumerate(runs)]
        against = "" if name == names[0] else interval(paired)
        print(f"| {name} | {' | '.join(f'{mean:.3f}' for mean in means)} | {against} |")


def interval(values: Sequence[float]) -> str:
    """Returns the mean, and its 95 % interval of Student's t if there are several values."""
    from bert_jax.ablation.statistics import student_t

    mean, interval, _ = student_t(values)
    half = f" ± {interval.high - mean:.3f}" if len(values) > 1 else ""
    return f"{mean:+.3f}{half}"


if __name__ == "__main__":
    main()
