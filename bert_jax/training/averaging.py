"""The exponential moving average of the weights, `config.optimizer.ema_decay`.

After update t the average is Σ d^(t-i)·p_i / Σ d^(t-i) over the weights p_i after each update i so
far. So it never contains the initial weights, unlike a copy of these that decays (GPT-BERT, timm),
which after 600 steps with d = .999 still has 55 % of them. Skipped updates count for nothing.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.training.state_sharding import State


def with_average(state: State) -> State:
    """Returns a new state whose average, if it has one, is of the weights that it starts with."""
    if "ema" not in state:
        return state
    shardings = jax.tree.map(lambda x: x.sharding, state["ema"])
    copied = jax.jit(lambda params: jax.tree.map(jnp.copy, params), out_shardings=shardings)
    return {**state, "ema": copied(state["params"])}


def average(ema: Any, params: Any, decay: float, updates: jax.Array) -> Any:
    """Returns the average after an update.

    Args:
        params: the weights after it.
        updates: int32 scalar, updates done, this one included.
    """
    # In float32, 1 - d^t would lose its digits where d is near 1.
    share = (1 - decay) / -jnp.expm1(math.log(decay) * updates.astype(jnp.float32))
    return jax.tree.map(lambda e, p: e + share * (p - e), ema, params)
