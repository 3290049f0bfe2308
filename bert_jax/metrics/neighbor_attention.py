"""The share of attention on neighbouring tokens, as metrics: `attention/layer_0/head_1/left`."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.metrics.run_records import is_finite

PREFIX = "attention/"  # of the names of these metrics
SIDES = ("left", "right")
_KEY = re.compile(rf"{PREFIX}layer_(\d+)/head_\d+/(?:{'|'.join(SIDES)})")


def neighbor_metrics(sums: Mapping[str, Any]) -> dict[str, float]:
    """Returns the mean attention on each side by layer and head; sums: of `neighbor_attention`."""
    count = max(float(sums["count"]), 1.0)
    return {
        f"{PREFIX}layer_{layer}/head_{head}/{side}": float(value) / count
        for side in SIDES
        for (layer, head), value in np.ndenumerate(sums[side])
    }


def by_layer(record: Mapping[str, Any]) -> dict[int, float]:
    """Returns the largest share that one head of each layer pays to one side; no layer whose
    shares are not finite."""
    largest: dict[int, float] = {}
    for key, value in record.items():
        if (match := _KEY.fullmatch(key)) and is_finite(value):
            layer = int(match[1])
            largest[layer] = max(largest.get(layer, 0.0), value)
    return largest
