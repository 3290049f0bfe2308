"""Numbers that are not finite: which updates are skipped, what is counted, when a run has to stop.

Where the loss or the norm of the gradient is NaN or infinite, the update is skipped: parameters,
moments and their count stay bit for bit what they were. The step goes on by one, and with it the
data and the schedule. The host learns of a step only while the next one runs, so the limit is kept
on the devices: once that many updates in a row were skipped, all further ones are, finite or not,
and the parameters stay those of the last good step. (`optax.apply_if_finite` applies the update
after its limit, and the next finite gradient then hides it.)
"""

from typing import Any

import jax
import jax.numpy as jnp

Counts = dict[str, jax.Array]  # int32 scalars: in_row, skipped until now; total, skipped in the run


def start() -> Counts:
    """The counts of a new run."""
    return {"in_row": jnp.zeros((), jnp.int32), "total": jnp.zeros((), jnp.int32)}


def should_update(
    counts: Counts, limit: int, loss: jax.Array, grad_norm: jax.Array
) -> tuple[jax.Array, Counts]:
    """Whether to update (a bool scalar), and the counts after the step.

    A norm is infinite, too, where the squares of a finite gradient overflow: moments would.

    Args:
        limit: skipped updates in a row from which on all are skipped.
        loss, grad_norm: float32 scalars.
    """
    update = jnp.isfinite(loss) & jnp.isfinite(grad_norm) & (counts["in_row"] < limit)
    in_row = jnp.where(update, 0, jnp.minimum(counts["in_row"] + 1, limit))
    return update, {"in_row": in_row, "total": counts["total"] + ~update}


def reset_if_latched(state: dict[str, Any], limit: int) -> dict[str, Any]:
    """The state a run goes on with: one that was stopped at the limit counts anew, else as it was.

    Args:
        state: as restored; its array in_row may lie on any devices, and stays there.
    """
    counts = state["nonfinite"]
    if int(counts["in_row"]) < limit:
        return state
    zero = jnp.zeros_like(counts["in_row"], device=counts["in_row"].sharding)
    return {**state, "nonfinite": {**counts, "in_row": zero}}
