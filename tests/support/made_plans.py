"""Plans in memory, for the tests of plans."""

import numpy as np

from bert_jax.data_pipeline.plan.plan import COLUMNS, Plan, plan_epoch


def make_plan(split, spec, epoch, **names) -> Plan:
    """The plan of one epoch; `names` as in `plan_epoch`."""
    parts = {name: [] for name in COLUMNS}
    plan_epoch(split, spec, epoch, lambda name, part: parts[name].append(part), **names)
    return Plan(
        **{name: np.concatenate(parts[name]).astype(dtype) for name, dtype in COLUMNS.items()}
    )
