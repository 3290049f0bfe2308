"""What new vocabulary entries start with: the mean of their pieces, or counts (`init_entries`).

    python benchmarks/new_entries.py --model=MODEL --text=books:BOOKS --out=OUT

MODEL, an export, continues on a text whose own entries are added to its vocabulary (`extend`) or
take its place (`replace`), once with each start and seed. Prints the held-out loss of masked tokens
before the first step, after a third of the steps and at the end: of all, of the entries that the
model lacked, and of those that it had. Finished runs in OUT are not repeated; it
has those of one model, text and number of entries.
"""

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import harness
import numpy as np
from commands import ONE_CORE, Clock, run_command
from learning_variants import interval

KINDS = ("extend", "replace")
STARTS = ("pieces", "cooccurrence")
CLASSES = ("all", "new", "copied")
ROWS, BATCHES = 32, 40  # of a batch, and of the held-out text that is read


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="an export with a vocab.txt")
    parser.add_argument("--text", required=True, help="a source, as for `data build`")
    parser.add_argument("--out", type=Path, required=True, help="folder of stores and runs")
    parser.add_argument("--vocabularies", default=",".join(KINDS))
    parser.add_argument("--entries", type=int, default=8192, help="of the text's own vocabulary")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    harness.at_least_one(options, "entries", "seeds")
    if options.steps < 3:
        harness.fail(f"--steps={options.steps}: at least 3 are needed")
    kinds = harness.some_of("vocabularies", options.vocabularies, KINDS)
    print(harness.machine("jax"), flush=True)
    request = {
        "model": str(options.model.resolve()), "text": options.text, "entries": options.entries,
    }  # fmt: skip
    with harness.errors_are_one_line():
        Clock(options.out / "clock.json", request)
        build_stores(options)
        losses = {
            (seed, kind, start): measured(options, seed, kind, start)
            for seed, kind, start in itertools.product(range(options.seeds), kinds, STARTS)
        }
    print_table(options, kinds, losses)


def build_stores(options: argparse.Namespace) -> None:
    """Builds a store with the text's own vocabulary, and one with its entries after the model's."""
    from bert_jax.data_pipeline.sources import parse_source
    from bert_jax.data_pipeline.store_build import build, vocabulary
    from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

    options.out.mkdir(parents=True, exist_ok=True)
    source, stores = parse_source(options.text), {kind: options.out / kind for kind in KINDS}
    if all(store.exists() for store in stores.values()):
        return
    own = vocabulary.train_tokenizer([source], options.entries, progress=False)
    old = (options.model / "vocab.txt").read_text("utf-8").removesuffix("\n").split("\n")
    names = [own.token(i) for i in range(own.vocab_size)]
    new = [name for name in names if name not in set(old)]
    if not new:
        harness.fail(f"--entries={options.entries}: the model has all of them; raise it")
    more = Tokenizer.from_vocab([*old, *new])
    for kind, tokenizer in (("replace", own), ("extend", more)):
        if not stores[kind].exists():
            build.build_store(
                [source], tokenizer, stores[kind], progress=False, held_out_share=0.05
            )


def measured(
    options: argparse.Namespace, seed: int, kind: str, start: str
) -> dict[str, list[float]]:
    """Trains a run if it is not there; returns its held-out losses by class of entry."""
    run = options.out / f"{kind}_{start}_{seed}_{options.steps}"
    file = run / "losses_by_entry.json"
    if not file.exists():
        train(options, run, seed, kind, start)
        file.write_text(json.dumps(by_entry(options, run, kind)))
    losses = json.loads(file.read_text())
    harness.record(seed=seed, vocabulary=kind, start=start, losses=losses)
    said = "; ".join(f"{n} {' '.join(f'{loss:.3f}' for loss in losses[n])}" for n in CLASSES)
    print(f"# {kind}, {start}, seed {seed}: {said}", flush=True)
    return losses


