"""The part of a phase that says how its text is read, where not as `config.data` says."""

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Self

from bert_jax.data_pipeline.masking.masking_settings import MODES
from bert_jax.data_pipeline.pairing.modes import Pairing
from bert_jax.data_pipeline.plan.plan_settings import Smoothing
from bert_jax.data_pipeline.settings import Inside, Share
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseDataConfig:
    """Keys of `config.data` that a phase may set for its training text; None: as `config.data`.

    Held-out text is read as `config.data` says in every phase, so that losses are comparable.
    """

    # With a rate of its own a phase has as many prediction slots as that takes.
    mask_rate: Inside | None = None
    mask_share: Share | None = None
    random_share: Share | None = None
    masking: Annotated[str, MODES] | None = None
    source_weights: str | None = None
    language_smoothing: Smoothing | None = None
    pairing: Pairing | None = None
    # The mask rate changes linearly over the steps of the phase, from `mask_rate` to this. The only
    # one that is not a key of `config.data`.
    mask_rate_end: Inside | None = None

    @property
    def own(self) -> dict[str, Any]:
        """The keys of `config.data` that the phase sets."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(PhaseDataConfig)}
        del values["mask_rate_end"]
        return {name: value for name, value in values.items() if value is not None}

    def without_own(self) -> Self:
        """Returns the phase with the values of `config.data`."""
        names = (field.name for field in dataclasses.fields(PhaseDataConfig))
        return dataclasses.replace(self, **dict.fromkeys(names))

    def own_predictions(self, tokens: int) -> int | None:
        """Returns the most predictions of an example of this length, None without a mask rate."""
        rates = [rate for rate in (self.mask_rate, self.mask_rate_end) if rate is not None]
        return math.ceil(max(rates) * tokens) if rates else None

    @contextlib.contextmanager
    def named(self, where: str) -> Iterator[None]:
        """Lets errors about values of `config.data` name the phase instead where it sets them.

        where: the phase, such as "config.phases[1]".
        """
        try:
            yield
        except UserError as error:
            keys = rf"config\.data\.(?=({'|'.join(self.own)})\b)"
            text = re.sub(keys, f"{where}.", str(error)) if self.own else str(error)
            raise UserError(text) from None
