"""The search of `bert-jax compile --sweep` for GPUs: layers in a loop, the best also unrolled.

The program of one layer compiles in a fraction of the time of all of them, and the order of two
candidates is the same; what memory the unrolled layers need is compiled in the end.
"""

import dataclasses

from bert_jax.aot.cost.memory import GIB
from bert_jax.aot.memory_advice import Change, with_changes
from bert_jax.aot.sweep import Search, Sweep, Trial
from bert_jax.config.schema import Config

_UNROLL = "compute.unroll_layers"


class SearchInLoop(Search):
    """Searches with the layers in a loop, and compiles the best as the config has it: with its
    layers unrolled, unless it has a loop itself."""

    def run(self) -> Sweep:
        given, self.config = self.config, with_changes(self.config, {_UNROLL: 1})
        found = super().run()
        if found.best is None or self.config == given:
            return found
        best = with_changes(given, found.best.changes)
        with self.working(f"compiling the best with its layers unrolled: {found.best.flags}"):
            reports = tuple(self.compiler.measure(best, index) for index in self.phases)
        over = [report.memory for report in reports if not report.memory.fits]
        refusal = f"does not fit: {over[0].total / GIB:,.2f} GiB" if over else None
        return dataclasses.replace(found, unrolled=Trial(found.best.changes, reports, refusal))

    def _knobs(self, config: Config) -> list[list[Change]]:
        return [[c for c in knob if _UNROLL not in c] for knob in super()._knobs(config)]
