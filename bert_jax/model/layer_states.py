"""The states of chosen layers: which they are, how they are joined, and their pools over texts.

Sizes: B rows, S positions, N places for texts in a row, H hidden, D numbers of the joined layers (H
of one, or of their mean).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config.task_settings import Join
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
    numbers = np.atleast_1d(layers)
    if not numbers.size or numbers.ndim > 1 or numbers.dtype.kind not in "iu":
        raise UserError(f"layers={layers!r}; {_FORM}")
    return tuple(_index(number, count) for number in numbers.tolist())


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
    x_BxSxD: jax.Array,
    examples_BxS: jax.Array,
    starts_BxN: jax.Array,
    positions_BxS: jax.Array,
    pools: Sequence[str],
    first: int = 0,
) -> jax.Array:
    """Returns the vector of the text in each place, [B, N, pools · D], the pools one after the
    other; of an empty place any vector.

    As sentence-transformers' Pooling.py of release 6.2.

    Args:
        examples_BxS: the place of each position's text, from 1; 0 = padding.
        starts_BxN: the first position of the text in each place.
        positions_BxS: from 0 in each text.
        pools: of `sentence_parts.POOLS`.
        first: of the tokens of each text, that from which on they are pooled.
    """
    places_N = 1 + jnp.arange(starts_BxN.shape[1])
    own_BxNxS = examples_BxS[:, None, :] == places_N[None, :, None]
    if first:
        own_BxNxS &= (positions_BxS >= first)[:, None, :]
    each = [_pool(x_BxSxD, own_BxNxS, starts_BxN + first, positions_BxS, name) for name in pools]
    return jnp.concatenate(each, -1) if len(each) > 1 else each[0]


def _pool(
    x_BxSxD: jax.Array,
    own_BxNxS: jax.Array,
    starts_BxN: jax.Array,
    positions_BxS: jax.Array,
    name: str,
) -> jax.Array:
    """Returns one pool, [B, N, D]; 0 in an empty place, or any vector of a single token.

    own_BxNxS: whether a position is of the text in a place.
    """
    if name == "max":
        most_BxNxD = jnp.where(own_BxNxS[..., None], x_BxSxD[:, None], -jnp.inf).max(2)
        return jnp.where(own_BxNxS.any(-1, keepdims=True), most_BxNxD, 0)
    if name in ("cls", "lasttoken"):
        at_BxN = starts_BxN
        if name == "lasttoken":
            at_BxN = own_BxNxS.shape[-1] - 1 - own_BxNxS[..., ::-1].argmax(-1)
        return jnp.take_along_axis(x_BxSxD, at_BxN[..., None], axis=1)
    weights_BxNxS = own_BxNxS.astype(x_BxSxD.dtype)
    if name == "weightedmean":  # a token weighs its place in the text, from 1
        weights_BxNxS = own_BxNxS * (1 + positions_BxS)[:, None, :].astype(jnp.float32)
    # A product with the states of all places, in which those of other texts count zero times.
    total_BxNxD = jnp.einsum(
        "bns,bsd->bnd", weights_BxNxS, x_BxSxD, preferred_element_type=jnp.float32
    )
    size_BxN = jnp.maximum(weights_BxNxS.sum(-1, dtype=jnp.float32), 1)
    if name == "mean_sqrt_len_tokens":
        size_BxN = jnp.sqrt(size_BxN)
    return total_BxNxD / size_BxN[..., None]
