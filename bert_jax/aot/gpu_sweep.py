"""The search of `bert-jax compile --sweep` for GPUs: layers in a loop, the best also unrolled.

The program of one layer compiles in a fraction of the time of all of them, and the order of two
candidates is the same; what memory the unrolled layers need is compiled in the end.
"""

import dataclasses

from bert_jax.aot.memory_advice import Change, with_changes
from bert_jax.aot.sweep import Search
from bert_jax.aot.sweep_results import Sweep, Trial
from bert_jax.config.schema import Config
from bert_jax.errors import UserError

_UNROLL = "compute.unroll_layers"
_LOOP = {_UNROLL: 1}


class SearchInLoop(Search):
    """Searches with the layers in a loop, and compiles the best as the config has it, if there is
    time: with its layers unrolled, unless it has a loop itself."""

    def run(self) -> Sweep:
        if _UNROLL in self.also:
            raise UserError(
                f"--sweep_also={_UNROLL}: the search for GPUs has the layers in a loop, and "
                "compiles the best unrolled; leave it out"
            )
        given, self.config = self.config, with_changes(self.config, _LOOP)
        found = super().run()
        if self.config == given:
            return found
        found = dataclasses.replace(found, in_loop=_LOOP)
        if found.best is None or self._spent >= self.seconds:
            return found
        changes = found.best.changes
        with self.working(f"compiling the best with its layers unrolled: {found.best.flags}"):
            reports, refusal = self._reports(with_changes(given, changes))
        unrolled = Trial(changes, tuple(reports), refusal)
        return dataclasses.replace(found, unrolled=unrolled, seconds=self._spent)

    def _knobs(self, config: Config) -> list[list[Change]]:
        return [[c for c in knob if _UNROLL not in c] for knob in super()._knobs(config)]
