"""Speed of sentence vectors on a CPU, compared with sentence-transformers on the same weights.

    python benchmarks/embed.py                        # the sentences of Python's help
    python benchmarks/embed.py --input=lines.txt      # a text on every line

Needs the [torch] extra and sentence-transformers. Both contenders load one exported folder (random
weights, whose values do not change the time) and give the mean of the last layer's states of every
text, in float32; each has a process of its own. They run alternately, and their vectors are
compared. sentence-transformers runs as by default: batches of 32 texts, sorted by length and
padded; tokenizing is in both times. On a machine that is busy with other work, threads that wait
for one another take much longer: there, --threads=1 and the CPU seconds say more.
"""

import argparse
import functools
import tempfile
import time
from pathlib import Path

import harness
import numpy as np

NAMES = ("bert_jax", "sentence_transformers")
VOCABULARY = 8192
LAYERS, WIDTH, HEADS = 6, 384, 12
LONGEST = 512


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--input", type=Path, help="a text on every line (default: Python's help)")
    parser.add_argument("--texts", type=int, default=2000, help="the first texts of it")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds")
    parser.add_argument("--threads", type=int, default=2, help="threads and cores of each")
    parser.add_argument("--contender", choices=NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        answer(options.contender, options.threads, options.folder)
        return
    harness.at_least_one(options, "texts", "rounds", "threads")
    harness.use_cores(options.threads)
    print(harness.machine("jax", "torch", "sentence-transformers"))
    with tempfile.TemporaryDirectory() as folder:
        prepare(texts_of(options.input)[: options.texts], Path(folder))
        compare(options.rounds, options.threads, Path(folder))


def texts_of(path: Path | None) -> list[str]:
    """Returns the lines of a file, or the sentences of Python's help."""
    if path is not None:
        return path.read_text(encoding="utf-8").splitlines()
    from pydoc_data.topics import topics

    text = " ".join(" ".join(topics.values()).split())
    return [f"{sentence}." for sentence in text.split(". ") if sentence]


def prepare(texts: list[str], folder: Path) -> None:
    """Writes the texts and the model of both contenders."""
    import jax

    from bert_jax.config.schema import ComputeConfig, ModelConfig
    from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
    from bert_jax.objectives.pretraining_model import init_params
    from bert_jax.publish.export import export
    from bert_jax.publish.model_card import Card

    tokenizer = Tokenizer.train(texts, VOCABULARY)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=LONGEST,
    )
    params = init_params(config, ComputeConfig.plain(), ("mlm",), jax.random.key(0))
    export(params, config, tokenizer, folder / "model", card=Card(objectives=("mlm",)))
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    pieces = [min(len(ids) + 2, LONGEST) for ids in tokenizer.encode_batch(texts)]
    middle, high = np.percentile(pieces, [50, 95])
    print(
        f"{len(texts):,} texts of {np.mean(pieces):.1f} tokens (median {middle:.0f}, 95th "
        f"percentile {high:.0f}); {LAYERS} layers of {WIDTH}"
    )


def answer(contender: str, threads: int, folder: Path) -> None:
    """Runs a contender in its process; a request for n answers the CPU seconds of n times all
    vectors."""
    talk = harness.talk_apart()
    texts = (folder / "texts.txt").read_text(encoding="utf-8").split("\n")
    if contender == "bert_jax":
        import bert_jax
        from bert_jax.runtime.cpu import keep_memory, use_cpu_devices

        use_cpu_devices(threads)
        keep_memory()
        encode = bert_jax.load(folder / "model").encode
    else:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        encode = SentenceTransformer(str(folder / "model"), device="cpu").encode

    def take(count: int) -> list[float]:
        start = time.process_time()
        for _ in range(count):
            vectors = encode(texts)
        seconds = time.process_time() - start
        np.save(folder / f"{contender}.npy", vectors)
        return [seconds]

    harness.answer(talk, take)


def compare(rounds: int, threads: int, folder: Path) -> None:
    """Prints the times of each contender and the ratios of the two."""
    own = [__file__, f"--folder={folder}", f"--threads={threads}"]
    commands = {name: [*own, f"--contender={name}"] for name in NAMES}
    with harness.contenders(commands, OMP_NUM_THREADS=threads, PJRT_NPROC=threads) as sides:
        for side in sides.values():
            side.steps(1)  # compiles, and fills caches
        ours, theirs = (np.load(folder / f"{name}.npy") for name in NAMES)
        steps = {name: functools.partial(side.steps, 1) for name, side in sides.items()}
        times = harness.wall_and_cpu(harness.rounds(steps, rounds))
    harness.record(seconds=times)
    print(f"{threads} threads; medians of {rounds} rounds; of the ratios in each round, too")
    for name in NAMES:
        wall, cpu = times[name]
        print(f"  {name:22} {wall:6.2f} s, {cpu:6.2f} CPU s, {len(ours) / wall:,.0f} texts/s")
    wall, cpu = times["ratio"]
    print(f"  bert_jax is {wall:.2f} times as fast, and {cpu:.2f} times by CPU seconds")
    print(f"  largest difference of vectors {np.abs(ours - theirs).max():.1e}")


if __name__ == "__main__":
    main()
