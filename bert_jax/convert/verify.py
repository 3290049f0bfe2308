"""`bert-jax convert verify`: compares two models of any kind on the same text."""

import math
from typing import Final

from bert_jax.convert.compare import VECTOR, Comparison, Text, compare
from bert_jax.convert.sources import read_model
from bert_jax.data_pipeline.settings import shown_name
from bert_jax.errors import UserError, count
from bert_jax.runtime.console import console, table
from bert_jax.storage.read_files import read_bytes
from bert_jax.storage.remote import storage_errors

_LONG = (
    "The old lighthouse stood at the end of the pier, where the wind had worn its stones smooth. "
    "Every evening its keeper climbed 128 steps, lit the lamp and wrote the weather down: clouds "
    "from the west, a falling barometer, two ships on the horizon. No one in the village could "
    "remember a winter without storms; yet that year, until late in January, the sea lay as calm "
    "as a lake. \"It won't last\", said the baker's daughter, and she was right. "
)
# Short and long, so that rows are padded; a pair; the last is longer than most training sequences.
DEFAULT_TEXTS: Final[tuple[Text, ...]] = (
    ("Paris is the capital of France.",),
    ("Where did the ship go?", "It sailed north, past the islands, and never came back."),
    (_LONG,),
    ("Yes.",),
    (_LONG * 6,),
)


def run_verify(model: str, other: str, text: str | None = None, tolerance: float = 1e-5) -> bool:
    """Compares two models and prints the result.

    Args:
        model: of any kind, see `read_model`; differences are relative to its values.
        other: the same.
        text: a file of UTF-8 text, see `read_texts`; None for a few English sentences.
        tolerance: largest difference of models that count as the same, as in `Comparison.outputs`.

    Returns:
        Whether all differences are at most the tolerance.

    Raises:
        UserError: one of the models or the text cannot be read, or as `compare`.
        StorageError: a checkpoint is damaged.
    """
    texts = DEFAULT_TEXTS if text is None else read_texts(text)
    first, second = read_model(model), read_model(other)
    found = compare(first, second, texts)
    console.print(f"{count(len(texts), 'text')}, {count(found.tokens, 'token')}")
    rows = [[_number(value), output] for output, value in found.outputs]
    console.print(table(["difference", "output"], rows))
    for read in (first, second):
        if parts := found.only_in[read.source]:
            console.print(f"only {read.source} has: {', '.join(parts)}")
        if read.ignored:
            more = f" and {len(read.ignored) - 1:,} more" if len(read.ignored) > 1 else ""
            console.print(f"not compared: {shown_name(read.ignored[0])}{more} of {read.source}")
        if read.sentence and found.outputs[-1].where != VECTOR:
            titles = read.sentence.titles
            console.print(f"not compared: {titles} of the sentence encoder {read.source}")
    console.print(_weights(found))
    console.print(_verdict(found, tolerance))
    return found.first_above(tolerance) is None


def read_texts(path: str) -> list[Text]:
    """Reads a text from each line of a file that is not empty; a tab separates the two of a pair.

    Raises:
        UserError: no such file, it is not UTF-8, or it has no text.
    """
    with storage_errors(path):
        data = read_bytes(path)
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; convert it") from None
    texts = [tuple(line.split("\t", 1)) for line in lines if line.strip()]
    if not texts:
        raise UserError(f"{path}: has no text; give a file with one text per line")
    return texts


def _weights(found: Comparison) -> str:
    """Returns a line about the parameters, of which the texts need not use all."""
    differ = [tensor for tensor in found.weights if tensor.value != 0]
    if not differ:
        return "weights: all equal"
    most = max(differ, key=lambda tensor: (math.isnan(tensor.value), tensor.value))
    how_many = f"{len(differ):,} of {len(found.weights):,} tensors"
    return f"weights: {how_many} not equal, most {most.where}: {_number(most.value)}"


def _number(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "NaN or infinite"


def _verdict(found: Comparison, tolerance: float) -> str:
    """Returns a line that says where the models begin to differ, or how little they do."""
    limit = f"(tolerance {tolerance:g})"
    begin = found.first_above(tolerance)
    if begin is None:
        most = max(output.value for output in found.outputs)
        return f"the same to {_number(most)} {limit}" if most else f"no difference {limit}"
    if begin.where.startswith("layer"):
        place = f"from {begin.where} on"
    elif begin.where in ("embeddings", "final LayerNorm"):
        place = f"from the {begin.where} on"
    else:  # the pooler or a head, which no layer reads
        place = f"in the {begin.where}"
    return f"differs {place}: {_number(begin.value)} {limit}"
