"""DeBERTaV3's gradient-disentangled embedding sharing (He et al. 2021, arXiv 2111.09543, section
3.3), for the tables of words and positions.

The discriminator reads the generator's tables plus tables of its own, which start at zero; its
gradients reach only its own. A run trains and saves both tables apart. What reads one of its models
reads the sums, so each is an ordinary model. LayerNorm and token types are each network's own.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import jax

GENERATOR: Final = "generator"  # the parameters of the generator, in those of both
_TABLES: Final = ("word", "position")
Combine = Callable[[Any, Any], Any]


def summed(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of both networks with the tables that the discriminator reads."""
    return _combined(params, lambda own, base: own + jax.lax.stop_gradient(base))


def apart(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters as they are trained, from those of two models: inverse of `summed`.

    A generator without embeddings, or none at all, gets those of the discriminator.
    """
    generator = params.get(GENERATOR, {})
    shared = {"embeddings": params["encoder"]["embeddings"]}
    both = {**shared, **generator.get("encoder", {})}
    whole = {**params, GENERATOR: {**generator, "encoder": both}}
    return _combined(whole, lambda own, base: own - base)


def _combined(params: Mapping[str, Any], combine: Combine) -> dict[str, Any]:
    encoder, base = params["encoder"], params[GENERATOR]["encoder"]["embeddings"]
    own = encoder["embeddings"]
    tables = {name: combine(own[name], base[name]) for name in _TABLES if name in own}
    return {**params, "encoder": {**encoder, "embeddings": {**own, **tables}}}
