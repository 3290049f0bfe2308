"""Names of the objectives, without JAX."""

from collections.abc import Mapping

# Metric names -> what people call them.
NAMES = {"mlm": "MLM", "nsp": "NSP", "sop": "SOP", "sbo": "SBO"}


def measured(scalars: Mapping[str, float]) -> list[str]:
    """The objectives that scalars hold a loss of."""
    return [name for name in NAMES if f"{name}/loss" in scalars]
