"""What smaller vectors cost: Spearman's correlation of cosines with the scores of pairs.

    python benchmarks/small_vectors.py --model=FOLDER --pairs=STS-B/dev.tsv
    python benchmarks/small_vectors.py --model=FOLDER --pairs=STS-B/dev.tsv --dimensions=256,64

The pairs are a table of the columns sentence1, sentence2 and score. As in `bert-jax search`, the
second sentences are stored, in float32, int8 or bits and with their first dimensions alone; the
first sentences are queries in float32. int8 has the ranges of the stored sentences. Bits need a
multiple of 8 dimensions. The interval is of 95 %: the 2.5th and 97.5th percentile of the
differences from all numbers in float32 over 1,000 resamples of the pairs.
"""

from pathlib import Path

import harness
import numpy as np

RESAMPLES = 1000


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of a model")
    parser.add_argument("--pairs", type=Path, required=True, help="table of scored pairs")
    parser.add_argument("--dimensions", default="", help="numbers of them, such as 256,64")
    options = parser.parse_args()
    with harness.errors_are_one_line():
        compare(options.model, options.pairs, options.dimensions)


def compare(folder: Path, pairs: Path, dimensions: str) -> None:
    """Prints a row for each number of dimensions and each dtype."""
    import bert_jax
    from bert_jax.finetune.tasks.table import read_rows

    names = ("sentence1", "sentence2", "score")
    rows = [[values[name] for name in names] for _, values in read_rows(pairs, names)[0]]
    first, second, scores = zip(*rows, strict=True)
    truth = np.array(scores, np.float64)
    model = bert_jax.load(folder)
    queries, stored = model.encode(first), model.encode(second)
    full = stored.shape[1]
    given = [text for text in dimensions.split(",") if text]
    if wrong := [text for text in given if not (text.isdecimal() and 0 < int(text) <= full)]:
        harness.fail(f"--dimensions={wrong[0]}: give numbers from 1 to {full}")
    widths = [int(text) for text in given] or halves(full)
    draws = np.random.default_rng(0).integers(0, len(truth), (RESAMPLES, len(truth)))
    whole = cosines(queries, stored)
    reference = np.array([spearman(whole[draw], truth[draw]) for draw in draws])
    print(harness.machine("jax", "numpy"))
    print(f"{len(truth):,} pairs; a vector has {full} dimensions")
    print("| dimensions | dtype | bytes | Spearman | change (95 %) |\n|---:|---|---:|---:|---|")
    for width in widths:
        for dtype, size, vectors in forms(stored[:, :width]):
            found = cosines(queries[:, :width], vectors)
            changes = np.array([spearman(found[draw], truth[draw]) for draw in draws]) - reference
            low, high = 100 * np.percentile(changes, [2.5, 97.5])
            value = 100 * spearman(found, truth)
            change = value - 100 * spearman(whole, truth)
            harness.record(dimensions=width, dtype=dtype, bytes=size, spearman=value)
            is_whole = (width, dtype) == (full, "float32")
            shown = "" if is_whole else f"{change:+.2f} ({low:+.2f} to {high:+.2f})"
            print(f"| {width} | {dtype} | {size:,} | {value:.2f} | {shown} |")


def halves(width: int) -> list[int]:
    """Returns a width and its halves, of which the least is 32 or more."""
    return [width, *halves(width // 2)] if width // 2 >= 32 else [width]


def forms(vectors: np.ndarray) -> list[tuple[str, int, np.ndarray]]:
    """Returns the dtype, the bytes of a vector, and what the stored vectors stand for."""
    import jax.numpy as jnp

    from bert_jax.api.small_vectors import decoded, to_bits, to_int8

    width = vectors.shape[1]
    ranges = np.stack([vectors.min(0), vectors.max(0)])
    codes = np.asarray(decoded(jnp.asarray(to_int8(vectors, ranges)), jnp.asarray(ranges)))
    made = [("float32", 4 * width, vectors), ("int8", width, codes)]
    if width % 8 == 0:
        bits = np.asarray(decoded(jnp.asarray(to_bits(vectors)), None))
        made.append(("binary", width // 8, bits))
    return made


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    from bert_jax.finetune.tasks.metrics import measure

    found = measure(("spearman",), y, x)["spearman"]
    assert found is not None
    return found


if __name__ == "__main__":
    main()
