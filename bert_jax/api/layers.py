"""Which layers' states are read, and how they are joined."""

from collections.abc import Sequence
from typing import Literal

from bert_jax.data_pipeline.errors import UserError

Join = Literal["concat", "mean"]
Layers = str | int | Sequence[int]
_FORM = 'give numbers and ranges, such as "-1", "-4:" or "0,6,12"'


def parse_layers(layers: Layers, count: int) -> tuple[int, ...]:
    """Returns the chosen of the states 0 (the embeddings) to `count` (the output of the last
    layer).

    Args:
        layers: a number, several, or a text of numbers and ranges as in Python: "-4:" is the last
            four. Negative numbers count from the end.

    Raises:
        UserError: no such layer, none at all, or another form.
    """
    if isinstance(layers, str):
        return tuple(i for part in layers.split(",") for i in _part(part.strip(), layers, count))
    return tuple(_index(i, count) for i in ([layers] if isinstance(layers, int) else layers))


def _part(part: str, layers: str, count: int) -> list[int]:
    try:
        numbers = [int(number) if number.strip() else None for number in part.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) == 1 and numbers[0] is not None:
        return [_index(numbers[0], count)]
    if len(numbers) != 2:
        raise UserError(f"layers={layers!r}; {_FORM}")
    chosen = list(range(count + 1))[slice(*numbers)]
    if not chosen:
        raise UserError(f"layers={layers!r}: {part!r} is none of 0 to {count}; {_FORM}")
    return chosen


def _index(number: int, count: int) -> int:
    if not -count - 1 <= number <= count:
        raise UserError(f"layers: {number} is none of 0 (the embeddings) to {count}, the last")
    return number % (count + 1)
