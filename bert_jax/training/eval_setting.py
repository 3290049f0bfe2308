"""Evaluation settings: which tokens of held-out text are masked, and what context the model sees.

Runs are comparable on a form, whatever they were trained with. The name of a form is `own`, that of
`config.data` in examples of the length of a run's phase, or `PAIRING/MASKING`, such as
`single/span`, with the default of every other setting of `config.data`, and so 15 % of the tokens,
in examples of that length.
`single/span@0.4` predicts 40 %, `single/span:128` has examples of at most 128 tokens.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from bert_jax.config.model_settings import generator_of
from bert_jax.config.schema import Config, DataConfig, PhaseConfig
from bert_jax.config.serialization import from_dict, to_dict
from bert_jax.data_pipeline.masking import masking_settings as masking_settings
from bert_jax.data_pipeline.pairing import modes
from bert_jax.data_pipeline.plan.plan_settings import UNMIXED
from bert_jax.errors import UserError, nearest
from bert_jax.objectives.known_objectives import chosen, find
from bert_jax.objectives.replaced_tokens import REPLACED_TOKENS

OWN: Final = "own"
_NAME: Final = re.compile(r"(\w+)/(\w+)(?:@(\d*\.?\d+))?(?::(\d{1,6}))?")
# Settings of `config.data` that a form does not depend on.
_NOT_OF_A_FORM: Final[dict[str, Any]] = {**UNMIXED, "store": "", "dupe_factor": 0}


@dataclasses.dataclass(frozen=True)
class EvalSetting:
    """All settings that decide the examples and masks of held-out text.

    Attributes:
        data: how examples are made and masked: the pairing, separators, short sequences, masking,
            rate, shares and span lengths; without a store and mixing.
        seq_length: the most tokens of an example.
        max_predictions: the most predictions of an example.
    """

    data: DataConfig
    seq_length: int
    max_predictions: int

    @classmethod
    def of(cls, config: Config, phase: PhaseConfig, **changes: str | None) -> "EvalSetting":
        """Returns the form of a phase of a run, with other settings of `config.data` where given.

        What does not apply to another pairing or masking is left out: separators, and the span
        boundaries.
        """
        given = {name: value for name, value in changes.items() if value}
        values = to_dict(config.data) | _NOT_OF_A_FORM | given
        if values["pairing"] not in modes.SEPARATED:
            values["separators"] = "documents"
        values["span_boundary"] &= values["masking"] == "span"
        data = from_dict(values, DataConfig, "config.data")
        return cls(data, phase.seq_length, phase.max_predictions)

    @classmethod
    def parse(cls, name: str, seq_length: int) -> "EvalSetting":
        """Returns the form PAIRING/MASKING, with @RATE and :LENGTH behind it where given.

        seq_length: without a length in the name.

        Raises:
            UserError: it is not of that form, or a part of it does not exist.
        """
        match = _NAME.fullmatch(name)
        if not match:
            raise UserError(
                f"form {name!r}: give {OWN} or PAIRING/MASKING, such as single/token, "
                f"single/span@0.4 or single/token:128; pairings: {', '.join(modes.MODES)}; "
                f"maskings: {', '.join(masking_settings.MODES)}"
            )
        for part, known in ((match[1], modes.MODES), (match[2], masking_settings.MODES)):
            if part not in known:
                raise UserError(f"form {name!r}: {part!r} does not exist{nearest(part, known)}")
        rate = float(match[3] or DataConfig().mask_rate)
        length = int(match[4] or seq_length)
        if not 0 < rate < 1:
            raise UserError(f"form {name!r}: {rate:g} is not a share of the tokens between 0 and 1")
        values = {"pairing": match[1], "masking": match[2], "mask_rate": rate}
        data = from_dict(values, DataConfig, "config.data")
        return cls(data, length, max(1, math.ceil(rate * length)))

    def apply(self, config: Config, phase: PhaseConfig) -> Config:
        """Returns the configuration of a run with this form in its data and its only phase, and
        with those objectives of the run that the form has labels for. Without labels of replaced
        tokens, the model of a run of two networks is its generator.

        Raises:
            UserError: the model has no head for the pairing, the form has no labels for the model,
                or is longer than the model's positions.
        """
        learned = chosen(config.data, config.objectives)
        pairing = self.data.pairing
        if pairing in modes.PAIRS and pairing not in (*learned, config.data.pairing):
            raise UserError(
                f"pairing={pairing}: the model has no head for it, as the run was trained with "
                f"pairing={config.data.pairing}; full_sentences, doc_sentences and single measure "
                "masked tokens only and work with any model"
            )
        measured = ",".join(o.name for o in find(learned) if o.has_labels(self.data))
        if not measured:
            raise UserError(
                f"pairing={pairing}: makes no labels for {', '.join(learned)}, the objectives of "
                "the run; choose another"
            )
        phase = dataclasses.replace(
            phase.without_own(),
            seq_length=self.seq_length,
            max_predictions=self.max_predictions,
            examples_per_row=1,
            row_length=0,
        )
        one_phase = config.with_only(phase)
        if REPLACED_TOKENS.name in learned and not self.data.replaced_tokens:
            one_phase = dataclasses.replace(one_phase, model=generator_of(config.model))
        return dataclasses.replace(one_phase, data=self.data, objectives=measured)

    @staticmethod
    def completed(settings: Mapping[str, Any]) -> dict[str, Any]:
        """Returns recorded `settings`, with the defaults of those that are newer."""
        defaults = to_dict(DataConfig())
        return {k: v for k, v in defaults.items() if k not in _NOT_OF_A_FORM} | dict(settings)

    def settings(self) -> Mapping[str, Any]:
        """Returns all settings of the form, by name."""
        data = {k: v for k, v in to_dict(self.data).items() if k not in _NOT_OF_A_FORM}
        shape = {"seq_length": self.seq_length, "max_predictions": self.max_predictions}
        return {**data, **shape}
