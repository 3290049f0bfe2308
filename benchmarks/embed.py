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
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import turns

NAMES = ("bert_jax", "sentence_transformers")
VOCABULARY = 8192
LAYERS, WIDTH, HEADS = 6, 384, 12
LONGEST = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
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
    for name in ("texts", "rounds", "threads"):
        if getattr(options, name) < 1:
            turns.fail(f"--{name}={getattr(options, name)}: at least 1 is needed")
    turns.use_cores(options.threads)
    libraries = ", ".join(f"{x} {version(x)}" for x in ("jax", "torch", "sentence-transformers"))
    print(f"{turns.machine()}; {libraries}")
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
    talk = turns.talk_apart()
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

    turns.answer(talk, take)


def compare(rounds: int, threads: int, folder: Path) -> None:
    """Prints the times of each contender and the ratios of the two."""
    own = [__file__, f"--folder={folder}", f"--threads={threads}"]
    environment = {"OMP_NUM_THREADS": str(threads), "PJRT_NPROC": str(threads)}
    contenders = {n: turns.Contender([*own, f"--contender={n}"], environment) for n in NAMES}
    for contender in contenders.values():
        contender.steps(1)  # compiles, and fills caches
    ours, theirs = (np.load(folder / f"{name}.npy") for name in NAMES)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in NAMES}
    for _ in range(rounds):
        for name, contender in contenders.items():
            seconds, (cpu,) = contender.steps(1)
            times[name].append((seconds, cpu))
    for contender in contenders.values():
        contender.close()
    print(f"{threads} threads; medians of {rounds} rounds; of the ratios in each round, too")
    for name, values in times.items():
        wall, cpu = (statistics.median(pair[i] for pair in values) for i in (0, 1))
        print(f"  {name:22} {wall:6.2f} s, {cpu:6.2f} CPU s, {len(ours) / wall:,.0f} texts/s")
    pairs = list(zip(*times.values(), strict=True))
    wall, cpu = (statistics.median(b[i] / a[i] for a, b in pairs) for i in (0, 1))
    print(f"  bert_jax is {wall:.2f} times as fast, and {cpu:.2f} times by CPU seconds")
    print(f"  largest difference of vectors {np.abs(ours - theirs).max():.1e}")


if __name__ == "__main__":
    main()
