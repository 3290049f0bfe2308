"""Initial values with which a word's vector reaches the output nearly unchanged.

At random values each layer adds noise of the size of its input, and the head of masked tokens is a
random map, so that what the word vectors say of each other is hidden from the output at first.
Here the head's dense layer starts as the identity, and the outputs of the layers' branches as a
part of their random values. The architecture stays BERT's; only initial values differ.

Related: Fixup (Zhang et al. 2019, arXiv 1901.09321) and ReZero (Bachlechner et al. 2020, arXiv
2003.04887) start the branches of residual sums at or near zero.
"""

from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config.schema import ModelConfig


def near_identity(params: dict[str, Any], config: ModelConfig) -> dict[str, Any]:
    """Returns `params` with what `config.near_identity` says; the same where it says nothing."""
    start = config.near_identity
    params = jax.tree.map(lambda x: x, params)  # new dicts
    layers = params["encoder"]["layers"]
    for output, factor in (
        (layers["mlp"]["down"], start.feed_forward),
        (layers["attention"]["output"], start.attention),
    ):
        if factor != 1:
            output["kernel"] = factor * output["kernel"]
    if start.head and "mlm" in params:
        params["mlm"]["dense"]["kernel"] = jnp.eye(config.hidden_size, dtype=jnp.float32)
    return params