def train(options: argparse.Namespace, run: Path, seed: int, kind: str, start: str) -> None:
    """Trains in a process of its own; resumes if it was interrupted."""
    words = [
        "pretrain",
        "--config=continue_domain",
        f"--config.init={options.model}",
        f"--config.init_vocabulary={kind}",
        f"--config.init_entries={start}",
        f"--config.data.store={options.out / kind}",
        f"--workdir={run}",
        "--cpu_devices=1",
        f"--config.seed={seed}",
        f"--config.phases[0].steps={options.steps}",
        f"--config.phases[0].batch_size={ROWS}",
        *("--config.phases[0].seq_length=64", "--config.phases[0].max_predictions=11"),
        f"--config.optimizer.warmup_steps={round(0.06 * options.steps)}",
        "--config.optimizer.learning_rate=1e-3",
        "--config.compute.dtype=float32",
        *(f"--config.evaluation.every_steps={options.steps}", "--config.evaluation.batches=1"),
        "--config.checkpoint.keep_start=True",
        f"--config.checkpoint.every_steps={options.steps // 3}",
        *("--config.checkpoint.keep=9", "--config.log_every_steps=100"),
    ]
    run_command(words, run.with_suffix(".log"), ONE_CORE)


def by_entry(options: argparse.Namespace, run: Path, kind: str) -> dict[str, list[float]]:
    """Returns the mean losses of the masked tokens of each class, at the start and after a third
    and all of the steps."""
    import jax
    from flax import nnx

    from bert_jax.checkpoint.manager import known_run
    from bert_jax.config.recorded import settings_of
    from bert_jax.config.schema import ComputeConfig
    from bert_jax.convert.reader import read_folder
    from bert_jax.convert.sources import read_checkpoint
    from bert_jax.data_pipeline.store.store import open_store
    from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
    from bert_jax.objectives.pretraining_model import declare
    from bert_jax.ops.cross_entropy import log_loss
    from bert_jax.training import initial_vocabulary
    from bert_jax.training.batches import held_out_config, phase_batches
    from bert_jax.workdir.layout import Workdir

    workdir, store = Workdir.open(run), open_store(options.out / kind)
    config = settings_of(known_run(workdir))
    config = held_out_config(config, config.phases[0])
    batches = phase_batches(config, store, store.held_out, config.phases[0])
    rows_of = {"extend": initial_vocabulary.extended, "replace": initial_vocabulary.replaced}[kind]
    theirs, ours = read_folder(options.model).tokenizer, Tokenizer.load(store.tokenizer_path)
    new = rows_of(theirs, ours).source < 0
    graph, like = declare(config.model, ComputeConfig.plain(), ("mlm",))

    @jax.jit
    def token_losses(params: Any, batch: Any) -> Any:
        nnx.replace_by_pure_dict(like, params)
        return log_loss(nnx.merge(graph, like)(batch)["mlm"], batch["masked_labels"])[0]

    losses: dict[str, list[float]] = {name: [] for name in CLASSES}
    for step in (0, options.steps // 3, options.steps):
        params = read_checkpoint(f"{run}@{step}", workdir, step).params
        params = {name: params[name] for name in ("encoder", "mlm")}
        params["encoder"].pop("pooler", None)
        found, labels = [], []
        for index in range(min(BATCHES, -(-batches.rows_per_epoch // ROWS))):
            batch = batches.evaluation_batch(index)
            taken = batch["masked_weights"] > 0
            found.append(np.asarray(token_losses(params, batch))[taken])
            labels.append(batch["masked_labels"][taken])
        of, lacked = np.concatenate(found), new[np.concatenate(labels)]
        for name, chosen in zip(CLASSES, (of, of[lacked], of[~lacked]), strict=True):
            losses[name].append(float(chosen.mean()))
    return losses


def print_table(options: argparse.Namespace, kinds: list[str], losses: dict[Any, Any]) -> None:
    steps = (0, options.steps // 3, options.steps)
    print("| vocabulary | held-out loss of | steps | pieces | cooccurrence | difference |")
    print("|---|---|---:|---:|---:|---:|")
    for kind, name, (at, step) in itertools.product(kinds, CLASSES, enumerate(steps)):
        of = np.array(
            [
                [losses[seed, kind, start][name][at] for start in STARTS]
                for seed in range(options.seeds)
            ]
        )
        first, second = of.mean(0)
        gain = interval([*(of[:, 1] - of[:, 0])])
        print(f"| {kind} | {name} | {step} | {first:.3f} | {second:.3f} | {gain} |")


if __name__ == "__main__":
    main()
