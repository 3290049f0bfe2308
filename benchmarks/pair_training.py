"""Speed of training on pairs on a CPU, compared with sentence-transformers.

    python benchmarks/pair_training.py                    # neighbors in Python's help
    python benchmarks/pair_training.py --input=pairs.tsv  # columns anchor and positive

Needs the [torch] extra and sentence-transformers. Both sides train an encoder of 6 layers of width
384, with dropout, from random weights in float32 with in-batch negatives, AdamW and batches of 64
pairs cut at 128 tokens, which are tokenized before. bert_jax packs them into the rows of its config
`sentences`; sentence-transformers has them in any order, its MultipleNegativesRankingLoss pads the
texts of a batch to the longest. Each side is a process of its own and they run alternately. On a
machine that is busy with other work, threads that wait for one another take much longer: there,
--threads=1 and the CPU seconds say more.
"""

import argparse
import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Any

import embed
import finetune_speed
import harness
import peer_torch

NAMES = ("bert_jax", "sentence_transformers")
BATCH_SIZE, LONGEST, VOCABULARY = 64, 128, 8192
READY = 64  # batches that sentence-transformers has tokenized


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--input", type=Path, help="a .tsv (default: Python's help)")
    options = finetune_speed.parse(parser, NAMES, rounds=7, steps=4)
    if options.contender:
        answer(options)
        return
    harness.use_cores(options.threads)
    print(harness.machine("jax", "torch", "sentence-transformers"), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        prepare(options.input, Path(folder))
        compare(options, Path(folder))


def config_of(folder: Path) -> Any:
    from bert_jax.config.config_files import load

    changes = {
        "task.data": str(folder / "pairs.tsv"),
        "task.tokenizer": str(folder / "tokenizer.json"),
        "model.hidden_size": embed.WIDTH,
        "model.num_hidden_layers": embed.LAYERS,
        "model.num_attention_heads": embed.HEADS,
        "model.intermediate_size": 4 * embed.WIDTH,
        "model.max_position_embeddings": LONGEST,
        "phases[0].batch_size": BATCH_SIZE,
        "phases[0].seq_length": LONGEST,
        "optimizer.learning_rate": peer_torch.LEARNING_RATE,
        "compute.dtype": "float32",
    }
    return load("sentences", changes)


def prepare(source: Path | None, folder: Path) -> None:
    """Writes the pairs, a tokenizer, and the initial weights as a folder for the other side."""
    import jax

    from bert_jax.config.task_model import without_head
    from bert_jax.convert.run_encoder import encoder_of_run
    from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
    from bert_jax.objectives.pretraining_model import init_params
    from bert_jax.publish.export import export
    from bert_jax.publish.model_card import Card

    if source is None:
        sentences = [text for text in embed.texts_of(None) if "\t" not in text]
        rows = [f"{one}\t{other}" for one, other in itertools.pairwise(sentences)]
        text = "\n".join(["anchor\tpositive", *rows]) + "\n"
    else:
        text = source.read_text(encoding="utf-8")
    (folder / "pairs.tsv").write_text(text, encoding="utf-8")
    Tokenizer.train(text.splitlines(), VOCABULARY).save(folder / "tokenizer.json")
    config, data = finetune_speed.open_data(config_of(folder))
    model = without_head(config.model)
    params = init_params(model, config.compute, (), jax.random.key(config.seed))
    export(
        params, model, data.tokenizer, folder / "model",
        card=Card(origin="x"), sentence=encoder_of_run(config),
    )  # fmt: skip
    pairs = len(data.train.examples.examples)
    print(f"{pairs:,} pairs; {embed.LAYERS} layers of {embed.WIDTH}", flush=True)


def answer(options: argparse.Namespace) -> None:
    """Runs a contender in its process; answers n steps with their CPU seconds and mean loss."""
    talk = harness.talk_apart()
    if options.contender == "bert_jax":
        config = config_of(options.folder)
        step = finetune_speed.run_step(config, options.devices, lambda batch: None)
    else:
        step = their_step(options.folder, options.threads)
    harness.answer(talk, finetune_speed.taking(step))


def their_step(folder: Path, threads: int) -> finetune_speed.Step:
    """Returns the step of sentence-transformers' trainer, without what else that does."""
    import numpy as np
    import torch
    from sentence_transformers import SentenceTransformer, losses

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = SentenceTransformer(str(folder / "model"), device="cpu")
    model.train()
    loss, optimizer = losses.MultipleNegativesRankingLoss(model), peer_torch.make_optimizer(model)
    lines = (folder / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    places = [lines[0].split("\t").index(name) for name in ("anchor", "positive")]
    pairs = [line.split("\t") for line in lines[1:]]
    order = np.random.default_rng(0).permutation(len(pairs))[: READY * BATCH_SIZE]
    read = getattr(model, "preprocess", None) or model.tokenize
    batches = [
        [read([pairs[i][place] for i in order[start : start + BATCH_SIZE]]) for place in places]
        for start in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE)
    ]
    made = itertools.cycle(batches)

    def step() -> float:
        optimizer.zero_grad()
        value = loss([dict(column) for column in next(made)], None)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), peer_torch.CLIP_NORM)
        optimizer.step()
        return float(value.item())

    return step


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Prints the speed of each side and the ratios of the two."""
    with finetune_speed.raced(__file__, NAMES, options, folder, warm_up=1) as (_, found):
        times = harness.wall_and_cpu(found)
    harness.record(rounds=found)
    print(
        f"medians of {options.rounds} rounds of {options.steps} steps; of the ratios in each "
        "round, too"
    )
    for name in NAMES:
        wall, cpu = (seconds / options.steps for seconds in times[name])
        loss = statistics.mean(loss for _, (_, loss) in found[name])
        print(
            f"  {name:22} {BATCH_SIZE / wall:6.1f} pairs/s, {cpu / BATCH_SIZE:.4f} CPU s a pair; "
            f"loss {loss:.3f}"
        )
    wall, cpu = times["ratio"]
    print(
        f"  bert_jax is {wall:.2f} times as fast in pairs/s, and {cpu:.2f} times by CPU seconds",
        flush=True,
    )


if __name__ == "__main__":
    main()
