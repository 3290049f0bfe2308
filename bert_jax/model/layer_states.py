"""The states of chosen layers: which they are, how they are joined, and their pools over texts.

Sizes: B rows, S positions, N places for texts in a row, H hidden, D numbers of the joined layers (H
of one, or of their mean).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.config.task_settings import Join, Pooling
from bert_jax.errors import UserError
from bert_jax.model.encoder import Encoder

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
        raise UserError(f"layers={layers!r}: {part!r} selects no layer from 0 to {count}; {_FORM}")
    return chosen


def _index(number: int, count: int) -> int:
    if not -count - 1 <= number <= count:
        raise UserError(f"layers: {number} is not from 0 (the embeddings) to {count} (the last)")
    return number % (count + 1)


def joined_states(
    encoder: Encoder, inputs: Sequence[jax.Array], layers: Sequence[int], join: Join
) -> jax.Array:
    """Returns the joined states of the chosen layers, [B, S, D]; inputs: as of `Encoder.states`."""
    states_LxBxSxH = encoder.states(*inputs)
    if encoder.config.norm_position == "pre":
        states_LxBxSxH = states_LxBxSxH.at[-1].set(encoder.norm(states_LxBxSxH[-1]))
    return joined(states_LxBxSxH, layers, join)


def joined(states: Sequence[jax.Array] | jax.Array, layers: Sequence[int], join: Join) -> jax.Array:
    """Returns the chosen of the states [B, S, H] joined, [B, S, D]."""
    chosen = [states[layer] for layer in layers]
    return jnp.concatenate(chosen, -1) if join == "concat" else jnp.mean(jnp.stack(chosen), 0)


def pool(
    x_BxSxD: jax.Array, examples_BxS: jax.Array, starts_BxN: jax.Array, pooling: Pooling
) -> jax.Array:
    """Returns the vector of the text in each place, [B, N, D]; 0 in an empty place, or any vector
    with "cls".

    Args:
        examples_BxS: the place of each position's text, from 1; 0 = padding.
        starts_BxN: the first position of the text in each place.
    """
    if pooling == "cls":
        return jnp.take_along_axis(x_BxSxD, starts_BxN[..., None], axis=1)
    places_N = 1 + jnp.arange(starts_BxN.shape[1])
    own_BxNxS = examples_BxS[:, None, :] == places_N[None, :, None]
    if pooling == "max":
        most_BxNxD = jnp.where(own_BxNxS[..., None], x_BxSxD[:, None], -jnp.inf).max(2)
        return jnp.where(own_BxNxS.any(-1, keepdims=True), most_BxNxD, 0)
    sizes_BxN = jnp.maximum(own_BxNxS.sum(-1), 1)
    # A product with the states of all places, in which those of other texts count zero times.
    total_BxNxD = jnp.einsum(
        "bns,bsd->bnd", own_BxNxS.astype(x_BxSxD.dtype), x_BxSxD,
        preferred_element_type=jnp.float32,
    )  # fmt: skip
    return total_BxNxD / sizes_BxN[..., None]
