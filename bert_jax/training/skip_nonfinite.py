"""Non-finite losses and gradients: which updates are skipped, and when a run stops.

If the loss or the gradient norm is NaN or infinite, the update is skipped: parameters, moments and
their count stay bitwise unchanged. The step still increments, and with it the data and the
schedule. The host sees the result of a step only while the next one runs, so the limit is enforced
on the devices: once that many updates in a row were skipped, all further updates are skipped,
finite or not, and the parameters of the last good step are preserved. (`optax.apply_if_finite`
applies the update after its limit, and the next finite gradient then hides it.)
"""

from typing import Any

import jax
import jax.numpy as jnp

Counts = dict[str, jax.Array]  # int32 scalars of skipped updates: in_row, total (in the run)


def start() -> Counts:
    """Returns the counts of a new run."""
    return {"in_row": jnp.zeros((), jnp.int32), "total": jnp.zeros((), jnp.int32)}


def should_update(
    counts: Counts, limit: int, loss: jax.Array, grad_norm: jax.Array
) -> tuple[jax.Array, Counts]:
    """Returns whether to update (a bool scalar) and the counts after the step.

    The norm is also infinite if the squares of a finite gradient overflow, as they would in the
    second moment.

    Args:
        limit: number of skipped updates in a row after which all are skipped.
        loss, grad_norm: float32 scalars.
    """
    update = jnp.isfinite(loss) & jnp.isfinite(grad_norm) & (counts["in_row"] < limit)
    in_row = jnp.where(update, 0, jnp.minimum(counts["in_row"] + 1, limit))
    return update, {"in_row": in_row, "total": counts["total"] + ~update}


def reset_if_latched(state: dict[str, Any], limit: int) -> dict[str, Any]:
    """Returns the state to resume from: in_row is reset to 0 if the run stopped at the limit.

    Args:
        state: as restored; in_row may be on any devices and stays there.
    """
    counts = state["nonfinite"]
    if int(counts["in_row"]) < limit:
        return state
    zero = jnp.zeros_like(counts["in_row"], device=counts["in_row"].sharding)
    return {**state, "nonfinite": {**counts, "in_row": zero}}
