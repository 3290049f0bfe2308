"""The search of `bert-jax compile --sweep` for GPUs: layers in a loop, the best also unrolled.

The program of one layer compiles in a fraction of the time of all of them, and the order of two
candidates is the same; what memory the unrolled layers need is compiled in the end.
"""

import dataclasses

from bert_jax.aot.memory_advice import Change, with_changes
from bert_jax.aot.sweep import UNCHANGED, Search
from bert_jax.aot.sweep_results import Sweep, Trial
from bert_jax.config.schema import Config
from bert_jax.errors import UserError

_UNROLL = "compute.unroll_layers"
_LOOP = {_UNROLL: 1}
# The layers unrolled are expected to take the time of a candidate, whose loop has one, and as much
# again for every six of them. Twelve of BERT-base took 38 s, in a loop 21 s (two busy CPU cores):
# this rule says 63 s, rather too long than too short.
_LAYERS = 6


class SearchInLoop(Search):
    """Searches with the layers in a loop, and compiles the best as the config has it, if there is
    time: with its layers unrolled, unless it has a loop itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._slowest = 0.0  # seconds of a candidate
        self._unrolls = self.config != with_changes(self.config, _LOOP)

    def run(self) -> Sweep:
        if _UNROLL in self.also:
            raise UserError(
                f"--sweep_also={_UNROLL}: the search for GPUs has the layers in a loop, and "
                "compiles the best unrolled; leave it out"
            )
        given, self.config = self.config, with_changes(self.config, _LOOP)
        found = super().run()
        if not self._unrolls:
            return found
        found = dataclasses.replace(found, in_loop=_LOOP)
        if found.best is None or self._spent + self._unrolled >= self.seconds:
            return found
        changes = found.best.changes
        what = found.best.flags or UNCHANGED
        with self.working(f"compiling the best with its layers unrolled: {what}"):
            reports, refusal = self._reports(with_changes(given, changes))
        unrolled = Trial(changes, tuple(reports), refusal)
        return dataclasses.replace(found, unrolled=unrolled, seconds=self._spent)

    def _compile(self, config: Config, changes: Change, ahead: int) -> Trial:
        began = self._spent
        trial = super()._compile(config, changes, ahead)
        self._slowest = max(self._slowest, self._spent - began)
        return trial

    @property
    def _unrolled(self) -> float:
        """Seconds that the best is expected to take with its layers unrolled, rather too many."""
        return self._slowest * (1 + self.config.model.num_hidden_layers / _LAYERS)

    @property
    def _kept(self) -> float:
        """Seconds of the candidate that would begin now, and of the best unrolled."""
        return self._slowest + self._unrolled if self._unrolls else 0.0

    def _knobs(self, config: Config) -> list[list[Change]]:
        return [[c for c in knob if _UNROLL not in c] for knob in super()._knobs(config)]
