"""The search of `bert-jax compile --sweep` for GPUs: layers in a loop, the best also unrolled.

The program of one layer compiles in a fraction of the time of all of them, and the order of two
candidates is the same; what memory the unrolled layers need is compiled in the end.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bert_jax.aot.cost.memory import GIB
from bert_jax.aot.memory_advice import Change, with_changes
from bert_jax.aot.sweep import Compiler, Search, Sweep, Trial
from bert_jax.config.schema import Config

_UNROLL = "compute.unroll_layers"


class _InLoop(Search):
    def _knobs(self, config: Config) -> list[list[Change]]:
        return [[c for c in knob if _UNROLL not in c] for knob in super()._knobs(config)]


def run(
    config: Config, phases: Sequence[int], devices: int, compiler: Compiler, **options: Any
) -> Sweep:
    """Searches with the layers in a loop, and compiles the best as the config has it: with its
    layers unrolled, unless it has a loop itself.

    devices: number of GPUs of all hosts. options: as of `Search`.

    Raises:
        UserError: see `Search.run`.
    """
    in_loop = with_changes(config, {_UNROLL: 1})
    found = _InLoop(in_loop, phases, devices, compiler, **options).run()
    if found.best is None or in_loop == config:
        return found
    best = with_changes(config, found.best.changes)
    with options["working"](f"compiling the best with its layers unrolled: {found.best.flags}"):
        reports = tuple(compiler.measure(best, index) for index in phases)
    over = [report.memory for report in reports if not report.memory.fits]
    refusal = f"does not fit: {over[0].total / GIB:,.2f} GiB" if over else None
    return dataclasses.replace(found, unrolled=Trial(found.best.changes, reports, refusal))
