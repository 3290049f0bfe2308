"""Attention of every head over the tokens of a text or of a pair: `bert-jax look attention`.

Sizes: L layers, A heads, S tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.api.model import Model
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError, count
from bert_jax.finetune.tasks.encoding import check_no_padding, encode
from bert_jax.model.attention_weights import attention_weights

LONGEST: Final = 512  # tokens that a page can show


@dataclass(frozen=True)
class SentenceAttention:
    """Attention of a model over one text or a pair.

    Attributes:
        tokens: of the row, [CLS] and [SEP] included.
        segments: 0 or 1 for each token: the first or the second text, int64 [S].
        special: whether each token is [CLS] or [SEP], bool [S].
        weights: float32 [L, A, S, S]: what each token (third axis) reads from each (last axis).
    """

    tokens: list[str]
    segments: np.ndarray
    special: np.ndarray
    weights: np.ndarray


def attention(model: Model, texts: Sequence[str]) -> SentenceAttention:
    """Returns the attention of each layer and head, as transformers' `output_attentions=True` with
    `attn_implementation="eager"`.

    Args:
        texts: one, or a pair, which the model reads in one row.

    Raises:
        UserError: other than one or two texts, a text without tokens, more tokens than the model or
            a page has room for, or weights that are not finite.
    """
    if not 1 <= len(texts) <= 2:
        raise UserError(f"{count(len(texts), 'text')}; give one, or two that are read as a pair")
    tokenizer, special = model.tokenizer, model.tokenizer.special
    limit = min(model.longest, LONGEST)
    sizes = [len(one.ids) - 2 + one.cut for one in model.tokens(texts)]
    if 0 in sizes:
        raise UserError(f"{texts[sizes.index(0)]!r}: no tokens; give a text with words")
    between = len(tokenizer.frame.between)
    needed = 2 + sum(sizes) + between * (len(texts) - 1)
    if needed > limit:
        what = "a page shows" if limit == LONGEST else "the model reads"
        raise UserError(f"{needed:,} tokens, but {what} at most {limit:,}; shorten the text")
    encoded = encode(tokenizer, model.config, [tuple(texts)], limit)
    check_no_padding([encoded.ids], tokenizer, model.config, model.pad)
    second = 1 + sizes[0] + between
    return SentenceAttention(
        shown_tokens(tokenizer, encoded.ids),
        (np.arange(len(encoded.ids)) >= second).astype(np.int64) * (len(texts) - 1),
        np.isin(encoded.ids, (special.cls, special.sep)),
        _weights(model, encoded.ids, encoded.types),
    )


def _weights(model: Model, ids: np.ndarray, types: np.ndarray) -> np.ndarray:
    """Returns the weights [L, A, S, S] of one row; ids, types: [S]. UserError if not finite."""
    ids_1xS, types_1xS = jnp.asarray(ids)[None], jnp.asarray(types)[None]
    positions_1xS = jnp.arange(len(ids), dtype=jnp.int32)[None]
    inputs = (ids_1xS, types_1xS, jnp.ones_like(ids_1xS), positions_1xS)
    found = np.asarray(jax.jit(partial(_compiled, model.graph))(model.params, *inputs)[:, 0])
    if not np.isfinite(found).all():
        raise UserError("the model's attention is NaN or infinite; export an earlier step")
    return found


@jax.default_matmul_precision("highest")
def _compiled(graph: nnx.GraphDef, params: Any, *inputs: jax.Array) -> jax.Array:
    return attention_weights(nnx.merge(graph, params).encoder, *inputs)


def shown_tokens(tokenizer: Tokenizer, ids: Sequence[int] | np.ndarray) -> list[str]:
    """Returns the entries of ids as a page shows them: byte-level pieces, which are written in
    signs for bytes, as their text, with the sign of a space before them."""
    shown = ((i, tokenizer.readable(int(i))) for i in ids)
    return [tokenizer.token(i) if "\ufffd" in text else text for i, text in shown]
